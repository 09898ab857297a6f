"""Upstreams whose messages do not conform to MCP: only their own requests fail, with the cause."""

from __future__ import annotations

import gc
import json
import sys
from collections.abc import AsyncIterator, Callable
from functools import cache, partial
from itertools import cycle
from pathlib import Path
from time import monotonic, thread_time
from typing import TYPE_CHECKING, Any, Final

import httpx2
import pytest
from http_sessions import HEADERS, META, open_session
from samples import sample
from starlette.requests import Request
from tests.auth.conftest import serving_gateway
from tests.end_to_end.conftest import BOUND
from tests.hostile.conftest import MIB
from tests.load import measure_pause, slowness
from waiting import until

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Connect, Lines, OpenLines, Run, Serve
    from tests.hostile.conftest import Budget

OLD: Final = "2025-11-25"
NEW: Final = "2026-07-28"
Odd = Callable[..., dict[str, Any]]


def result(text: str) -> str:
    return f'{{"jsonrpc":"2.0","id":$id,"result":{text}}}'


@pytest.fixture
def odd(tmp_path: Path) -> Odd:
    """An upstream that writes chosen lines; see `servers/odd.py`."""
    return partial(odd_upstream, tmp_path)


def odd_upstream(folder: Path, version: str, **lines: list[str]) -> dict[str, Any]:
    file = folder / "lines.json"
    file.write_text(json.dumps(lines))
    script = str(Path(__file__).parent / "servers" / "odd.py")
    return {"command": sys.executable, "args": ["-S", script, version, str(file)]}


def shared(name: str) -> Callable[[Any], Any]:
    """Run the cases of a test in one process, before one gateway of the module."""

    def mark(test: Any) -> Any:
        return pytest.mark.asyncio(loop_scope="module")(pytest.mark.xdist_group(name)(test))

    return mark


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Odd:
    """An upstream whose lines differ by the argument `case` of a call; the same one for the same name."""

    @cache
    def folder_of(_name: str) -> Path:
        return tmp_path_factory.mktemp("cases")

    return lambda name, version, lines: odd_upstream(folder_of(name), version, **lines)


@pytest.mark.alone
@pytest.mark.slow
async def test_the_end_of_many_subscriptions_does_not_stall_others(configured: Configured, odd: Odd) -> None:
    config = configured({"odd": odd(NEW)}, limits={"subscriptions_per_principal": 10_000})
    async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:

        async def send(method: str, **params: Any) -> httpx2.Response:
            headers = {**HEADERS, "mcp-protocol-version": NEW, "mcp-method": method, "mcp-name": "hear_mirrored"}
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
            return await client.send(client.build_request("POST", served.url, headers=headers, json=body), stream=True)

        for number in range(5):
            uris = [f"odd://{number}/{below}" for below in range(1000)]
            stream = await send("subscriptions/listen", notifications={"resourceSubscriptions": uris})

        async def leave() -> None:
            await stream.aclose()
            assert b"hello" in await (await send("tools/call", name="hear_mirrored", arguments={})).aread()

        assert await measure_pause(leave()) < 0.1 * slowness()  # before: 0.4


@pytest.mark.parametrize("method", ["resources/subscribe", "resources/read"])
async def test_a_request_does_not_stay_in_memory_after_its_response(
    configured: Configured, odd: Odd, method: str
) -> None:
    """The garbage of thousands of requests stalls others when it is collected, and a subscription lasts for long."""
    config = configured({"odd": odd(OLD)})
    async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        session = await open_session(client, served.url)

        async def send(number: int) -> None:
            body = {"jsonrpc": "2.0", "id": number, "method": method, "params": {"uri": f"odd://{number}"}}
            response = await client.post(served.url, json=body, headers=HEADERS | session)
            assert "result" in response.text

        def count_requests() -> int:
            return sum(isinstance(one, Request) for one in gc.get_objects())

        await send(1)
        gc.collect()
        before = count_requests()
        gc.disable()
        try:
            for number in range(2, 12):
                await send(number)
            assert count_requests() <= before + 1  # the last one may not be over
        finally:
            gc.enable()


@pytest.mark.slow
async def test_an_update_costs_the_same_however_many_subscriptions(configured: Configured, odd: Odd) -> None:
    update = '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"odd://other/%d"}}'
    lines = [*(update % number for number in range(4000)), result('{"content":[]}')]
    config = configured({"odd": odd(OLD, odd=lines)}, limits={"subscriptions_per_principal": 10_000})
    async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:

        async def send(method: str, **params: Any) -> httpx2.Response:
            name = {"mcp-name": params["name"]} if "name" in params else {}
            headers = {**HEADERS, "mcp-protocol-version": NEW, "mcp-method": method, **name}
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": META}}
            return await client.send(client.build_request("POST", served.url, headers=headers, json=body), stream=True)

        async def measure_updates() -> float:
            began = thread_time()
            assert b"result" in await (await send("tools/call", name="odd_mirrored", arguments={})).aread()
            return thread_time() - began

        before, streams = await measure_updates(), list[AsyncIterator[bytes]]()
        for number in range(3):
            uris = [f"odd://{number}/{below}" for below in range(1000)]
            response = await send("subscriptions/listen", notifications={"resourceSubscriptions": uris})
            streams.append(response.aiter_bytes())
            assert b"acknowledged" in await anext(streams[-1])
        # The least of three: the gateway may still subscribe at the upstream.
        assert min([await measure_updates() for _ in range(3)]) < 5 * before  # before: 70 times


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


async def test_an_update_names_the_uri_of_its_subscription(
    configured: Configured, open_lines: OpenLines, odd: Odd
) -> None:
    template = '{"resourceTemplates":[{"uriTemplate":"odd://x/{id}","name":"x"}]}'
    updated = '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"odd://x/1"}}'
    upstream = odd(OLD, odd=[updated, result('{"content":[]}')], **{"resources/templates/list": [result(template)]})
    async with open_lines(configured({"one": upstream, "two": upstream})) as client:
        await client.greet()
        await client.request("resources/subscribe", '{"uri":"two+odd://x/1"}')
        await client.send('{"jsonrpc":"2.0","id":9,"method":"tools/call","params":{"name":"two_odd_mirrored"}}')
        while b"notifications/resources/updated" not in (line := await client.receive()):
            assert line, b"".join(client.stderr)
        assert json.loads(line)["params"]["uri"] == "two+odd://x/1"


async def test_requests_for_one_subscription_take_effect_in_order(
    configured: Configured, open_lines: OpenLines, odd: Odd
) -> None:
    updated = '{"jsonrpc":"2.0","method":"notifications/resources/updated","params":{"uri":"odd://%s"}}'
    lines = {"resources/unsubscribe": [result("{}")], "odd": [updated % "a", updated % "b", result('{"content":[]}')]}
    async with open_lines(configured({"odd": odd(OLD, **lines)})) as client:
        await client.greet()
        for number, method in enumerate(("subscribe", "unsubscribe"), 100):
            request = f'"id":{number},"method":"resources/{method}","params":{{"uri":"odd://a"}}'
            await client.send(f'{{"jsonrpc":"2.0",{request}}}')
        assert {json.loads(await client.receive())["id"] for _ in range(2)} == {100, 101}
        await client.request("resources/subscribe", '{"uri":"odd://b"}')
        await client.send('{"jsonrpc":"2.0","id":102,"method":"tools/call","params":{"name":"odd_mirrored"}}')
        while b"resources/updated" not in (line := await client.receive()):
            assert line, b"".join(client.stderr)
        assert json.loads(line)["params"]["uri"] == "odd://b"


@pytest.mark.parametrize("member", sample(["nextCursor", "other"], lambda member: member == "nextCursor"))
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


@pytest.mark.parametrize("cursor", ["", None])
async def test_a_list_with_an_empty_cursor_is_complete(
    configured: Configured, run: Run, odd: Odd, cursor: str | None
) -> None:
    page = {"tools": [{"name": "hear", "inputSchema": {"type": "object"}}], "nextCursor": cursor}
    checked = await run(
        "check", "--config", str(configured({"odd": odd(OLD, **{"tools/list": [result(json.dumps(page))]})}))
    )
    assert "hear_mirrored" in checked.out
    assert "limits" not in checked.err


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


@shared("odd_answers")
@pytest.mark.parametrize("answer", ERRORS)
@pytest.mark.parametrize("size", sample([0, 2 * MIB], lambda size: not size), ids=["small", "large"])
async def test_an_odd_answer_is_read_as_far_as_it_conforms(
    shared_lines: Any, cases: Odd, answer: str, size: int
) -> None:
    lines = {one: [f'{{"jsonrpc":"2.0","id":$id,"padding":"{"x" * size}",{one}}}'] for one in ERRORS}
    client: Lines = await shared_lines({"odd": cases(f"answers of {size}", OLD, lines)})
    expected = ERRORS[answer] if answer != '"result":null' or not size else "neither a result nor an error"
    assert expected in await client.text("odd_mirrored", {"case": answer})
    if "hello" not in expected:
        prompt = json.dumps({"name": "p", "arguments": {"case": answer}})
        message = json.loads(await client.request("prompts/get", prompt))["error"]["message"]
        assert message.rstrip(".") in expected or message.startswith("Upstream 'odd' sent an invalid answer to 'p'. ")


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


def ask(method: str = "elicitation/create", **params: Any) -> dict[str, Any]:
    return {"method": method, "params": params}


FORM: Final = ask(message="Who?", requestedSchema={"type": "object", "properties": {}})


TELL: Final = '{"jsonrpc":"2.0","id":$call,"result":{"content":[{"type":"text","text":$received}]}}'
"""The result of a call: the response to the upstream's request."""


def require(**members: Any) -> str:
    return result(json.dumps({"resultType": "input_required", **members}))


async def call_modern(client: Lines, **members: Any) -> dict[str, Any]:
    """Call the odd tool as a 2026-07-28 client with all capabilities; give the result."""
    capabilities: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
    meta = META | {"io.modelcontextprotocol/clientCapabilities": capabilities}
    answer = await client.request("tools/call", json.dumps({"name": "odd_mirrored", "_meta": meta, **members}))
    found: dict[str, Any] = json.loads(answer)["result"]
    return found


INPUTS: Final = {
    "a form without a type": (require(inputRequests={"a": ask(message="m", requestedSchema={})}), "MCP: `elicitation"),
    "a form without a message": (require(inputRequests={"a": ask(requestedSchema={"type": "object"})}), "MCP: `elici"),
    "sampling without messages": (require(inputRequests={"a": ask("sampling/createMessage")}), "MCP: `sampling/c"),
    "a list": (require(inputRequests=[FORM]), "MCP."),
    "a number as state": (require(inputRequests={"a": FORM}, requestState=5), "MCP."),
    "nothing": (require(), "MCP: neither `inputRequests` nor `requestState`."),
    "no request": (require(inputRequests={}), "MCP: neither `inputRequests` nor `requestState`."),
}


@shared("odd_inputs")
@pytest.mark.parametrize("kind", INPUTS)
async def test_an_odd_request_for_input_is_named(shared_lines: Any, cases: Odd, kind: str) -> None:
    lines = {one: [line] for one, (line, _) in INPUTS.items()}
    client: Lines = await shared_lines({"odd": cases("inputs", NEW, lines)}, greets=False)
    text = (await call_modern(client, arguments={"case": kind}))["content"][0]["text"]
    assert f"Upstream 'odd' requests input in a form that does not conform to {INPUTS[kind][1]}" in text


REQUESTS: Final = (ask(message="m"), ask(mode="url", message="m"), ask("sampling/createMessage"))


@shared("odd_requests")
@pytest.mark.parametrize("at", range(len(REQUESTS)))
async def test_an_upstream_learns_that_its_request_does_not_conform(shared_lines: Any, cases: Odd, at: int) -> None:
    lines = {str(key): [json.dumps({"jsonrpc": "2.0", "id": "q", **one})] for key, one in enumerate(REQUESTS)}
    client: Lines = await shared_lines({"odd": cases("requests", OLD, {**lines, "response": [TELL]})}, greets=False)
    received = (await call_modern(client, arguments={"case": str(at)}))["content"][0]["text"].partition("\n")[0]
    error = json.loads(received)["error"]
    assert (error["code"], error["message"]) == (
        -32602,
        f"The request does not conform to protocol version 2026-07-28: `{REQUESTS[at]['method']}`.",
    )


REFUSED: Final[dict[str, tuple[str, str]]] = {
    "bytes": ('{"content":{"name":"%s"}}' % ("x" * (8 * MIB)), "`result` has 8,388,631 bytes; the limit is 8,388,608."),
    "values": ('{"content":{"names":[%s0]}}' % ("0," * 20_000), "`result` has more than 20,000 members and items."),
    "levels": ('{"content":%s}' % ("[" * 300 + "]" * 300), "The message is nested too deep"),
    "message": ('{"content":{"name":"%s"}}' % ("x" * (17 * MIB)), "is over `limits.max_message_bytes`"),
    "syntax": ('{"content":}', "The message is not valid JSON"),
}
"""Answers of a client that the gateway refuses, and the reasons."""
RESPONSES: Final = ('{"jsonrpc":"2.0","id":%s,"result":%s}', '{"result":%s,"jsonrpc":"2.0","id":%s}')
"""The members of a response in the order of the SDK for Python, and in that for TypeScript."""


def write_response(identity: Any, result: str, order: int) -> str:
    values = (json.dumps(identity), result)
    return RESPONSES[order] % (values[::-1] if order else values)


def read_refusal(result: dict[str, Any]) -> str:
    """Return the message of the error that the upstream received in place of an answer."""
    error = json.loads(result["content"][0]["text"].partition("\n")[0])["error"]
    assert error["code"] in (-32600, -32700)
    return str(error["message"])


@pytest.mark.parametrize(("reason", "order"), list(zip(REFUSED, cycle(range(len(RESPONSES))))))
async def test_an_upstream_learns_that_an_answer_was_refused(
    configured: Configured, open_lines: OpenLines, odd: Odd, reason: str, order: int
) -> None:
    answer, message = REFUSED[reason]
    upstream = odd(OLD, odd=[json.dumps({"jsonrpc": "2.0", "id": "q", **FORM})], response=[TELL])
    async with open_lines(configured({"odd": upstream}, limits={"max_message_bytes": "16MiB"})) as client:
        await client.greet(elicitation={})
        await client.send('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"odd_mirrored"}}')
        while (asked := json.loads(await client.receive())).get("method") != "elicitation/create":
            pass
        assert asked["id"] == 1  # both sides count their requests
        await client.send(write_response(asked["id"], answer, order))
        while (answered := json.loads(await client.receive())).get("id") != 1:
            pass
        assert message in read_refusal(answered["result"])


@pytest.mark.parametrize(("reason", "params"), list(zip(REFUSED, cycle([{}, {"unknown": None}]))))
async def test_a_refused_answer_over_http_is_an_error_for_both_sides(
    configured: Configured, serve: Serve, odd: Odd, reason: str, params: dict[str, Any]
) -> None:
    answer, message = REFUSED[reason]
    upstream = odd(OLD, odd=[json.dumps({"jsonrpc": "2.0", "id": "q", **FORM})], response=[TELL])
    config = configured({"odd": upstream}, limits={"max_message_bytes": "16MiB"})
    async with serve(config) as served, httpx2.AsyncClient(timeout=BOUND) as http:
        headers = HEADERS | await open_session(http, served.url, {"elicitation": {}})
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}  # the response comes after the end of the handshake
        assert (await http.post(served.url, json=ping, headers=headers)).status_code == 200
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call", "params": {"name": "odd_mirrored", **params}}
        event: dict[str, Any] = {}
        async with http.stream("POST", served.url, json=call, headers=headers) as events:
            async for line in events.aiter_lines():
                event = json.loads(line.removeprefix("data: ")) if line.startswith("data: ") else event
                if event.get("method") == "elicitation/create":
                    content = write_response(event["id"], answer, 0)
                    refused = await http.post(served.url, content=content, headers=headers)
                    assert refused.status_code == (413 if reason == "message" else 400)
                    assert (refused.json()["id"], message in refused.text) == (None, True)
        assert message in read_refusal(event["result"])


async def test_a_call_whose_answer_is_the_last_message_gets_its_result(
    configured: Configured, open_lines: OpenLines, odd: Odd
) -> None:
    upstream = odd(OLD, odd=[json.dumps({"jsonrpc": "2.0", "id": "q", **FORM})], response=[TELL])
    async with open_lines(configured({"odd": upstream})) as client:
        await client.greet(elicitation={})
        await client.send('{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"odd_mirrored"}}')
        while (asked := json.loads(await client.receive())).get("method") != "elicitation/create":
            pass
        assert asked["id"] == 1  # both sides count their requests
        await client.send(write_response(asked["id"], '{"action":"decline"}', 0))
        assert client.process.stdin is not None
        client.process.stdin.close()
        while json.loads(answered := await client.receive()).get("id") != 1:
            pass
        assert "decline" in answered.decode()


async def test_an_upstream_learns_that_its_request_has_too_many_escapes(
    configured: Configured, open_lines: OpenLines, odd: Odd
) -> None:
    message = ask(message="\n" * 1_000_001, requestedSchema={"type": "object", "properties": {}})
    line = json.dumps({"jsonrpc": "2.0", "id": "q", **message})
    response = '{"jsonrpc":"2.0","id":$call,"result":{"content":[{"type":"text","text":$received}]}}'
    async with open_lines(configured({"odd": odd(OLD, odd=[line], response=[response])})) as client:
        received = (await call_modern(client))["content"][0]["text"].partition("\n")[0]
        assert json.loads(received)["error"]["message"] == "The message has more than 1,000,000 backslashes."


async def test_an_upstream_that_always_requires_input_is_named(
    configured: Configured, open_lines: OpenLines, odd: Odd
) -> None:
    line = require(requestState="s")
    config = configured(
        {"odd": odd(NEW, odd=[line], hear=[require(inputRequests=dict.fromkeys("ab", FORM))])},
        limits={"max_input_requests_per_call": 1},
    )
    async with open_lines(config) as client:
        state = (await call_modern(client))["requestState"]
        text = (await call_modern(client, requestState=state))["content"][0]["text"]
        assert text.startswith("Upstream 'odd' asked for input more than")
    async with open_lines(config) as client:
        await client.greet(elicitation={})
        for tool in ("odd_mirrored", "hear_mirrored"):  # one request too many, and two at once
            assert (await client.text(tool)).startswith("Upstream 'odd' asked for input more than")


async def test_calls_that_require_much_input_are_bounded_together(
    configured: Configured, open_lines: OpenLines, odd: Odd
) -> None:
    form = ask(message="x" * 100_000, requestedSchema={"type": "object", "properties": {}})
    config = configured(
        {"odd": odd(NEW, odd=[require(inputRequests={"a": form})])}, limits={"max_queued_notification_bytes": "64KiB"}
    )
    async with open_lines(config) as client:
        await client.greet(elicitation={})
        first = {"jsonrpc": "2.0", "id": "first", "method": "tools/call", "params": {"name": "odd_mirrored"}}
        await client.send(json.dumps(first))
        while json.loads(await client.receive()).get("method") != "elicitation/create":
            pass
        text = await client.text("odd_mirrored")
    assert text.startswith("Requests of upstream 'odd' that wait for answers take all of `limits.max_queued_")


async def test_a_long_state_comes_back_with_the_answers(
    configured: Configured, open_lines: OpenLines, odd: Odd
) -> None:
    state = "s" * 900_000
    again = result('{"resultType":"complete","content":[{"type":"text","text":$received}]}')
    upstream = odd(NEW, odd=[require(inputRequests={"a": FORM}, requestState=state)], again=[again])
    config = configured({"odd": upstream}, mirror={"inline_budget": 1_000_000})
    async with open_lines(config) as client:
        required = await call_modern(client)
        answers = {"a": {"action": "accept", "content": {}}}
        answer = await call_modern(client, requestState=required["requestState"], inputResponses=answers)
        assert state in answer["content"][0]["text"]


async def test_a_subscription_is_answered_when_the_upstream_has_acknowledged_it(
    configured: Configured, open_lines: OpenLines, odd: Odd
) -> None:
    params = {"notifications": {"resourceSubscriptions": ["odd://a"]}}
    acknowledged = json.dumps(
        {"jsonrpc": "2.0", "method": "notifications/subscriptions/acknowledged", "params": params}
    )
    lines = {"subscriptions/listen": [], "odd": [acknowledged, result('{"content":[]}')]}
    async with open_lines(configured({"odd": odd(NEW, **lines)})) as client:
        await client.greet()
        await client.send('{"jsonrpc":"2.0","id":"s","method":"resources/subscribe","params":{"uri":"odd://a"}}')
        assert json.loads(await client.call("hear_mirrored"))["result"]  # it would have been answered before
        await client.send('{"jsonrpc":"2.0","id":"c","method":"tools/call","params":{"name":"odd_mirrored"}}')
        assert {json.loads(await client.receive())["id"] for _ in range(2)} == {"s", "c"}


@pytest.mark.slow
async def test_a_subscription_that_always_ends_is_renewed_less_and_less(
    configured: Configured, open_lines: OpenLines, odd: Odd
) -> None:
    ended = result('{"resultType":"complete","_meta":{"io.modelcontextprotocol/subscriptionId":$id}}')
    async with open_lines(configured({"odd": odd(NEW, **{"subscriptions/listen": [ended]})})) as client:
        await client.greet()
        await client.request("resources/subscribe", '{"uri":"odd://a"}')
        times: list[float] = []
        while len(times) < 4:
            line = await client.receive()
            assert line, b"".join(client.stderr)
            times += [monotonic()] if b"notifications/resources/updated" in line else []
    assert times[3] - times[0] > 10  # 2, 4 and 8 seconds


ITEMS: Final[dict[str, tuple[str, str, list[Any]]]] = {
    "resources/list": ("resources", "uri", [{"uri": "odd://b", "name": None, "size": "x", "annotations": [], "zz": 1}]),
    "resources/templates/list": ("resourceTemplates", "uriTemplate", [{"uriTemplate": "odd://{b}", "title": 5}]),
    "prompts/list": ("prompts", "name", [{"name": "b", "arguments": "x", "icons": [{}], "zz": 1}]),
}


@pytest.mark.parametrize("method", ITEMS)
async def test_an_odd_item_leaves_the_lists_of_others_readable(
    configured: Configured, connect: Connect, odd: Odd, tmp_path: Path, method: str
) -> None:
    member, key, odd_items = ITEMS[method]
    deep = {"name": "deep", key: "odd://deep", "deep": "DEEP"}
    page = json.dumps({member: [5, *odd_items, deep, {"name": "ok", key: "odd://ok"}]}).replace('"DEEP"', DEEP)
    honest = odd(OLD)
    (tmp_path / "lines.json").rename(tmp_path / "honest.json")
    honest["args"][-1] = str(tmp_path / "honest.json")
    async with connect(configured({"honest": honest, "odd": odd(OLD, **{method: [result(page)]})})) as client:
        if member == "resources":
            resources = {str(one.uri): one.name for one in (await client.list_resources()).resources}
            assert resources.items() >= {"odd://a": "a", "odd://b": "odd://b", "odd://ok": "ok"}.items()
            assert "odd://deep" not in resources
        elif member == "prompts":
            prompts = (await client.list_prompts()).prompts
            assert [(one.name, one.arguments) for one in prompts] == [("p", None), ("b", None), ("odd://ok", None)]
        else:
            templates = [one.uri_template for one in (await client.list_resource_templates()).resource_templates]
            assert templates[:2] == ["odd://{b}", "odd://ok"]


@pytest.mark.parametrize("padding", ["", "x" * (2 * MIB)], ids=["small", "large"])
async def test_a_list_that_is_not_an_array_is_named(configured: Configured, run: Run, odd: Odd, padding: str) -> None:
    for value, reason in (
        ('"x"', "sent an unreadable answer to tools/list. The list is not an array."),
        ('{"a":1}', "sent an unreadable answer to tools/list. The list is not an array."),
        ("null", ""),
        ("{}", ""),
    ):
        line = result(f'{{"padding":"{padding}","tools":{value}}}')
        checked = await run("check", "--config", str(configured({"odd": odd(OLD, **{"tools/list": [line]})})))
        assert reason in checked.err
        assert checked.code == (1 if reason else 0), checked.err
