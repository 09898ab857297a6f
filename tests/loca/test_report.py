"""The oracle's counts and the tables, without LOCA-bench."""

import io
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from rich.console import Console

from loca_arms import OpenArm
from loca_oracle import Oracle, Script, ask, read_whole
from loca_reading import is_stored, path_or_value, read_json, read_shown, returned_by
from loca_report import write_docs, write_report
from loca_runs import Player, run_arm
from loca_suite import Task, Verdict
from mcp_mirror.errors import EndpointError
from mcp_mirror.evals.cases import Limits
from mcp_mirror.evals.conversation import Call, MadeCall, Result, Tool, Usage
from mcp_mirror.evals.dialects import ToolsMode
from mcp_mirror.evals.endpoint import Completion

PATH = "list_orders-5f0a3c52-0c1e-4a52-8f2b-1d9f6f2f7b10"


def words(text: str) -> int:
    return len(text.split())


async def answer(call: Call) -> MadeCall:
    return MadeCall(Result(call, "one two"))


def arm(*names: str) -> OpenArm:
    return OpenArm("mirror", [Tool(name, "", {}) for name in names], "", answer)


def two_steps() -> Script:
    (first,) = yield [ask("shop.list", page=1)]
    assert first == "one two"
    yield [ask("memory_read", memory_path="x"), ask("shop.list", page=2)]


class UnchangedEnvironment:
    """A task's environment without servers, whose checker accepts everything."""

    prompt = "Do it."

    async def restore(self) -> None: ...

    async def judge(self) -> Verdict:
        return Verdict(success=True, feedback="")


@pytest.mark.parametrize("dialect", ["native", "json_schema", "json_text"])
async def test_definitions_are_counted_in_each_dialect(
    dialect: ToolsMode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @asynccontextmanager
    async def open_arm(*_: object) -> AsyncIterator[OpenArm]:
        yield arm("shop_list", "shop_buy")

    async def complete(_messages: object, _body: object) -> Completion:
        return Completion({"content": '{"name": "reply_to_user", "arguments": {"answer": "done"}}'}, Usage())

    monkeypatch.setattr("loca_runs.open_arm", open_arm)
    limits = Limits(calls=1, tokens=1_000, seconds=10)
    player = Player("model", lambda *_: complete, lambda *_: True, limits, lambda text: text.count("shop_"), dialect)
    record = await run_arm(
        player, Task("Any", "8k", 1, {}), ("direct", 1), cast("Any", UnchangedEnvironment()), tmp_path
    )
    assert (record["definition_tokens"], record["end"]) == (2, "answered")


async def test_the_oracle_calls_listed_tools_and_counts_each_message_once() -> None:
    oracle = Oracle(two_steps(), arm("list_mirrored", "memory_read", "claim_done_mirrored"), words)
    messages: list[dict[str, Any]] = [{"role": "user", "content": "do it"}]
    names = []
    prompts = []
    for _ in range(3):
        completion = await oracle.complete(messages, {"tools": ["a b c"]})
        calls = completion.message["tool_calls"]
        names.append([call["function"]["name"] for call in calls])
        prompts.append(completion.usage.prompt)
        results = [{"role": "tool", "tool_call_id": call["id"], "content": "one two"} for call in calls]
        messages = [*messages, dict(completion.message), *results]
    assert names == [["list_mirrored"], ["memory_read", "list_mirrored"], ["claim_done_mirrored"]]
    written = [words(json.dumps(message, separators=(",", ":"))) for message in messages]
    assert prompts == [3 + sum(written[:1]), 3 + sum(written[:3]), 3 + sum(written[:6])]


async def test_a_script_that_cannot_continue_is_an_error_with_its_cause() -> None:
    oracle = Oracle(two_steps(), arm("other"), words)
    with pytest.raises(EndpointError, match=r"cannot continue: LookupError: No tool 'list' of 'shop'"):
        await oracle.complete([], {})


@pytest.mark.parametrize(("text", "calls"), [("[1]", 0), (f'"{PATH}"\nThis path stands for array of 2 objects', 1)])
def test_only_a_stored_result_is_read_again(text: str, calls: int) -> None:
    read: list[str] = []

    def reading() -> Script:
        read.append((yield from read_whole(text)))

    count = 0
    steps = reading()
    for _ in steps:
        count += 1
        with pytest.raises(StopIteration):
            steps.send(["all"])
    assert count == calls
    assert read == ["all" if calls else text]


def test_a_small_result_without_a_path_is_passed_on_as_a_value() -> None:
    assert path_or_value("[1, 2]") == [1, 2]
    assert path_or_value(f'Path: "{PATH}"\nResult ends.') == PATH


@pytest.mark.parametrize("below", ["", "\nResult ends.", f'\n\nPath: "{PATH}"\nResult ends.'])
def test_a_shown_value_is_read_without_the_lines_below_it(below: str) -> None:
    assert read_json(f'[{{"id": 1}}]{below}') == [{"id": 1}]
    assert read_shown(f"Dear reader,\nthe end.{below}") == "Dear reader,\nthe end."


def test_a_shown_text_is_read_without_the_path_above_it() -> None:
    shown = f'"{PATH}"\n\nDear reader,\nthe end.\n\nAs an argument, the path stands for the text.\nResult ends.'
    assert read_shown(shown) == "Dear reader,\nthe end."
    assert path_or_value(shown) == PATH
    assert not is_stored(shown)
    rest = 'The result also has "exit_code" 0.\nalso in "data": n 1\n'
    part = shown.replace(f'"{PATH}"', f'"{PATH}/stdout"').replace("As an", f"{rest}As an")
    assert read_shown(part) == "Dear reader,\nthe end."


def test_a_small_value_of_a_script_is_read_without_its_last_line() -> None:
    assert returned_by("printed:\n2 products\nreturned:\n[1, 2]\nResult ends.") == [1, 2]


def record(arm: str, *, success: bool = True, context: int = 900, **others: Any) -> dict[str, Any]:
    figures = {"prompt_tokens": 2000, "cached_tokens": 1000, "completion_tokens": 100, "steps": 3, "calls": 4}
    labels = {"model": "oracle", "task": "Nhl", "size": "8k", "arm": arm, "end": "answered", "success": success}
    return {**labels, **figures, "context_tokens": context, "definition_tokens": 300, "seconds": 1.0, **others}


def test_tables_show_success_cost_and_the_messages_of_each_arm() -> None:
    void = {"task": "Other", "end": "error", "success": False}
    written = io.StringIO()
    records = [record("direct", success=False, end="overflow"), record("scripts"), {**record("scripts"), **void}]
    write_report(records, "markdown", Console(file=written, width=200))
    lines = written.getvalue().splitlines()
    assert "| oracle | 8k | direct | 0/1 | 900 | 300 | 2,000 | 1,000 | 100 | 1,600 | 3 | 4 | 1 | 1 | 0 |" in lines
    assert "| oracle | 8k | scripts | 1/1 | 900 | 300 | 2,000 | 1,000 | 100 | 1,600 | 3 | 4 | 1 | 0 | 1 |" in lines
    assert "| Nhl | 8k | failed: 600 / 3 / 1,600 | 600 / 3 / 1,600 |" in lines
    assert "| Other | 8k | - | void |" in lines


@pytest.mark.parametrize("form", ["table", "json"])
def test_the_same_tables_in_other_formats(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    console: Callable[..., Console] = Console
    write_report([record("mirror")], form, console(width=200))
    assert "mirror" in capsys.readouterr().out


def test_the_totals_replace_those_of_a_page(tmp_path: Path) -> None:
    page = tmp_path / "loca.md"
    page.write_text("before\n<!-- loca: written by a test -->\nold\n<!-- end of loca -->\nafter\n")
    write_docs([record("mirror")], page, "today:")
    text = page.read_text()
    assert text.startswith("before\n<!-- loca: written by a test -->\ntoday:\n\n| model | size | arm |")
    assert text.endswith(" | 3 | 4 | 1 | 0 | 0 |\n<!-- end of loca -->\nafter\n")
