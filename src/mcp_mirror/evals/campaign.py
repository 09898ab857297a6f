"""All runs of a matrix, a few at a time, each in the log as soon as it ends."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from mcp_mirror.evals.running import run_setting
from mcp_mirror.evals.stage import Place

HOPELESS: Final = 5
"""Runs that failed in a row, for the endpoint's or a server's sake, after which the others would too."""


def check_matrix(matrix: Matrix) -> tuple[Setting, ...]:
    """All runs, after every configuration of theirs has been read once.

    Raises:
        ConfigError: There is nothing to run, or a configuration cannot be used.
    """
    settings = tuple(matrix.settings())
    if not settings:
        raise ConfigError("Nothing is to be run: each case needs the gateway or examples that this matrix leaves out.")
    for setting in {(one.case.file, one.style, one.variant, one.gateway): one for one in settings}.values():
        with TemporaryDirectory(prefix="mcp-mirror-eval-") as folder:
            try:
                Place(Path(folder), Path(setting.case.file).parent).prepare(setting.config, setting.case.files.given)
            except ConfigError as error:
                said = str(error).replace(f"{Path(folder) / 'mirror.yaml'}", f"{setting.case.file}: servers")
                raise ConfigError(said) from None
    return settings


async def run_all(settings: Sequence[Setting], log: Log, jobs: int, done: Callable[[Record], None]) -> None:
    """Make every run that the log does not have, until `HOPELESS` of them failed one after another.

    Args:
        settings: All that are wanted.
        log: Where they are looked for, and put.
        jobs: How many run at a time.
        done: Is told of each.

    Raises:
        ConfigError: A model's key is not in the environment.
    """
    waiting: Iterator[Setting] = iter([one for one in settings if not log.has(one.key)])
    in_vain = 0
    async with AsyncExitStack() as stack:
        endpoints = await _endpoints({one.model.name: one.model for one in settings}, stack)

        async def work() -> None:
            nonlocal in_vain
            for setting in waiting:
                record = await run_setting(setting, endpoints[setting.model.name])
                log.add(record)
                done(record)
                in_vain = in_vain + 1 if record["end"] == VOID else 0
                if in_vain >= HOPELESS:
                    return

        async with anyio.create_task_group() as tasks:
            for _ in range(jobs):
                tasks.start_soon(work)


async def _endpoints(models: Mapping[str, Model], stack: AsyncExitStack) -> dict[str, Endpoint]:
    return {name: await _endpoint(model, stack) for name, model in models.items()}


async def _endpoint(model: Model, stack: AsyncExitStack) -> Endpoint:
    if model.api_key_env and not os.environ.get(model.api_key_env):
        raise ConfigError(f"Model {model.name!r}: the environment has no {model.api_key_env}, which holds its key.")
    client = await stack.enter_async_context(httpx2.AsyncClient(timeout=model.timeout))
    return Endpoint(
        client=client,
        base_url=model.base_url,
        model=model.model or model.name,
        api_key=os.environ.get(model.api_key_env) if model.api_key_env else None,
        extra=model.extra,
    )
