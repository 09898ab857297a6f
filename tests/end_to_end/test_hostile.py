"""A hostile upstream: each attack gets a named error or passes unchanged, and other clients are not affected."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from notices import path_in

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Lines, OpenClient

ROOT = Path(__file__).parents[2]
BOUNDS = {
    "max_message_bytes": "3MiB",
    "spool_bytes": "1MiB",
    "max_envelope_bytes": "256KiB",
    "max_queued_notification_bytes": "1MiB",
    "max_input_requests": 10,
}
FOREIGN = "say-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"
MEMORY = 400 << 20
"""Bytes that the gateway may have needed at its most."""

ATTACKS: list[tuple[str, dict[str, Any], str]] = [
    ("giant", {"size": 4_000_000}, "over `limits.max_message_bytes`"),
    ("giant", {"size": 2_000_000}, '"giant-[0-9a-f-]{36}"\n.*text, 2 MB'),
    ("deep", {"levels": 2000}, "nested too deep: .* more than 700 levels .`limits.max_depth`"),
    ("deep", {"levels": 500}, '"deep-[0-9a-f-]{36}"\n'),
    ("giant_news", {"size": 600_000}, "^done$"),
    ("flood", {"times": 3000}, "^done$"),
    ("interrogate", {"times": 4000}, "^done$"),
    ("confuse", {}, "^done$"),
    ("trick", {}, "^done$"),
    ("ask_forged", {}, "'hostile'|^$"),
    ("drip", {"pause": 0.001}, "^done$"),
    ("drip", {"pause": 0.03}, "did not answer 'drip' within 2 s \\(`timeout`\\); it may have had effects"),
    ("cyclic", {"a": {"a": {"b": 1}}}, "^done$"),
    ("remote", {"a": 1, "b": 2}, "^done$"),
    ("regular", {"a": "a" * 50 + "!"}, "^done$|does not match|is not valid"),
    ("mutate", {}, "^done$"),
]
"""A tool, its arguments, and what the model reads."""


@pytest.fixture
def upstreams(raw: Any) -> dict[str, Any]:
    attacker = {"command": sys.executable, "args": ["-m", "tests.end_to_end.servers.hostile", "ok"], "cwd": str(ROOT)}
    return {"good": raw(), "hostile": {**attacker, "timeout": 20, "overrides": {"drip": {"timeout": 2}}}}


def twin(names: set[str], tool: str) -> str:
    """A tool of the hostile upstream's, whose name another may have too."""
    return f"hostile_{tool}_mirrored" if f"hostile_{tool}_mirrored" in names else f"{tool}_mirrored"


async def listed(client: Lines) -> dict[str, Any]:
    tools = json.loads(await client.request("tools/list"))["result"]["tools"]
    return {tool["name"]: tool for tool in tools}


async def read_text(client: Lines, tool: str, arguments: Any) -> str:
    answer = json.loads(await client.call(tool, json.dumps(arguments)))
    content = answer["result"]["content"] if "result" in answer else [{"text": answer["error"]["message"]}]
    return "\n".join(block.get("text", "") for block in content)


async def test_every_attack_gets_an_error_or_passes_and_others_continue(
    open_client: OpenClient, upstreams: dict[str, Any]
) -> None:
    async with open_client(upstreams, limits=BOUNDS) as client:
        names = set(await listed(client))
        stored = json.dumps({"content": [], "structuredContent": {"secret": "f0rty-two"}})
        path = path_in(await client.text("good_say_mirrored", {"result": stored}))
        unmet = []
        for tool, arguments, wanted in ATTACKS:
            answer = await read_text(client, twin(names, tool), arguments)
            if not re.search(wanted, answer) or "forged" in answer:
                unmet.append((tool, answer[:500]))
            after = [
                await read_text(client, twin(names, "done"), {}),
                await client.text("good_hear_mirrored", {"text": "hello"}),
                await client.text("retrieve_final_answer_from_memory", {"memory_path": path}),
            ]
            assert after[0] == "done", tool
            assert ["hello" in after[1], "f0rty-two" in after[2]] == [True, True], tool
        assert unmet == []
        assert _peak(client.process.pid) < MEMORY


async def test_a_hostile_server_cannot_replace_another_tool(open_client: OpenClient, upstreams: dict[str, Any]) -> None:
    async with open_client(upstreams, limits=BOUNDS) as client:
        tools = await listed(client)
        assert all(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name) for name in tools)
        assert len({name.lower() for name in tools}) == len(tools)
        assert not [name for name in tools if name.startswith(("nested", "wordy", "nnnn"))]
        assert "evil" not in tools["memory_read"]["description"]
        assert "evil" not in tools["retrieve_final_answer_from_memory"]["description"]
        reply = await client.text("good_say_mirrored", {"result": '{"content":[],"structuredContent":{"from":"good"}}'})
        path = path_in(reply)
        assert '"good"' in await client.text("memory_read", {"memory_path": path})
        status = json.loads(await client.request("resources/read", '{"uri":"mcp-mirror://upstreams"}'))
        statuses = json.loads(status["result"]["contents"][0]["text"])["upstreams"]
        problems = " ".join(next(one for one in statuses if one["name"] == "hostile").get("problems", ()))
        assert not re.search("[\u202e\x00\x1b]", problems)


async def test_texts_like_notices_in_a_result_are_data(open_client: OpenClient, upstreams: dict[str, Any]) -> None:
    async with open_client(upstreams, limits=BOUNDS) as client:
        names = set(await listed(client))
        stored = json.dumps({"content": [], "structuredContent": {"secret": "f0rty-two"}})
        path = path_in(await client.text("good_say_mirrored", {"result": stored}))
        answer = await read_text(client, twin(names, "forge"), {"path": f"literal:{FOREIGN}", "whole": False})
        assert FOREIGN in answer
        answer = await client.text("good_hear_mirrored", {"text": FOREIGN})
        assert "no value" in answer.lower() or "unknown" in answer.lower() or "there is no" in answer.lower()
        forged = await client.text(twin(names, "forge"), {"path": f"literal:{path}", "whole": True})
        own = path_in(forged)
        assert own.startswith("forge-")
        for key in ("path", "notice", "literal", "uri"):
            received = await client.text("good_hear_mirrored", {"text": f"{own}/{key}"})
            assert "f0rty-two" not in received  # the content of a value is never resolved
        hidden = await client.text(twin(names, "hide"))
        assert not re.search("[\u202e\x1b\u200b]", hidden)
        assert len(hidden) < 2000


def _peak(pid: int) -> int:
    """The peak memory of a process in bytes; 0 if unknown."""
    status = Path(f"/proc/{pid}/status")
    found = re.search(r"VmHWM:\s+(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) << 10 if found else 0


async def test_members_that_are_nested_too_deep_for_the_sdk_are_left_out(open_client: OpenClient) -> None:
    server = str(Path(__file__).parent / "servers" / "deep.py")
    async with open_client({"deep": {"command": sys.executable, "args": [server]}}) as client:
        await listed(client)
        assert json.loads(await client.request("resources/subscribe", '{"uri":"deep://a"}'))["result"] == {}
        for _ in range(3):
            assert await read_text(client, "nest_mirrored", {}) == "done"
