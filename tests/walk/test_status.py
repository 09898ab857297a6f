"""What an operator is told: `check`, `call`, `config schema`, the instructions and the status resource."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

if TYPE_CHECKING:
    from tests.walk.conftest import Configured, Connect, Run


async def test_check_lists_tools_twins_and_their_cost_and_is_content(
    configured: Configured, run: Run, chemist: Any
) -> None:
    ended = await run("check", "--config", str(configured({"lab": chemist})))
    assert (ended.code, ended.err) == (0, "")
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in ended.out.splitlines() if line.startswith("│")]
    assert ["lab", "make_grid", "make_grid_mirrored"] in [row[:3] for row in rows]
    assert all(int(row[3].replace(",", "")) > 10 for row in rows if row[3])
    assert "lab: ready, chemist 1.2, protocol 2026-07-28" in ended.out
    total = sum(int(row[3].replace(",", "")) for row in rows if row[3])
    assert f"about {total:,} tokens" in ended.out


async def test_call_prints_what_the_model_would_read(configured: Configured, run: Run, chemist: Any) -> None:
    config = str(configured({"lab": chemist}))
    ended = await run("call", "--config", config, "shout_mirrored", "--arg", "text=quiet")
    assert (ended.code, ended.out, ended.err) == (0, "QUIET\n", "")
    ended = await run("call", "--config", config, "make_grid_mirrored", "--arg", "size=3", "--arg", 'name="7"')
    assert ended.code == 0
    assert ended.out.startswith("Stored in memory:\nmake_grid-")
    ended = await run("call", "--config", config, "no_such")
    assert ended.code == 1
    assert "Nearest are" in ended.out
    ended = await run("call", "--config", config, "shout_mirrored", "--arg", "text")
    assert ended.code == 2
    assert "wants KEY=VALUE" in ended.err


async def test_the_schema_of_the_configuration_admits_what_we_write(
    configured: Configured, run: Run, chemist: Any
) -> None:
    ended = await run("config", "schema")
    assert ended.code == 0
    validator = jsonschema_rs.validator_for(json.loads(ended.out))
    assert validator.is_valid(json.loads(configured({"lab": chemist}).read_text()))
    assert not validator.is_valid({"upstreams": {"lab": {"comand": "x"}}})


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_instructions_speak_of_every_upstream_and_are_bounded(
    mode: str, configured: Configured, connect: Connect, raw: Any, chemist: Any
) -> None:
    upstreams = {f"raw{index}": raw("ok", "--name", f"raw{index}") for index in range(8)}
    config = configured({"lab": chemist, **upstreams}, server={"instructions": "Be kind."})
    async with connect(config, mode=mode) as client:
        said = client.instructions or ""
        assert said.startswith("Be kind.")
        assert "_mirrored" in said
        assert "Server lab: Ask for grids." in said
        assert "Server raw3: I am raw3." in said
        assert len(said) < 4000
        assert client.server_info is not None
        assert client.server_info.name == "mcp-mirror"
        listed = (await client.list_resources()).resources
        assert [str(one.uri) for one in listed] == ["mcp-mirror://upstreams"]
        contents = (await client.read_resource("mcp-mirror://upstreams")).contents
        status = json.loads(contents[0].text)  # type: ignore[union-attr]
        assert [one["state"] for one in status["upstreams"]] == ["ready"] * 9
        assert status["upstreams"][0]["server"] == "chemist 1.2"


async def test_a_typing_mistake_on_the_command_line_is_told(configured: Configured, run: Run) -> None:
    for address in (":8000", "localhost:70000"):
        ended = await run("serve", "--config", str(configured({})), "--http", address)
        assert ended.code == 2
        assert "--http wants HOST:PORT" in ended.err
    ended = await run("check", "--config", "/no/such/file.yaml")
    assert ended.code == 2
    assert "/no/such/file.yaml" in ended.err


async def test_every_command_has_help_with_an_example(run: Run) -> None:
    for command in (["serve"], ["config", "schema"]):
        ended = await run(*command, "--help")
        assert ended.code == 0
        assert "Example: mcp-mirror" in ended.out
