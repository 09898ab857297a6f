"""The stdio and HTTP servers: invalid requests, clients that disconnect, and the end of the process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import operator
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from gateway_processes import COMMAND, start_command
from http_sessions import HEADERS, HELLO, open_session
from notices import path_in
from samples import sample
from tests.end_to_end.conftest import BOUND
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.end_to_end.conftest import Configured, OpenClient, Run, Serve

GONE = 30.0
"""Seconds after which no child may be left, on a busy machine too; less than the drain."""
DRAIN = {"drain": 60}
NOISY = """
import os, sys
from mcp_mirror.cli import main as cli
from mcp_mirror.server.handlers import Handlers
listing = Handlers._list_tools
async def noisy(self, *given):
    print("noise by print", flush=True)
    os.write(1, b"noise by descriptor\\n")
    os.system("echo noise by a child")
    return await listing(self, *given)
Handlers._list_tools = noisy
cli.app()
"""
LARGE = b"x" * 1_100_000
DEEP = "[" * 5000 + "]" * 5000

BAD_LINES: list[tuple[str | bytes, int | str | None]] = [
    ("not json", None),
    (b"\xff\xfe\x00", None),
    ("[]", None),
    ("null", None),
    ("{}", None),
    ('{"jsonrpc":"2.0","id":501,"method":"tools/call","params":{"name":"x","arguments":{]}}', 501),
    ('{"jsonrpc":"2.0","id":"five","method":"tools/call","params":{"name":"x","arguments":{"a":NaN}}}', "five"),
    ('{"jsonrpc":"2.0","id":502,"method":"tools/call","params":{"name":"hear_mirrored","arguments":[1]}}', 502),
    ('{"jsonrpc":"2.0","id":503,"method":"tools/call","params":{"arguments":{"a":1}}}', 503),
    ('{"jsonrpc":"2.0","id":504,"method":"tools/call","params":{"name":7,"arguments":{"a":1}}}', 504),
    ('{"jsonrpc":"2.0","id":505,"method":"tools/call"}', 505),
    ('{"jsonrpc":"2.0","id":506,"method":"no/such"}', 506),
    ('{"jsonrpc":"1.0","id":507,"method":"tools/list"}', 507),
    ('{"jsonrpc":"2.0","id":508,"method":7}', 508),
    ('{"jsonrpc":"2.0","id":null,"method":"ping"}', None),
    ('{"id":509,"jsonrpc":"2.0","method":"tools/call","params":{"name":"x","arguments":' + DEEP + "}}", 509),
    ('{"jsonrpc":"2.0","method":"tools/call","params":' + " " * 70_000 + '{"name":"x"},"id":510}', 510),
]  # fmt: skip


async def test_an_invalid_line_gets_an_error_and_the_connection_continues(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw()}, limits={"max_message_bytes": 65_536}) as client:
        for line, identity in BAD_LINES:
            await client.send(line)
            answer = json.loads(await client.receive())
            assert answer["id"] == identity, line[:100]
            assert answer["error"]["message"]
        await client.send("\r\n\n")
        await client.send('{"jsonrpc":"2.0","method":"notifications/unknown"}')
        await client.send('{"jsonrpc":"2.0","id":null,"method":"notifications/unknown"}')
        await client.send('{"jsonrpc":"2.0","id":9999,"result":{}}')
        assert "hello" in await client.text("hear_mirrored", {"text": "hello"})


BAD_CALLS: list[tuple[str, dict[str, Any], str]] = [
    ("no_such_mirrored", {}, "Unknown tool 'no_such_mirrored'. Nearest are "),
    ("say", {}, "Nearest are say_mirrored"),
    ("hear_mirrored", {"x": "{path}/nokey"}, 'has no key "nokey". Its keys are "data". Pass a whole path, such as "'),
    ("hear_mirrored", {"x": "{path}/data/9"}, "It is an array whose items are 0 to 2"),
    ("hear_mirrored", {"x": "say-00000000-0000-4000-8000-000000000000"}, 'Nearest are "{path}"'),
    ("hear_mirrored", {"x": "{path}['my key']"}, 'has no key "my key". Its keys are "data".'),
    ("hear_mirrored", {"x": "{path}.txt"}, 'has no key "txt". Its keys are "data".'),
    ("hear_mirrored", {"x": "{path}.data[*]"}, "the JMESPath expression [*] selects from its items"),
    ("hear_mirrored", {"x": "{path}[:100]"}, 'has no key "[:100]". Its keys are "data".'),
    ("hear_mirrored", {"x": "say_mirrored-{id}/data"}, 'The path is not exact: call again with "{path}/data"'),
    ("hear_mirrored", {"x": "{cut}"}, 'The path is not exact: call again with "{path}"'),
    ("retrieve_final_answer_from_memory", {"memory_path": "{path}/data/0/x"}, "which has no keys"),
    ("retrieve_final_answer_from_memory", {"memory_path": "nothing of the kind"}, "No value is stored under"),
    ("retrieve_final_answer_from_memory", {"value": "{path}"}, "Did you mean 'memory_path'?"),
    (
        "retrieve_final_answer_from_memory",
        {"memory_path": 5},
        "'memory_path' of retrieve_final_answer_from_memory must be text",
    ),
    ("typed_mirrored", {"n": "{path}/data"}, "expects integer"),
    ("typed_mirrored", {"n": "no number"}, "n: "),
]


async def test_errors_of_calls_name_the_next_step(open_client: OpenClient, raw: Any, tmp_path: Path) -> None:
    tools: list[dict[str, Any]] = [{"name": name, "inputSchema": {"type": "object"}} for name in ("say", "hear")]
    tools.append({"name": "typed", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}})
    (tmp_path / "tools").write_text(json.dumps(tools))
    async with open_client({"raw": raw("ok", "--tools", str(tmp_path / "tools"))}) as client:
        answer_text = '{"content":[],"structuredContent":{"data":[1,2,3]}}'
        path = path_in(await client.text("say_mirrored", {"result": answer_text}))
        for tool, arguments, wanted in BAD_CALLS:
            filled = json.loads(
                json.dumps(arguments).replace("{path}", path).replace("{cut}", path[:-3]).replace("{id}", path[-36:])
            )
            result = json.loads(await client.call(tool, json.dumps(filled)))["result"]
            assert result["isError"] is True
            assert wanted.replace("{path}", path) in result["content"][0]["text"], tool
        for part in (".data[1]", "/data[1]", "['data'][1]"):
            assert '"x": 2' in await client.text("hear_mirrored", {"x": f"{path}{part}"})
            assert await client.text("retrieve_final_answer_from_memory", {"memory_path": f"{path}{part}"}) == "2"
        foreign = "order-11111111-1111-4111-8111-111111111111"
        assert foreign in await client.text("hear_mirrored", {"x": foreign})


async def left_behind(marker: str) -> list[str]:
    """The processes that are still there after a while, by a word of their command lines."""

    def find() -> list[str]:
        return [line for line in _command_lines() if marker in line]

    with contextlib.suppress(TimeoutError):
        await until(find, operator.not_, within=GONE)
    return find()


def _command_lines() -> Iterator[str]:
    for path in Path("/proc").iterdir():
        with contextlib.suppress(OSError):  # not a process, or one that has ended
            yield (path / "cmdline").read_bytes().decode("utf-8", "replace")


linux = pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")


@pytest.mark.posix
@linux
@pytest.mark.parametrize(
    ("way", "behaviour"),
    sample(
        [("leaves", "ok"), ("leaves during a call", "stubborn"), (signal.SIGTERM, "stubborn"), (signal.SIGINT, "ok")],
        lambda case: case[1] == "stubborn",
    ),
)
async def test_no_child_process_survives_the_gateway(
    way: Any, behaviour: str, configured: Configured, raw: Any, tmp_path: Path
) -> None:
    marker = f"marker-{tmp_path.name}-{os.getpid()}"
    config = configured({"raw": raw(behaviour, "--name", marker)}, server=DRAIN)
    process = await start_command("serve", "--config", str(config), stdin=PIPE, stdout=PIPE, stderr=PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}}
    process.stdin.write(
        json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}).encode() + b"\n"
    )
    assert marker.encode() in await asyncio.wait_for(process.stdout.readline(), BOUND)
    if way == "leaves during a call":
        started = tmp_path / "started"
        arguments: Any = {"started": str(started), "until": str(tmp_path / "never")}
        call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call",
                "params": {"name": "hang_mirrored", "arguments": arguments}}  # fmt: skip
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        process.stdin.write(json.dumps(call).encode() + b"\n")
        await until(started.exists)
    if isinstance(way, signal.Signals):
        process.send_signal(way)
    else:
        process.stdin.close()
    async with asyncio.timeout(GONE):
        out, err = await process.communicate()
    assert process.returncode == (130 if way == signal.SIGINT else 0)
    assert b"Traceback" not in err
    assert all(json.loads(line) for line in out.splitlines())
    assert await left_behind(marker) == []


@pytest.mark.posix
@linux
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_http_shuts_down_gracefully_with_connected_clients(
    number: signal.Signals, configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    marker = f"marker-{tmp_path.name}-{os.getpid()}"
    async with serve(configured({"raw": raw("ok", "--name", marker)}, server=DRAIN)) as served:
        async with httpx2.AsyncClient(timeout=BOUND) as client:
            session = await open_session(client, served.url)
            async with client.stream("GET", served.url, headers=HEADERS | session):
                served.process.send_signal(number)
                async with asyncio.timeout(GONE):
                    assert await served.process.wait() == (130 if number == signal.SIGINT else 0)
        assert await left_behind(marker) == []
    lines = b"".join(served.stderr).decode().splitlines()
    assert len(lines) == 1, lines


@pytest.mark.parametrize(
    "stdin", sample(["closed", "empty", "file", "garbage file"], lambda stdin: stdin == "garbage file")
)
async def test_other_standard_input_ends_the_gateway_without_error(
    stdin: str, configured: Configured, raw: Any, tmp_path: Path
) -> None:
    config = configured({"raw": raw()})
    input_file = tmp_path / "input"
    hello = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-11-25","capabilities":{},"clientInfo":{"name":"x","version":"0"}}}\n'  # noqa: E501
    input_file.write_text({"file": hello, "garbage file": "garbage\n"}.get(stdin, ""))
    command = f"exec {COMMAND} serve --config {config} {'<&-' if stdin == 'closed' else f'< {input_file}'}"
    process = await asyncio.create_subprocess_shell(command, stdin=DEVNULL, stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(BOUND):
        out, err = await process.communicate()
    assert process.returncode == 0, err
    assert err == b""
    answers = [json.loads(line) for line in out.splitlines()]
    assert [answer["id"] for answer in answers] == {"file": [1], "garbage file": [None]}.get(stdin, [])


async def test_a_closed_standard_output_is_reported(configured: Configured, raw: Any) -> None:
    command = f"exec {COMMAND} serve --config {configured({'raw': raw()})} >&-"
    process = await asyncio.create_subprocess_shell(command, stdin=DEVNULL, stderr=PIPE)
    async with asyncio.timeout(BOUND):
        _, err = await process.communicate()
    assert process.returncode == 2
    assert b"Standard output is closed" in err


STRANGERS = [
    ({"host": "evil.example"}, 421),
    ({"host": "127.0.0.1.evil.example:80"}, 421),
    ({"origin": "http://evil.example"}, 403),
    ({"origin": "null"}, 403),
    ({"origin": "https://127.0.0.1.evil.example"}, 403),
    ({"content-type": "text/plain"}, 400),
    ({"origin": "http://localhost:3000"}, 200),
]


async def test_only_loopback_hosts_and_origins_are_admitted(shared: str) -> None:
    async with httpx2.AsyncClient(timeout=BOUND) as client:
        for headers, status in STRANGERS:
            answer = await client.post(shared, content=HELLO, headers=HEADERS | headers)
            assert answer.status_code == status, headers
            if status != 200:  # nor may it be read, or ended
                assert (await client.get(shared, headers=HEADERS | headers)).status_code >= 400


BAD_BODIES = [
    (b"garbage", 400, None),
    (b"", 400, None),
    (b"[]", 400, None),
    (b"\xff\xfe", 400, None),
    (b'{"jsonrpc":"2.0","id":7,"method":"tools/call","params":{"arguments":{]}}', 400, 7),
    (b'{"jsonrpc":"2.0","id":8,"method":"tools/call","params":{"name":"x","arguments":{"a":"' + LARGE + b'"}}}',
     413, 8),
]  # fmt: skip


async def test_an_invalid_body_is_rejected_and_the_next_is_served(shared: str) -> None:
    async with httpx2.AsyncClient(timeout=BOUND) as client:
        headers = HEADERS | await open_session(client, shared)
        for body, status, identity in BAD_BODIES:
            answer = await client.post(shared, content=body, headers=headers)
            assert answer.status_code == status
            assert answer.json()["id"] == identity
            assert answer.json()["error"]["message"]
        again = await client.post(shared, content='{"jsonrpc":"2.0","id":9,"method":"tools/list"}', headers=headers)
        assert "retrieve_final_answer_from_memory" in again.text


async def test_requests_with_the_same_id_are_all_answered(
    configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    started, gate = tmp_path / "started", tmp_path / "gate"
    arguments = {"started": str(started), "until": str(gate)}
    call = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": {"name": "hang_mirrored", "arguments": arguments},
    }
    listing = {"jsonrpc": "2.0", "id": "7", "method": "prompts/list"}  # the SDK compares ids as texts
    async with serve(configured({"raw": raw()})) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        headers, others = [HEADERS | await open_session(client, served.url) for _ in range(2)]
        posted = [asyncio.create_task(client.post(served.url, json=call, headers=headers))]
        await until(started.exists)
        posted += [asyncio.create_task(client.post(served.url, json=listing, headers=headers)) for _ in range(2)]
        assert '"prompts"' in (await client.post(served.url, json=listing, headers=others)).text
        gate.touch()
        async with asyncio.timeout(BOUND):
            answers = [answer.text for answer in await asyncio.gather(*posted)]
    assert "late" in answers[0]
    assert ['"prompts"' in answer for answer in answers] == [False, True, True]


async def test_a_repeated_call_does_not_wait_for_the_one_before(
    configured: Configured, serve: Serve, raw: Any, tmp_path: Path
) -> None:
    async with serve(configured({"raw": raw()})) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        headers = HEADERS | await open_session(client, served.url)

        def post(name: str, call_id: int | str) -> asyncio.Task[httpx2.Response]:
            arguments = {"started": str(tmp_path / name), "until": str(tmp_path / f"{name} ends"), "pad": "x" * 40_000}
            params = {"name": "hang_mirrored", "arguments": arguments}  # large, so it takes the SDK's path
            call = {"jsonrpc": "2.0", "id": call_id, "method": "tools/call", "params": params}
            return asyncio.create_task(client.post(served.url, json=call, headers=headers))

        dropped = post("first", 7)
        await until((tmp_path / "first").exists)
        dropped.cancel()
        repeated, again = post("second", 7), post("third", "7")
        await until((tmp_path / "second").exists)
        await until((tmp_path / "third").exists)
        (tmp_path / "first ends").touch()
        (tmp_path / "second ends").touch()
        async with asyncio.timeout(BOUND):
            answer = (await repeated).text
            assert '"id":7,' in answer
            assert "late" in answer
            cancelled = {"requestId": 7, "reason": "no longer needed"}
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled}
            assert (await client.post(served.url, json=note, headers=headers)).status_code == 202
            answer = (await again).text
            assert '"id":"7",' in answer
            assert "Request cancelled" in answer


@pytest.mark.parametrize(
    ("body", "identity", "message"),
    [
        ("{}", None, "not a JSON-RPC request"),
        ('{"jsonrpc":"2.0","id":7}', 7, "not a JSON-RPC request"),
        ('{"jsonrpc":"1.0","id":8,"method":"tools/list"}', 8, "not a JSON-RPC request"),
        ('{"jsonrpc":"2.0","id":null,"method":"tools/list"}', None, "`id` is null"),
        ('{"id":null,"jsonrpc":"2.0","method":"tools/call","params":{"name":"x"}}', None, "`id` is null"),
        (
            f'{{"jsonrpc":"2.0","id":9,"method":"ping","params":{{"_meta":{"[" * 300}{"]" * 300}}}}}',
            9,
            "than 200 levels",
        ),
    ],
)
async def test_a_body_that_is_not_json_rpc_is_rejected_with_the_cause(
    shared: str, body: str, identity: int | None, message: str
) -> None:
    async with httpx2.AsyncClient(timeout=BOUND) as client:
        answer = await client.post(shared, content=body, headers=HEADERS)
    assert answer.status_code == 400
    assert "mcp-session-id" not in answer.headers
    assert answer.json()["id"] == identity
    error = answer.json()["error"]["message"]
    assert message in error
    assert "pydantic" not in error


@pytest.fixture
async def shared(configured: Configured, serve: Serve) -> Any:
    """The URL of a gateway without upstreams."""
    async with serve(configured({}, limits={"max_message_bytes": 1_000_000})) as served:
        yield served.url


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])  # noqa: S104  # to be refused
async def test_http_is_served_on_loopback_only(host: str, configured: Configured, run: Run) -> None:
    ended = await run("serve", "--config", str(configured({})), "--http", f"{host}:0")
    assert ended.code == 2
    assert "not a loopback address" in ended.err


async def test_a_port_in_use_is_reported(configured: Configured, run: Run, shared: str) -> None:
    port = shared.split(":")[2].split("/", maxsplit=1)[0]
    ended = await run("serve", "--config", str(configured({})), "--http", f"127.0.0.1:{port}")
    assert ended.code == 2
    assert "Address already in use" in ended.err
    assert "Choose another port" in ended.err


async def test_a_foreign_request_is_rejected_before_its_body_is_read(shared: str) -> None:
    port = int(shared.split(":")[2].partition("/")[0])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /mcp HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\norigin: http://evil.example\r\ncontent-type: application/json"
    )
    writer.write(f"{head}\r\ncontent-length: 900000\r\n\r\n".encode())
    async with asyncio.timeout(BOUND):
        assert b" 403 " in await reader.readline()
    writer.close()
    await writer.wait_closed()


async def test_rejected_requests_leave_no_pending_payload(shared: str) -> None:
    call = '{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"x","arguments":{"a":1}}}'
    status = '{"jsonrpc":"2.0","id":6,"method":"resources/read","params":{"uri":"mcp-mirror://upstreams"}}'
    async with httpx2.AsyncClient(timeout=BOUND) as client:
        session = await open_session(client, shared)
        forgotten = await client.post(shared, content=call, headers=HEADERS | {"mcp-session-id": "unknown"})
        assert forgotten.status_code == 404
        unreadable = await client.post(shared, content=call, headers=HEADERS | session | {"accept": "text/plain"})
        assert unreadable.status_code == 406
        assert '\\"requests\\": 0' in (await client.post(shared, content=status, headers=HEADERS | session)).text


async def test_other_output_of_the_process_does_not_reach_the_client(configured: Configured, raw: Any) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", NOISY, "serve", "--config", str(configured({"raw": raw()})),
        stdin=PIPE, stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    requests = (
        '{"jsonrpc":"2.0","method":"notifications/initialized"}\n{"jsonrpc":"2.0","id":2,"method":"tools/list"}\n'
    )
    async with asyncio.timeout(BOUND):
        out, err = await process.communicate(f"{HELLO}\n{requests}".encode())
    assert [json.loads(line)["id"] for line in out.splitlines()] == [1, 2]
    assert err.count(b"noise by ") == 3


async def test_a_message_that_is_too_deep_for_its_parser_names_the_levels(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw()}) as client:
        params = '{"name":"hear_mirrored","arguments":{},"_meta":{"deep":' + "[" * 600 + "]" * 600 + "}}"
        error = json.loads(await client.request("tools/call", params))["error"]
        assert "more than 200 levels outside of `arguments`" in error["message"]
        assert "is answered" in await client.text("hear_mirrored", {"text": "is answered"})


@pytest.mark.parametrize(("host", "status"), [("127.0.0.1", b"200"), ("localhost:1", b"200"), ("evil.com", b"421")])
async def test_requests_with_an_absolute_target_are_served(
    host: str, status: bytes, configured: Configured, serve: Serve
) -> None:
    params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    head = f"POST http://{host}/mcp HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\ncontent-length: {len(body)}\r\n"
    kinds = "accept: application/json, text/event-stream\r\ncontent-type: application/json\r\n\r\n"
    async with serve(configured({})) as served:
        reader, writer = await asyncio.open_connection("127.0.0.1", int(served.url.split(":")[2].removesuffix("/mcp")))
        writer.write(f"{head}{kinds}{body}".encode())
        response = await asyncio.wait_for(reader.read(), BOUND)
        writer.close()
    assert response.split()[1] == status
