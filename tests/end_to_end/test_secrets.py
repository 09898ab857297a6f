"""Secrets of an upstream's configuration never appear in answers or logs, for all failures and log levels."""

from __future__ import annotations

import json
import re
from contextlib import AsyncExitStack
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Listening, OpenClient, OpenLines, Run

CANARY = 'c4nary/+&="é\\ of gold'
LINES = "first-l1ne-of-key\nsecond-l1ne-of-key"
HIDDEN = ("c4nary", "l1ne", "f1agvalue", "us3rpass", "qu3ry", "tok3n")
HANGING = ("garbage", "half", "silent")
BEHAVIOURS = ("ok", "exits", "leaks", "leaks_long", "refuses", "garbage", "half", "silent")


def found(text: str | bytes) -> list[str]:
    text = text if isinstance(text, str) else text.decode("utf-8", "replace")
    return [hidden for hidden in HIDDEN if hidden in text]


@pytest.fixture
def leaky_upstreams(raw: Any) -> dict[str, Any]:
    """Upstreams that were given secrets and fail in every way."""
    secret = {"env": {"SECRET": CANARY, "KEY": LINES}}
    args = ("--key", "tok3n-in-argument", "--flag=f1agvalue", "postgres://me:us3rpass@db/x")
    return {
        **{
            behaviour: raw(behaviour, *args) | secret | ({"startup_timeout": 1} if behaviour in HANGING else {})
            for behaviour in BEHAVIOURS
        },
        "gone": {"url": f"http://us3rpass:us3rpass@127.0.0.1:9/tok3n-tok3n-tok3n-1/mcp?key=qu3ry-{HIDDEN[0]}"},
        "nonsense": {"url": "http://[::1/?key=qu3ry", "headers": {"x": "tok3n"}, "enabled": False},
        "nohost": {"url": "http://no-such-host.invalid/?key=qu3ry-x"},
        "no_command": {"command": "no-such-command", "args": ["x", "tok3n-in-argument"], "env": {"SECRET": CANARY}},
    }


async def test_no_secret_comes_out_of_check(configured: Configured, run: Run, leaky_upstreams: Any) -> None:
    ended = await run("check", "-vv", "--config", str(configured(leaky_upstreams)))
    assert ended.code == 1
    assert "leaks: down" in ended.out
    assert "error output: " in ended.err
    assert not found(ended.out + ended.err), ended.out + ended.err


async def test_no_secret_comes_out_on_the_wire_or_in_the_log(
    configured: Configured, open_lines: OpenLines, leaky_upstreams: Any
) -> None:
    async with open_lines(configured(leaky_upstreams), "-vv") as client:
        answers = [json.dumps(await client.greet())]
        methods = ("tools/list", "resources/list", "no/such/method")
        answers += [(await client.request(method)).decode() for method in methods]
        answers.append((await client.request("resources/read", '{"uri":"mcp-mirror://upstreams"}')).decode())
        tools = ("say_mirrored", "leaks_mirrored", "hear_mirrored", "refuse_mirrored", "die_mirrored")
        answers += [await client.text(tool) for tool in tools]
    answers.append(b"".join(client.stderr).decode())
    assert re.search(r"Servers? (?:\w+, )*leaks(?:, \w+)* (?:is|are) down: ", answers[0])
    assert any("refused 'refuse': no such key: ***" in text for text in answers)
    assert not [text for text in answers if found(text)]


async def test_no_secret_comes_out_of_http_servers_that_refuse(
    configured: Configured, run: Run, listening: Listening
) -> None:
    async with AsyncExitStack() as stack:
        upstreams: dict[str, Any] = {}
        for status in ("301", "307", "401", "403", "404", "500"):
            location = ("--location", "http://127.0.0.1:9/?key=qu3ry-c4nary") if status.startswith("3") else ()
            port = await stack.enter_async_context(listening("raw_http.py", "--status", status, *location))
            url = f"http://us3r:us3rpass@127.0.0.1:{port}/tok3n-tok3n-tok3n-1?key=qu3ry-c4nary"
            endpoint = {"url": url, "headers": {"authorization": "Bearer tok3n-c4nary"}}
            upstreams |= {f"http{status}": endpoint, f"sse{status}": endpoint | {"transport": "sse"}}
        ended = await run("check", "-vv", "--config", str(configured(upstreams)))
        assert ended.code == 1
        assert not found(ended.out + ended.err), ended.out + ended.err
        assert all(f"{name}: down" in ended.out for name in upstreams)


async def test_a_secret_that_a_server_quotes_in_an_error_is_redacted(
    configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening("raw_http.py"))
        url = f"http://127.0.0.1:{port}/mcp?key=qu3ry-c4nary"
        client = await stack.enter_async_context(open_lines(configured({"raw": {"url": url}}), "-vv"))
        await client.greet()
        assert "hello" in await client.text("hear_mirrored", {"text": "hello"})
        answer = await client.text("nothing_mirrored")
        assert "did not answer 'nothing'" in answer
        assert not found(answer)
    assert not found(b"".join(client.stderr))


async def test_a_refusal_is_cut_behind_its_secrets_not_within_them(open_client: OpenClient, raw: Any) -> None:
    secret = {"env": {"SECRET": CANARY}, "startup_timeout": 5}
    upstreams: dict[str, Any] = {f"up{pad}": raw("ok", "--pad", str(pad)) | secret for pad in range(475, 490, 3)}
    upstreams |= {f"no{pad}": raw("refuses", "--pad", str(pad)) | secret for pad in (*range(281, 293, 3), 483, 489)}
    async with open_client(upstreams, limits={"spool_bytes": 1000}) as client:
        answers = [(await client.request("resources/read", '{"uri":"mcp-mirror://upstreams"}')).decode()]
        for name, more in product((name for name in upstreams if name.startswith("up")), (0, 5000)):
            answers.append(await client.text(f"{name}_refuse_mirrored", {"more": more}))  # in memory, and in a file
            assert "no such key" in answers[-1]
    assert "bad key" in answers[0]
    assert not [text for text in answers if "c4n" in text]
