"""The cases about scripts, in three arms: with `memory_run`, without it, and without the gateway."""

import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from arms import ARMS
from scripted import ScriptedServer, scripted_server
from scripted_runs import CASES, joined, run_script

from mcp_mirror.evals.log import Record
from mcp_mirror.evals.matrix import PLAIN
from mcp_mirror.evals.profiles import load_case
from mcp_mirror.evals.report import as_markdown, billed, rows_of
from mcp_mirror.evals.servers import RunFolder, Servers, start_servers

pytestmark = pytest.mark.usefixtures("forked_servers")

LOADED = {name: load_case(CASES / f"{name}.md") for name in ARMS}
VARIANTS: dict[str, dict[str, Any]] = {  # of `memory_tools`
    "run": {},
    "without": {"deny": ["memory_run"]},
    "direct": {},
}
QUESTIONS = {"run": 8}
"""How often the user is asked in each arm of `asked_call`."""


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with scripted_server() as running:
        for name, arms in ARMS.items():
            running.scripts |= {f"{name}/{arm}": script for arm, script in arms.items()}
            running.scripts[f"{name}/bad"] = [*arms["run"][:1], "I have nothing to say."]
        yield running


@asynccontextmanager
async def servers_of(arm: str, folder: Path) -> AsyncIterator[Servers]:
    run_folder = RunFolder(folder, CASES)
    servers_config = joined([*LOADED.values()]) | {"memory_tools": VARIANTS[arm]}
    config = run_folder.prepare(servers_config, {})
    async with start_servers(run_folder, config, gateway=arm != "direct", elicitation="accept") as servers:
        yield servers


@pytest.mark.slow
async def test_each_case_succeeds_in_each_arm(
    server: ScriptedServer, tmp_path: Path, count_tokens: Callable[[str], int]
) -> None:
    pytest.importorskip("pydantic_monty")
    server.count_tokens = count_tokens
    records: dict[str, dict[str, Record]] = {name: {} for name in ARMS}
    for arm in VARIANTS:
        async with servers_of(arm, tmp_path / arm) as servers:
            for name, case in LOADED.items():
                direct: dict[str, Any] = {"gateway": False, "style": PLAIN} if arm == "direct" else {}
                request_count = len(servers.user.requests)
                record = await run_script(servers, server, case, arm, **direct)
                assert [check for check in record["checks"] if not check["passed"]] == [], (name, arm)
                assert record["success"], (name, arm)
                questions = QUESTIONS.get(arm, 0) if name == "asked_call" else 0
                assert len(servers.user.requests) - request_count == questions, (name, arm)
                records[name][arm] = {**record, "variant": arm}
    table = as_markdown(rows_of([record for arms in records.values() for record in arms.values()], "case"))
    sys.stdout.write(f"{table}\n")  # pytest -s shows it
    for name, arms in records.items():
        assert billed(arms["run"]) < billed(arms["direct"]), name
        if name != "corrected_script":
            assert billed(arms["run"]) < billed(arms["without"]), name


async def test_a_model_that_does_not_do_the_task_fails(server: ScriptedServer, tmp_path: Path) -> None:
    async with servers_of("run", tmp_path) as servers:
        for case in LOADED.values():
            assert not (await run_script(servers, server, case, "bad"))["success"], case.name


async def test_nothing_is_deleted_if_the_user_declines(server: ScriptedServer, tmp_path: Path) -> None:
    pytest.importorskip("pydantic_monty")
    case = LOADED["asked_call"]
    run_folder = RunFolder(tmp_path, CASES)
    config = run_folder.prepare(joined([case]), {})
    async with start_servers(run_folder, config, gateway=True, elicitation="decline") as servers:
        record = await run_script(servers, server, case, "run")
        assert [check["name"] for check in record["checks"] if not check["passed"]] == ["file deleted.txt"]
        assert "The user was asked, and does not allow it." in record["made"][-1]["result"]
        assert "order" in servers.user.requests[0]
