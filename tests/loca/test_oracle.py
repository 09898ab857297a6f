"""The oracle on tasks of LOCA-bench, with the suite's own servers and checkers. Skipped without `make loca`."""

from collections.abc import Callable
from pathlib import Path

import pytest

from loca_run import INSTALLED, make_oracle
from loca_runs import Plan, run_missing
from loca_scripts import SCRIPTS
from loca_suite import read_tasks
from mcp_mirror.errors import ConfigError
from mcp_mirror.evals.log import Log

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not INSTALLED.is_installed, reason="LOCA-bench is not installed; `make loca` installs it"),
]
DIRECT_MESSAGES = {"NhlB2bAnalysis": 3_000, "SetConfCrDdl": 5_000, "WoocommerceStockAlert": 5_000}
"""Tokens that the messages of the direct arm exceed."""


@pytest.mark.parametrize("name", list(DIRECT_MESSAGES))
async def test_the_oracle_succeeds_in_each_arm(name: str, tmp_path: Path, count_tokens: Callable[[str], int]) -> None:
    pytest.importorskip("pydantic_monty")
    tasks = read_tasks(INSTALLED, ["8k"], [name], [42])
    plan = Plan(INSTALLED, tasks, list(SCRIPTS[name]), make_oracle(count_tokens))
    log = Log(tmp_path / "log.jsonl")
    await run_missing(plan, log, lambda _: None)
    records = {record["arm"]: record for record in log.of(plan.keys())}
    outcomes = {arm: (one["success"], one.get("feedback"), one["detail"]) for arm, one in records.items()}
    assert outcomes == dict.fromkeys(SCRIPTS[name], (True, "", ""))
    messages = {arm: one["context_tokens"] - one["definition_tokens"] for arm, one in records.items()}
    assert messages["direct"] > DIRECT_MESSAGES[name]
    assert messages["scripts"] < messages["direct"] / 2


async def test_a_second_run_of_a_plan_performs_no_run(tmp_path: Path, count_tokens: Callable[[str], int]) -> None:
    tasks = read_tasks(INSTALLED, ["8k"], ["NhlB2bAnalysis"], [42])
    plan = Plan(INSTALLED, tasks, ["direct"], make_oracle(count_tokens))
    performed: list[str] = []
    for _ in range(2):
        await run_missing(plan, Log(tmp_path / "log.jsonl"), lambda record: performed.append(record["key"]))
    assert performed == ["oracle/NhlB2bAnalysis/8k/42/direct/1"]


def test_an_unknown_task_is_an_error_that_lists_the_tasks() -> None:
    with pytest.raises(ConfigError, match=r"LOCA-bench has no task Nhl\. It has: .*NhlB2bAnalysis"):
        read_tasks(INSTALLED, ["8k"], ["Nhl"], [])
