"""The output for operators: `check`, `call`, `config schema`, the instructions and the status resource."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest
from gateway_processes import COMMAND, forked_python, forked_upstream
from samples import sample
from tests.end_to_end.conftest import BOUND, SERVERS

from mcp_mirror import __version__
from mcp_mirror.memory.tools.table import TOOLS

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.conftest import Configured, Connect, Run

SCRIPTS = ["memory_run"] if find_spec("pydantic_monty") else []
"""The tool that the extra `code` adds."""


async def test_check_lists_tools_twins_and_their_costs(configured: Configured, run: Run, chemist: Any) -> None:
    ended = await run("check", "--config", str(configured({"lab": chemist})))
    assert (ended.code, ended.err) == (0, "")
    rows = rows_of(ended.out)
    assert ["lab", "make_grid", "make_grid_mirrored"] in [row[:3] for row in rows]
    assert len(rows) == 7
    assert all(int(row[3].replace(",", "")) > 10 for row in rows)
    own = [line.split() for line in ended.out.splitlines() if line.startswith("(mcp-mirror) ")]
    assert [row[1] for row in own] == [
        *SCRIPTS,
        *(name for name in TOOLS if name not in ("memory_import", "memory_export")),
    ]
    assert "lab: ready, chemist 1.2, protocol 2026-07-28, 7 tools, after " in ended.out
    twins, alone, ours = (
        sum(int(row[at].replace(",", "")) for row in of) for at, of in ((3, rows), (4, rows), (-1, own))
    )
    assert f"twins cost {twins:,} tokens, the original tools {alone:,}\n" in ended.out
    assert f"mcp-mirror's own tools cost {ours:,} tokens\n" in ended.out
    assert 0 < alone < twins


async def test_check_prints_each_upstream_as_soon_as_it_is_ready(
    configured: Configured, raw: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "late"
    config = str(configured({"late": raw("ok", "--gate", str(gate)), "quick": raw()}))
    command = forked_python(COMMAND, "check", "--config", config)
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    first = await asyncio.wait_for(process.stdout.readline(), BOUND)
    assert first.startswith(b"quick: ready")
    gate.touch()
    assert b"late: ready" in (await asyncio.wait_for(process.communicate(), BOUND))[0]


async def test_a_reader_that_closes_its_end_ends_check_without_a_message(configured: Configured, raw: Any) -> None:
    config = configured({name: raw() for name in ("one", "two", "three")})
    command = f"{COMMAND} check --config {config} | head -n 1"
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_shell(command, stdout=pipe, stderr=pipe)
    async with asyncio.timeout(BOUND):
        out, err = await process.communicate()
    assert (b": ready, " in out, out.count(b"\n"), err) == (True, 1, b"")


async def test_check_counts_one_tool_in_the_singular(configured: Configured, run: Run) -> None:
    cached = forked_upstream(str(SERVERS / "cached.py"))
    ended = await run("check", "--config", str(configured({"cached": cached})))
    assert ", 1 tool, after " in ended.out


def rows_of(table: str) -> list[list[str]]:
    """The rows of `check` that tell of an upstream's tool, cell by cell."""
    return [line.split() for line in table.splitlines() if line.startswith("lab ")]


async def test_check_prints_whole_names_in_pipes_and_narrow_terminals(
    configured: Configured, run: Run, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["n" * 60, *(f"a_rather_long_name_of_a_tool_number_{index}" for index in range(3))]
    tools = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    (tmp_path / "tools").write_text(json.dumps(tools))
    config = str(configured({"lab": raw("ok", "--tools", str(tmp_path / "tools"))}))
    monkeypatch.setenv("COLUMNS", "40")
    piped = await run("check", "--config", config)
    assert [row[1] for row in rows_of(piped.out)] == names
    twins = [row[2] for row in rows_of(piped.out)]
    assert all(twin.endswith("_mirrored") for twin in twins)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")  # as rich asks whether it writes to a terminal
    narrow = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", (await run("check", "--config", config)).out)
    assert max(map(len, narrow.splitlines())) <= 80
    assert all(twin in narrow for twin in twins)
    assert "\u2026" not in narrow


async def test_check_prints_each_problem_once(configured: Configured, run: Run, raw: Any) -> None:
    pasted = {"lab": raw() | {"autoApprove": ["x"]}, "gone": {"command": "no-such-command"}}
    ended = await run("check", "--config", str(configured({}, mcpServers=pasted)))
    assert ended.code == 1
    assert len(ended.err.splitlines()) == 2
    assert "no-such-command" in ended.err
    assert "autoApprove" in ended.err
    assert [line.split(": ")[0] for line in ended.err.splitlines()] == ["warning", "problem"]


async def test_settings_with_which_the_gateway_works_are_no_problems(
    configured: Configured, run: Run, raw: Any
) -> None:
    ended = await run("check", "--config", str(configured({}, mcpServers={"my lab": raw() | {"autoApprove": ["x"]}})))
    assert ended.code == 0
    assert [line.split(": ")[0] for line in ended.err.splitlines()] == ["warning", "warning"]


async def test_call_prints_the_text_for_the_model(configured: Configured, run: Run, chemist: Any) -> None:
    config = str(configured({"lab": chemist}))
    ended = await run("call", "--config", config, "shout_mirrored", "--arg", "text=quiet")
    assert (ended.code, ended.out, ended.err) == (0, "QUIET\n", "")
    ended = await run("call", "--config", config, "make_grid_mirrored", "--arg", "size=3", "--arg", 'name="7"')
    assert ended.code == 0
    assert 'Path: "make_grid-' in ended.out
    assert "the path above ended with this command" in ended.err
    config_path = str(configured({"lab": chemist}, store={"kind": "disk", "path": "kept"}))
    ended = await run("call", "--config", config_path, "make_grid_mirrored", "--arg", "size=3", "--arg", "name=x")
    assert (ended.code, ended.err) == (0, "")


async def test_the_configuration_schema_accepts_test_configurations(
    configured: Configured, run: Run, chemist: Any
) -> None:
    ended = await run("config", "schema")
    assert ended.code == 0
    validator = jsonschema_rs.validator_for(json.loads(ended.out))
    assert validator.is_valid(json.loads(configured({"lab": chemist}).read_text()))
    assert not validator.is_valid({"upstreams": {"lab": {"comand": "x"}}})


@pytest.mark.parametrize("mode", sample(["auto", "legacy"], "auto".__eq__))
async def test_instructions_contain_every_upstream_up_to_a_limit(
    mode: str, configured: Configured, connect: Connect, run: Run, raw: Any, chemist: Any
) -> None:
    upstreams = {f"raw{index}": raw("ok", "--name", f"raw{index}") for index in range(8)}
    config = configured({"lab": chemist, **upstreams}, server={"instructions": "Be kind."})
    await run("check", "--config", str(config))  # fills the cache: a busy machine may start them too late
    async with connect(config, mode=mode) as client:
        instructions = client.instructions or ""
        assert instructions.startswith("Be kind.")
        assert "_mirrored" in instructions
        assert "Server lab: Ask for grids." in instructions
        assert "Server raw3: I am raw3." in instructions
        assert len(instructions) < 4000
        assert client.server_info is not None
        assert client.server_info.name == "mcp-mirror"
        listed = (await client.list_resources()).resources
        assert [str(one.uri) for one in listed] == ["mcp-mirror://upstreams"]
        contents = (await client.read_resource("mcp-mirror://upstreams")).contents
        status = json.loads(contents[0].text)  # type: ignore[union-attr]
        assert [one["state"] for one in status["upstreams"]] == ["ready"] * 9
        assert status["upstreams"][0]["server"] == "chemist 1.2"


async def test_a_mistyped_option_is_reported(configured: Configured, run: Run) -> None:
    for address in (":8000", "localhost:70000"):
        ended = await run("serve", "--config", str(configured({})), "--http", address)
        assert ended.code == 2
        assert "--http must be HOST:PORT" in ended.err
    ended = await run("check", "--config", "/no/such/file.yaml")
    assert ended.code == 2
    assert "/no/such/file.yaml" in ended.err


def test_check_ends_quietly_if_its_output_is_closed(configured: Configured, chemist: Any) -> None:
    command = forked_python(COMMAND, "check", "--config", str(configured({"lab": chemist})))
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        errors = process.stderr.read()
        assert process.wait(BOUND) == 1
    assert errors == ""


async def test_every_command_has_help_with_an_example(run: Run) -> None:
    for command in (["serve"], ["check"], ["lock"], ["call"], ["config", "schema"]):
        ended = await run(*command, "--help")
        assert ended.code == 0
        assert "Example: mcp-mirror" in ended.out


async def test_the_version_is_printed(run: Run) -> None:
    for option in ("version", "--version"):
        ended = await run(option)
        assert (ended.code, ended.out) == (0, f"{__version__}\n")


def test_the_garbage_collector_ignores_imported_objects() -> None:
    script = """
import gc, sys
from mcp_mirror.__main__ import main
sys.argv = ["mcp-mirror", "version"]
try:
    main()
except SystemExit:
    pass
print(gc.isenabled(), gc.get_freeze_count() > len(gc.get_objects()))
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.split()[-2:] == ["True", "True"]
