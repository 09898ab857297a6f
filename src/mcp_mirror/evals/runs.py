"""Performs the runs of a matrix concurrently, and writes each to the log as soon as it ends."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import anyio
import httpx2

from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.endpoint import Endpoint
from mcp_mirror.evals.log import VOID, Log, Record
from mcp_mirror.evals.matrix import Matrix, Model, Setting
from mcp_mirror.evals.servers import RunFolder
from mcp_mirror.evals.single_run import run_setting

MAX_CONSECUTIVE_FAILURES: Final = 5
"""Void runs in a row after which the evaluation stops, since later runs would be void too."""


def check_matrix(matrix: Matrix) -> tuple[Setting, ...]:
    """Return the settings of all runs; ConfigError without any, or for an unusable configuration."""
    settings = tuple(matrix.settings())
    if not settings:
        raise ConfigError(
            "The matrix has no run: each case needs the gateway, examples, or a model that sees (`requires: vision`), "
            "which this matrix leaves out. Change --gateway, --few-shot, or `vision` in the model's profile."
        )
    for setting in {(one.case.file, one.style, one.variant, one.gateway): one for one in settings}.values():
        with TemporaryDirectory(prefix="mcp-mirror-eval-") as folder:
            run_folder = RunFolder(Path(folder), Path(setting.case.file).parent)
            try:
                run_folder.prepare(setting.config, setting.case.files.given)
            except ConfigError as error:
                message = str(error).replace(str(run_folder.config), f"{setting.case.file}: servers")
                raise ConfigError(message) from None
    return settings


async def run_all(settings: Sequence[Setting], log: Log, jobs: int, done: Callable[[Record], None]) -> None:
    """Perform each run that is not in the log, until `MAX_CONSECUTIVE_FAILURES` runs in a row were void.

    At most `jobs` runs are concurrent. `done` gets the record of each new run. ConfigError without an API key of a
    model.
    """
    missing: Iterator[Setting] = iter([one for one in settings if not log.has(one.key)])
    void_in_a_row = 0
    async with AsyncExitStack() as stack:
        models = {one.model.name: one.model for one in settings}
        endpoints = {name: await _endpoint(model, stack) for name, model in models.items()}

        async def work() -> None:
            nonlocal void_in_a_row
            for setting in missing:
                record = await run_setting(setting, endpoints[setting.model.name])
                log.add(record)
                done(record)
                void_in_a_row = void_in_a_row + 1 if record["end"] == VOID else 0
                if void_in_a_row >= MAX_CONSECUTIVE_FAILURES:
                    return

        async with anyio.create_task_group() as tasks:
            for _ in range(jobs):
                tasks.start_soon(work)


async def _endpoint(model: Model, stack: AsyncExitStack) -> Endpoint:
    if model.api_key_env and not os.environ.get(model.api_key_env):
        raise ConfigError(
            f"Model {model.name!r}: the environment variable {model.api_key_env} (its API key) is not set."
        )
    client = await stack.enter_async_context(httpx2.AsyncClient(timeout=model.timeout))
    return Endpoint(
        client=client,
        base_url=model.base_url,
        model=model.model or model.name,
        api_key=os.environ.get(model.api_key_env) if model.api_key_env else None,
        extra=model.extra,
    )
