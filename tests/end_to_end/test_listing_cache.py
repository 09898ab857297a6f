"""The first list after a start: complete at once from the last run, and corrected by what upstreams list now."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Lines, OpenLines, Run

CHANGED = b"notifications/tools/list_changed"


async def names(client: Lines) -> list[str]:
    tools = json.loads(await client.request("tools/list"))["result"]["tools"]
    return [tool["name"] for tool in tools if tool["name"].endswith("_mirrored")]


def tool(*listed: str) -> str:
    return json.dumps([{"name": name, "inputSchema": {"type": "object"}} for name in listed])


@pytest.fixture
def slow(raw: Any, tmp_path: Path) -> tuple[dict[str, Any], Path, Path]:
    """An upstream that answers once there is a file, the file, and the file with its tools."""
    gate, tools = tmp_path / "gate", tmp_path / "tools.json"
    tools.write_text(tool("first", "second"))
    return raw("ok", "--gate", str(gate), "--tools", str(tools)), gate, tools


async def test_check_fills_the_cache_from_which_the_first_list_comes(
    slow: Any, configured: Configured, run: Run, open_lines: OpenLines, tmp_path: Path
) -> None:
    upstream, gate, tools = slow
    config = configured({"slow": upstream})
    gate.touch()
    assert (await run("check", "--config", str(config))).code == 0
    (file,) = (tmp_path / "store" / "listings").iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    gate.unlink()
    tools.write_text(tool("second", "third"))
    async with open_lines(config) as client:
        await client.greet()
        assert await names(client) == ["first_mirrored", "second_mirrored"]
        status = json.loads(await client.request("tools/call", '{"name":"memory_list","arguments":{}}'))
        assert not status["result"].get("isError")
        gate.touch()
        while CHANGED not in (line := await client.receive()):
            assert line
        assert await names(client) == ["second_mirrored", "third_mirrored"]


async def test_after_check_the_first_list_is_complete_for_every_client(
    slow: Any, configured: Configured, run: Run, open_lines: OpenLines
) -> None:
    upstream, gate, _ = slow
    config = configured({"slow": upstream})
    gate.touch()
    assert (await run("check", "--config", str(config))).code == 0
    gate.unlink()
    async with open_lines(config) as client:
        greeting = await client.greet(roots={}, sampling={}, elicitation={})
        assert "Server slow: I am raw." in greeting["instructions"]
        assert await names(client) == ["first_mirrored", "second_mirrored"]


async def test_clients_with_other_capabilities_have_listings_of_their_own(
    slow: Any, configured: Configured, run: Run, open_lines: OpenLines, tmp_path: Path
) -> None:
    upstream, gate, _ = slow
    upstream["args"].append("--rooted")
    config, without = configured({"slow": upstream}), ["first_mirrored", "second_mirrored"]
    gate.touch()
    assert (await run("check", "--config", str(config))).code == 0
    async with open_lines(config) as client:
        await client.greet(roots={})
        assert await names(client) == [*without, "root_mirrored"]
    assert len(list((tmp_path / "store" / "listings").iterdir())) == 2
    gate.unlink()
    cases: tuple[tuple[dict[str, Any], list[str]], ...] = (({"roots": {}}, [*without, "root_mirrored"]), ({}, without))
    for capabilities, listed in cases:
        async with open_lines(config) as client:
            await client.greet(**capabilities)
            assert await names(client) == listed


async def test_check_keeps_the_listing_of_an_upstream_with_resources(
    raw: Any, configured: Configured, run: Run, tmp_path: Path
) -> None:
    config = configured({"raw": raw("ok", "--shelf")})
    assert (await run("check", "--config", str(config))).code == 0
    assert len(list((tmp_path / "store" / "listings").iterdir())) == 1


async def test_a_call_waits_for_its_upstream_and_meets_its_tools_of_now(
    slow: Any, configured: Configured, run: Run, open_lines: OpenLines
) -> None:
    upstream, gate, tools = slow
    config = configured({"slow": upstream})
    gate.touch()
    await run("check", "--config", str(config))
    gate.unlink()
    tools.write_text(tool("second"))
    async with open_lines(config) as client:
        await client.greet()
        assert await names(client) == ["first_mirrored", "second_mirrored"]
        for identity, name in ((101, "second_mirrored"), (102, "first_mirrored")):
            call = {"jsonrpc": "2.0", "id": identity, "method": "tools/call"}
            await client.send(json.dumps({**call, "params": {"name": name, "arguments": {"text": "hello"}}}))
        gate.touch()
        answers: dict[int, str] = {}
        while len(answers) < 2:
            message = json.loads(await client.receive())
            if "id" in message:
                answers[message["id"]] = message["result"]["content"][0]["text"]
        assert "hello" in answers[101]
        assert "Unknown tool 'first_mirrored'" in answers[102]


async def test_tools_of_an_upstream_are_listed_until_it_fails(
    raw: Any, configured: Configured, run: Run, open_lines: OpenLines, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    bad = raw("ok", "--gate", str(gate)) | {"startup_timeout": 2}
    config = configured({"bad": bad})
    await run("check", "--config", str(config))
    gate.unlink()
    async with open_lines(config) as client:
        await client.greet()
        assert "say_mirrored" in await names(client)
        answer = await client.text("say_mirrored", {"result": "{}"})
        assert "Upstream 'bad' is down: It did not connect and list its tools within 2 s." in answer
        assert await names(client) == []


async def test_a_cache_that_cannot_be_read_is_not_used(
    raw: Any, configured: Configured, run: Run, open_lines: OpenLines, tmp_path: Path
) -> None:
    config = configured({f"raw{place}": raw() for place in range(4)})
    await run("check", "--config", str(config))
    files = sorted((tmp_path / "store" / "listings").iterdir())
    for file, damage in zip(files, ("{", "", '{"version":7}', "x" * 9_000_000), strict=True):
        file.write_text(damage)
    async with open_lines(config) as client:
        await client.greet()
        assert {f"raw{place}_say_mirrored" for place in range(4)} <= set(await names(client))


async def test_a_cache_that_cannot_be_written_is_reported_once(
    raw: Any, configured: Configured, open_lines: OpenLines, tmp_path: Path
) -> None:
    config = configured({name: raw() for name in ("one", "two", "three")})
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "listings").write_text("a file")
    async with open_lines(config) as client:
        await client.greet()
        assert len(await names(client)) > 2
    reported = [line for line in client.stderr if b"Listings of upstreams cannot be kept in" in line]
    assert len(reported) == 1, client.stderr
    assert b"Until that is corrected, each start waits" in reported[0]


async def test_the_name_of_a_kept_listing_depends_on_no_secret(
    raw: Any, configured: Configured, run: Run, tmp_path: Path
) -> None:
    secret = "c4nary-s3cret-v4lue"
    config = configured({"raw": raw("ok", f"--name={secret}") | {"env": {"SECRET": secret}}})
    await run("check", "--config", str(config))
    (file,) = (tmp_path / "store" / "listings").iterdir()
    config.write_text(config.read_text().replace(secret, "another-s3cret-v4lue"))
    await run("check", "--config", str(config))
    assert list((tmp_path / "store" / "listings").iterdir()) == [file]


async def test_addresses_in_arguments_tell_kept_listings_apart(
    raw: Any, configured: Configured, run: Run, tmp_path: Path
) -> None:
    counts: list[int] = []
    for address in ("https://one.example/mcp", "https://two.example/mcp", "https://ann:pw@two.example/mcp?key=k3y"):
        config = configured({"bridge": raw("ok", address)})
        assert (await run("check", "--config", str(config))).code == 0
        counts.append(len(list((tmp_path / "store" / "listings").iterdir())))
        secret = config.read_text().replace("pw@", "other@").replace("k3y", "0ther")
        config.write_text(secret)
        assert (await run("check", "--config", str(config))).code == 0
        assert len(list((tmp_path / "store" / "listings").iterdir())) == counts[-1]
    assert counts == [1, 2, 3]
