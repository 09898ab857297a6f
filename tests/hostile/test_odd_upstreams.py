"""Upstreams whose messages do not conform to MCP: only their own requests fail, with the cause."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from tests.hostile.conftest import MIB
from tests.walk.conftest import until

if TYPE_CHECKING:
    from tests.hostile.conftest import Budget
    from tests.walk.conftest import Configured, OpenLines, Run

OLD: Final = "2025-11-25"
NEW: Final = "2026-07-28"
Odd = Callable[..., dict[str, Any]]


def result(text: str) -> str:
    return f'{{"jsonrpc":"2.0","id":$id,"result":{text}}}'


@pytest.fixture
def odd(tmp_path: Path) -> Odd:
    """An upstream that writes chosen lines; see `servers/odd.py`."""

    def upstream(version: str, **lines: list[str]) -> dict[str, Any]:
        file = tmp_path / "lines.json"
        file.write_text(json.dumps(lines))
        script = str(Path(__file__).parent / "servers" / "odd.py")
        return {"command": sys.executable, "args": ["-S", script, version, str(file)]}

    return upstream


@pytest.mark.parametrize("ending", ["{}", '{"_meta":5}', '{"resultType":"weird","_meta":{}}'])
async def test_a_subscription_that_ends_with_an_odd_result_ends_nothing_else(
    configured: Configured, open_lines: OpenLines, odd: Odd, ending: str
) -> None:
    config = configured({"odd": odd(NEW, **{"subscriptions/listen": [result(ending)]})})
    async with open_lines(config) as client:
        await client.greet()
        assert await client.text("odd_mirrored") == "hello"
        assert "result" in json.loads(await client.request("resources/subscribe", '{"uri":"odd://a"}'))
        # The gateway renews the subscription after a second, and then reports one update.
        while b"notifications/resources/updated" not in (line := await client.receive()):
            assert line, b"".join(client.stderr)
        assert await client.text("odd_mirrored") == "hello"
        assert b"is down" not in b"".join(client.stderr)


@pytest.mark.parametrize("member", ["nextCursor", "other"])
async def test_a_list_keeps_only_the_items_of_its_pages(
    configured: Configured, open_lines: OpenLines, odd: Odd, budget: Budget, member: str
) -> None:
    page = {"resources": [{"uri": "odd://$count"}], "nextCursor": "$count", member: "$count" + "x" * 900_000}
    config = configured(
        {"odd": odd(OLD, **{"resources/list": [result(json.dumps(page))]})}, limits={"max_listing_pages": 200}
    )
    async with open_lines(config) as client:
        await client.greet()
        async with budget(client, f"pages of a list: {member}", "900 kB each", memory=64 * MIB) as row:
            listed = json.loads(await client.request("resources/list"))["result"]["resources"]
            row.outcome = "cut"
        assert sum(resource["uri"].startswith("odd://") for resource in listed) == 200
        await until(lambda: b"lists more resources than `limits.max_listing_pages`" in b"".join(client.stderr))


DEEP: Final = "[" * 600 + "]" * 600
ERRORS: Final = {
    '"error":{"code":"ENOENT","message":"no such file"}': "refused 'odd': no such file (error -32603).",
    '"error":{"message":"no such file"}': "refused 'odd': no such file (error -32603).",
    '"error":{"code":-5}': "refused 'odd': It gave no message (error -5).",
    '"error":"no such file"': "refused 'odd': no such file (error -32603).",
    f'"error":{{"code":1,"message":"no such file","data":{DEEP}}}': "refused 'odd': no such file (error 1).",
    '"result":null,"error":{"code":1,"message":"no such file"}': "refused 'odd': no such file (error 1).",
    '"result":{"content":[{"type":"text","text":"hello"}]},"error":null': "hello",
    '"result":{"content":[{"type":"text","text":"hello"}],"isError":null}': "hello",
    '"result":{"content":null,"structuredContent":{"a":"hello"}}': "hello",
    '"result":5': "sent an invalid answer to 'odd'. The message is not a JSON-RPC object: Expected `object",
    '"result":null': "sent an invalid answer to 'odd'. The message does not conform to JSON-RPC.",
}


@pytest.mark.parametrize("answer", ERRORS)
@pytest.mark.parametrize("size", [0, 2 * MIB], ids=["small", "large"])
async def test_an_odd_answer_is_read_as_far_as_it_conforms(
    configured: Configured, open_lines: OpenLines, odd: Odd, answer: str, size: int
) -> None:
    line = f'{{"jsonrpc":"2.0","id":$id,"padding":"{"x" * size}",{answer}}}'
    async with open_lines(configured({"odd": odd(OLD, odd=[line], **{"prompts/get": [line]})})) as client:
        await client.greet()
        expected = ERRORS[answer] if answer != '"result":null' or not size else "neither a result nor an error"
        assert expected in await client.text("odd_mirrored")
        if "hello" not in expected:
            message = json.loads(await client.request("prompts/get", '{"name":"p"}'))["error"]["message"]
            assert message.rstrip(".") in expected or message.startswith(
                "Upstream 'odd' sent an invalid answer to 'p'. "
            )


@pytest.mark.parametrize("padding", [0, 40 * MIB])
async def test_an_odd_answer_to_the_handshake_is_named_at_once(
    configured: Configured, run: Run, odd: Odd, padding: int
) -> None:
    line = f'{{"jsonrpc":"2.0","id":$id,"result":null,"padding":"{"x" * padding}"}}'
    reason = (
        "It sent an invalid answer. The message of 41,94"
        if padding
        else "It sent an invalid answer. The message does not conform to JSON-RPC."
    )
    checked = await run("check", "--config", str(configured({"odd": odd(OLD, initialize=[line])})))
    assert reason in checked.err
    assert "within" not in checked.err
