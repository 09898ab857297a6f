"""After a restart, values on disk are found again, and values in memory are unknown."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gateway_processes import start_executable
from notices import path_in
from samples import sample
from tests.end_to_end.conftest import run_command

import mcp_mirror

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Lines, OpenLines, Run

RETRIEVE = "retrieve_final_answer_from_memory"
VALUE = {"rows": list(range(2000)), "name": "yesterday's", "1.0": 1.50}
LARGE = {**VALUE, "pad": "x" * 200_000}


async def store(client: Lines, value: Any) -> str:
    result = json.dumps({"content": [], "structuredContent": value})
    return path_in(await client.text("raw_say_mirrored", {"result": result}))


def heard_in(line: str) -> Any:
    """The arguments that reached the upstream, which answers with what it got."""
    return json.loads(line)["params"]["arguments"]


@pytest.fixture
def raws(raw: Any) -> dict[str, Any]:
    """Two of a kind, so that tools have their upstream's name before them; what is heard comes back as it is."""
    return {name: raw(overrides={"hear": {"capture": "never"}}) for name in ("raw", "other")}


@pytest.mark.parametrize(
    ("value", "limits"),
    sample(
        [(VALUE, {}), (LARGE, {}), (VALUE, {"spool_bytes": 1024}), (LARGE, {"spool_bytes": 1024})],
        lambda case: (case[0] is LARGE) == bool(case[1]),
    ),
    ids=["small in memory", "large in memory", "small in files", "large in files"],
)
async def test_a_path_of_before_the_restart_is_an_argument_and_is_brought_back(
    value: Any, limits: dict[str, int], configured: Configured, open_lines: OpenLines, raws: dict[str, Any]
) -> None:
    config = configured(raws, limits=limits)
    async with open_lines(config) as client:
        await client.greet()
        path = await store(client, value)
    async with open_lines(config) as client:
        await client.greet()
        received = await client.text("raw_hear_mirrored", {"x": f"{path}/rows", "y": f"{path}/1.0"})
        assert heard_in(received) == {"x": value["rows"], "y": 1.50}
        assert await client.text(RETRIEVE, {"memory_path": f"{path}/name"}) == "yesterday's"
        assert await client.text(RETRIEVE, {"memory_path": f"{path}/1.0"}) == "1.5"


async def test_a_killed_gateway_loses_no_acknowledged_value(
    configured: Configured, open_lines: OpenLines, raws: dict[str, Any], tmp_path: Path
) -> None:
    config = configured(raws, limits={"spool_bytes": 1024})
    async with open_lines(config) as client:
        await client.greet()
        paths = [await store(client, value) for value in (VALUE, LARGE)]
        client.process.kill()
    async with open_lines(config) as client:
        await client.greet()
        for path in paths:
            assert await client.text(RETRIEVE, {"memory_path": f"{path}/name"}) == "yesterday's"
    assert {path.name for path in (tmp_path / "store").iterdir()} == {
        "blobs",
        "events.sqlite",
        "index.sqlite",
        "listings",
        "lock",
        "reserve",
    }


async def test_a_memory_store_reports_old_paths_as_unknown_after_a_restart(
    configured: Configured, open_lines: OpenLines, raws: dict[str, Any]
) -> None:
    config = configured(raws, store={"kind": "memory"})
    async with open_lines(config) as client:
        await client.greet()
        path = await store(client, VALUE)
    async with open_lines(config) as client:
        await client.greet()
        for tool, arguments in ((RETRIEVE, {"memory_path": path}), ("raw_hear_mirrored", {"x": path})):
            assert f'No value is stored under "{path}"' in await client.text(tool, arguments)


async def test_a_path_of_a_removed_tool_still_resolves(
    configured: Configured, open_lines: OpenLines, raws: dict[str, Any], raw: Any
) -> None:
    async with open_lines(configured(raws)) as client:
        await client.greet()
        path = await store(client, VALUE)
    only_hearing = {"raw": raw(tools={"allow": ["hear"]}, overrides={"hear": {"capture": "never"}})}
    async with open_lines(configured(only_hearing)) as client:
        await client.greet()
        received = await client.text("hear_mirrored", {"x": f"{path}/name"})
        assert heard_in(received) == {"x": "yesterday's"}


async def test_a_value_expired_before_the_restart_is_reported_as_expired(
    configured: Configured, open_lines: OpenLines, raws: dict[str, Any], tmp_path: Path
) -> None:
    config = configured(raws)
    async with open_lines(config) as client:
        await client.greet()
        path = await store(client, VALUE)
    with closing(sqlite3.connect(tmp_path / "store" / "index.sqlite")) as index:
        index.execute("UPDATE entries SET expires = 1")
        index.commit()
    async with open_lines(config) as client:
        await client.greet()
        gone = await client.text("raw_hear_mirrored", {"x": path})
        assert f'The value of "{path}" expired at' in gone
        assert "tool \"say\" of upstream 'raw'" in gone


async def test_a_value_of_one_call_command_is_found_by_the_next(
    configured: Configured, run: Run, raws: dict[str, Any]
) -> None:
    config = str(configured(raws, store={"kind": "disk"}))
    result = json.dumps({"content": [], "structuredContent": VALUE})
    stored = await run("call", "--config", config, "raw_say_mirrored", "--arg", f"result={json.dumps(result)}")
    assert stored.code == 0, stored.err
    path = path_in(stored.out)
    found = await run("call", "--config", config, RETRIEVE, "--arg", f"memory_path={path}/name")
    assert (found.code, found.out) == (0, "yesterday's\n"), found.err
    received = await run("call", "--config", config, "raw_hear_mirrored", "--arg", f"x={path}/name")
    assert heard_in(received.out) == {"x": "yesterday's"}


async def test_over_http_and_for_single_calls_nothing_is_stored_by_default(
    configured: Configured, run: Run, raws: dict[str, Any], tmp_path: Path
) -> None:
    config = str(configured(raws))
    result = json.dumps({"content": [], "structuredContent": VALUE})
    assert (
        await run("call", "--config", config, "raw_say_mirrored", "--arg", f"result={json.dumps(result)}")
    ).code == 0
    assert [one.name for one in (tmp_path / "store").iterdir()] == ["listings"]


async def test_by_default_values_are_in_the_users_data_folder(
    configured: Configured, open_lines: OpenLines, raws: dict[str, Any], tmp_path: Path
) -> None:
    config = configured(raws, store={"path": None})
    environ = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "data"), "HOME": str(tmp_path)}
    async with open_lines(config, env=environ) as client:
        await client.greet()
        await store(client, VALUE)
        assert len(list(tmp_path.rglob("index.sqlite"))) == 1


async def test_an_unusable_default_folder_falls_back_to_memory(
    configured: Configured, open_lines: OpenLines, run: Run, raws: dict[str, Any], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    environ = {**os.environ, "XDG_DATA_HOME": str(tmp_path / "file"), "HOME": str(tmp_path / "file")}
    async with open_lines(configured(raws, store={"path": None}), env=environ) as client:
        await client.greet()
        path = await store(client, VALUE)
        assert await client.text(RETRIEVE, {"memory_path": f"{path}/name"}) == "yesterday's"
    assert b"keeps values in memory" in b"".join(client.stderr)
    refused = await run("serve", "--config", str(configured(raws, store={"path": str(tmp_path / "file" / "x")})))
    assert refused.code == 2
    assert "The store in" in refused.err


async def test_a_gateway_whose_program_was_removed_says_that_it_must_restart(
    configured: Configured, raws: dict[str, Any], tmp_path: Path
) -> None:
    installed = tmp_path / "installed"
    shutil.copytree(Path(mcp_mirror.__file__).parent, installed / "mcp_mirror")
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    command = ("-m", "mcp_mirror", "serve", "--config", str(configured(raws)))
    async with run_command(start_executable, *command, command=sys.executable, env=environment) as client:
        await client.greet()
        await client.request("tools/list")
        shutil.rmtree(installed)  # as an upgrade does
        answer = json.loads(await client.call("raw_hear_mirrored"))
    assert "was upgraded or removed while this gateway runs. Restart" in answer["error"]["message"]
    assert b"was upgraded or removed" in b"".join(client.stderr)
