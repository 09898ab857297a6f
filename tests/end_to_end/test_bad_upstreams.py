"""Faulty upstreams: an error names each with the next step, and the others are served."""

from __future__ import annotations

import json
import re
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from mcp_types import TextContent
from redis_process import free_port

if TYPE_CHECKING:
    from mcp import Client
    from tests.end_to_end.conftest import Configured, Connect, Listening, OpenClient, OpenLines, Run

ERROR = "-3"
HANGING = ("garbage", "half", "silent")
PRINTS_AND_WAITS = {
    "command": "/bin/sh",  # a busy machine starts Python in more than a second
    "args": ["-c", "echo ready on port 1; exec cat > /dev/null"],
    "startup_timeout": 1,
}
ANSWERS = """import json, sys
for line in sys.stdin:
    request = json.loads(line)
    is_handshake = request["method"] == "initialize"
    answer = {"result": RESULT} if is_handshake else {"error": {"code": -32601, "message": "no"}}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""
HANDSHAKE = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": {"name": "x", "version": "1"}}


def handshaking(**members: Any) -> dict[str, Any]:
    """A server whose answer to the handshake has these members."""
    return {"command": sys.executable, "args": ["-c", f"RESULT = { ({**HANDSHAKE, **members})!r}\n{ANSWERS}"]}


FAILING: list[tuple[Any, str, str]] = [
    ({"command": "no-such-command-anywhere"}, "the command 'no-such-command-anywhere' does not exist", "Install it"),
    ("no program", "cannot start: Exec format error", "Check `command`"),
    ({"command": __file__}, "test_bad_upstreams.py' is not executable", "write its interpreter into `command`"),
    ({"command": str(Path(__file__).parent)}, "end_to_end' is a folder", "the program in it"),
    ("exits", "ended with exit code 3 before", "RuntimeError: no licence found"),
    ({"command": sys.executable, "args": ["-c", ""]}, "ended with exit code 0 before", "Check that `command`"),
    ("garbage", "within 1 s", "raise `startup_timeout`"),
    ("half", "within 1 s", "startup_timeout"),
    ("silent", "within 1 s", "run its command by hand"),
    ({"url": "http://127.0.0.1:9/mcp"}, "connection to 127.0.0.1:9 failed: nothing listens there", "correct `url`"),
    ({"url": "http://127.0.0.1:9/sse", "transport": "sse"}, "127.0.0.1:9 failed: nothing listens there", "Start the"),
    ({"url": "http://no-such-host.invalid/mcp"}, "no-such-host.invalid:80 failed: the host name has no", "host name"),
    ({"command": "npx -y x"}, "no command has a name of 3 words", "write `command: npx`"),
    ({"command": "http://127.0.0.1:9/mcp?key=secret"}, "cannot start: `command` is a URL", "Write it into `url`"),
    ({"command": "KEY=secret npx"}, "`command` begins with a variable", "into `env`"),
    ({"command": "echo", "args": ["hello"]}, 'printed something that is not MCP: "hello"', "Check that `command`"),
    (handshaking(capabilities="secret"), "not conform to MCP: `capabilities`: Input should be", "Update the server"),
    (handshaking(serverInfo={"name": 1}), "not conform to MCP: `serverInfo`: ", "Update the server"),
    (handshaking(protocolVersion="1999-01-01"), "protocol version '1999-01-01'", "Update the server or the gateway"),
    (PRINTS_AND_WAITS, 'printed something that is not MCP: "ready on port 1"', "Check that `command`"),
]
EXITS = f"bad{[what for what, _, _ in FAILING].index('exits')}"


async def test_an_upstream_that_cannot_start_is_reported_and_others_serve(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any, tmp_path: Path
) -> None:
    no_program = tmp_path / "no program"
    no_program.write_bytes(b"x\n")
    no_program.chmod(0o755)
    written = {"no program": {"command": str(no_program)}}
    upstreams = {
        f"bad{index}": (written.get(what) or raw(what) if isinstance(what, str) else what)
        | ({"startup_timeout": 1} if what in HANGING else {})
        for index, (what, _, _) in enumerate(FAILING)
    }
    config = configured({**upstreams, "good": raw()})
    checked = await run("check", "--config", str(config))
    assert checked.code == 1
    assert "say_mirrored" in checked.out
    problems = {line.split()[1].rstrip(":"): line for line in checked.err.splitlines() if line.startswith("problem:")}
    for index, (_, wanted, advice) in enumerate(FAILING):
        assert wanted in problems[f"bad{index}"]
        assert advice in problems[f"bad{index}"]
    async with open_lines(config) as client:
        greeting = await client.greet()
        assert len(greeting["instructions"]) < 4000
        named = re.findall(r"Servers? ([\w, ]+?) (?:is|are) (?:down|starting): ", greeting["instructions"])
        assert set(", ".join(named).split(", ")) == {f"bad{index}" for index in range(len(FAILING))}
        assert "hello" in await client.text("hear_mirrored", {"text": "hello"})
        status = json.loads(await client.request("resources/read", '{"uri":"mcp-mirror://upstreams"}'))
        listed = json.loads(status["result"]["contents"][0]["text"])["upstreams"]
        assert {one["name"]: one["state"] for one in listed}["good"] == "ready"
        assert "no licence found" in next(one for one in listed if one["name"] == EXITS)["detail"]


async def test_a_missing_folder_and_a_missing_interpreter_are_named(
    configured: Configured, run: Run, raw: Any, tmp_path: Path
) -> None:
    script = tmp_path / "server"
    script.write_bytes(b"#!/bin/sh\r\n")
    script.chmod(0o755)
    config = configured({"folder": {**raw(), "cwd": "/none/x"}, "script": {"command": str(script)}})
    checked = await run("check", "--config", str(config))
    assert "cannot start in the folder '/none/x': No such file or directory. Create the folder" in checked.err
    assert f"the first line of the script '{script}' does not exist. Install it, or correct that line" in checked.err


async def test_check_names_a_configuration_without_upstreams(configured: Configured, run: Run) -> None:
    checked = await run("check", "--config", str(configured({})))
    assert checked.code == 0
    assert "no upstreams: clients see only the tools of mcp-mirror itself" in checked.out


CRASH = (
    "import sys\nfor n in range(30): print(f'step {n}', file=sys.stderr)\n"
    "raise SystemExit('no licence\\u200b: \\x1b[31mtok3n')"
)


def crashing(**keys: Any) -> dict[str, Any]:
    """A server that prints thirty lines and a secret, and ends."""
    return {"command": sys.executable, "args": ["-c", CRASH], "env": {"KEY": "tok3n"}, **keys}


async def test_check_prints_the_output_of_a_server_that_fails_at_start(configured: Configured, run: Run) -> None:
    ended = await run("check", "--config", str(configured({"one": crashing()})))
    [problem, *lines] = ended.err.splitlines()
    assert problem.endswith("Its error output: no licence: ***")
    assert [line.strip() for line in lines] == [*(f"step {number}" for number in range(11, 30)), "no licence: ***"]


async def test_check_shows_how_a_long_error_of_a_server_ends(configured: Configured, run: Run) -> None:
    error = f"error: {'the library was renamed; ' * 20}install version 1"
    crash = {"command": sys.executable, "args": ["-c", f"raise SystemExit({error!r})"]}
    ended = await run("check", "--config", str(configured({"one": crash})))
    assert re.search(r"error output: error: the library .* \.\.\. .*; install version 1$", ended.err, re.MULTILINE)
    assert max(map(len, ended.err.splitlines())) < len(error)


ENDS_WHILE_IT_LISTS = """for line in sys.stdin:
    request = json.loads(line)
    if request["method"] == "tools/list":
        sys.exit()
    if "id" in request:
        is_handshake = request["method"] == "initialize"
        answer = {"result": RESULT} if is_handshake else {"error": {"code": -32601, "message": "no"}}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
"""


async def test_a_server_that_ends_while_it_lists_is_named_once(open_client: OpenClient) -> None:
    result = {**HANDSHAKE, "capabilities": {"tools": {}}}
    program = f"import json, sys\nRESULT = {result!r}\n{ENDS_WHILE_IT_LISTS}"
    async with open_client({"one": {"command": sys.executable, "args": ["-c", program]}}) as client:
        status = json.loads(await client.request("resources/read", '{"uri":"mcp-mirror://upstreams"}'))
        (listed,) = json.loads(status["result"]["contents"][0]["text"])["upstreams"]
    assert listed["detail"] == "It ended with exit code 0 during tools/list."


async def test_check_names_disabled_servers_and_has_no_problem(configured: Configured, run: Run, raw: Any) -> None:
    config = configured({"good": raw(), "off": raw() | {"enabled": False}})
    content = json.loads(config.read_text())
    config.write_text(json.dumps(content | {"mcpServers": {"pasted": {"command": "none", "disabled": True}}}))
    ended = await run("check", "--config", str(config))
    assert (ended.code, ended.err) == (0, "")
    assert {"off: disabled in the configuration", "pasted: disabled in the configuration"} < set(ended.out.splitlines())


async def test_serve_logs_the_output_of_a_server_that_fails_at_start(open_client: OpenClient) -> None:
    async with open_client({"one": crashing(), "hidden": crashing(preview=False)}) as client:
        await client.request("tools/list")
    logged = b"".join(client.stderr).decode()
    assert logged.count("upstream one printed: step 29") == 1
    assert "upstream one printed: no licence: ***" in logged
    assert "hidden printed" not in logged
    assert "tok3n" not in logged


NOT_FOLLOWED = "does not follow it: find the address with `curl -i`, and set `url` to it."
REFUSALS = [
    ("400", "", "If the server uses TLS, use https:// in `url`"),
    ("403", "", "check `headers` or `auth`"),
    ("500", "", "See the server's log"),
    ("502", "", "check whether the server runs"),
    ("503", "", "is busy or not ready: try again later"),
    ("504", "", "raise that proxy's timeout"),
    ("301", "https://127.0.0.1/mcp", "Use https:// in `url`."),
    ("301", "https://sign-in.example/", NOT_FOLLOWED),
    ("301", "http://[", NOT_FOLLOWED),
]


async def test_an_http_server_that_is_not_mcp_is_reported_with_its_status(
    configured: Configured, run: Run, listening: Listening
) -> None:
    async with AsyncExitStack() as stack:
        ports = [
            await stack.enter_async_context(listening("raw_http.py", "--status", status, "--location", location))
            for status, location, _ in REFUSALS
        ]
        upstreams = {f"server{port}": {"url": f"http://127.0.0.1:{port}/mcp"} for port in ports}
        ended = await run("check", "--config", str(configured(upstreams)))
    for port, (status, _, advice) in zip(ports, REFUSALS, strict=True):
        (problem,) = [line for line in ended.err.splitlines() if line.startswith(f"problem: server{port}")]
        assert f"127.0.0.1:{port} answered with HTTP status {status} instead of MCP. " in problem
        assert advice in problem


async def test_servers_without_session_affinity_are_reported_with_the_remedy(
    configured: Configured, run: Run, listening: Listening
) -> None:
    async with listening("raw_http.py", "--forgetful") as port:
        ended = await run("check", "--config", str(configured({"one": {"url": f"http://127.0.0.1:{port}/mcp"}})))
    assert "did not know the gateway's session at the end of the handshake. If `url`" in ended.err
    assert "their load balancer must send each session to the server that opened it" in ended.err


async def test_a_response_that_breaks_off_is_reported_with_the_remedy(
    configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    async with (
        listening("raw_http.py", "--style", "lf") as port,
        open_lines(configured({"web": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client,
    ):
        await client.greet()
        refused = await client.text("cut_mirrored", {})
    assert (
        "'web' closed the connection during 'cut'; it may have had effects: check them before you repeat it." in refused
    )
    assert "raise the timeout of the proxy in front of it" in refused


async def test_a_server_without_the_older_transport_is_reported_with_the_remedy(
    configured: Configured, run: Run, listening: Listening
) -> None:
    async with listening("raw_http.py") as port:
        upstreams = {"one": {"url": f"http://127.0.0.1:{port}/mcp", "transport": "sse"}}
        ended = await run("check", "--config", str(configured(upstreams)))
    assert "HTTP status 405 instead of MCP. " in ended.err
    assert "needs `transport: streamable-http`" in ended.err


async def test_a_proxy_of_the_environment_leads_to_an_upstream(
    configured: Configured, run: Run, listening: Listening, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configured({"one": {"url": "http://tools.example.com/mcp"}})
    monkeypatch.setenv("HTTP_PROXY", f"http://user:c4nary@127.0.0.1:{free_port()}")
    ended = await run("check", "--config", str(config))
    assert "tools.example.com:80 failed: the proxy in `HTTP_PROXY` does not answer." in ended.err
    assert "c4nary" not in ended.err
    async with listening("raw_http.py") as port:  # in place of a proxy
        monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{port}")
        ended = await run("check", "--config", str(config))
    assert (ended.code, ended.err) == (0, "")
    assert "one: ready" in ended.out


async def test_a_server_below_the_oldest_protocol_version_is_not_used(
    configured: Configured, run: Run, raw: Any
) -> None:
    upstreams = {name: raw() | {"oldest_protocol": name} for name in ("2025-11-25", "2026-07-28")}
    checked = await run("check", "--config", str(configured(upstreams)))
    assert checked.code == 1
    (problem,) = [line for line in checked.err.splitlines() if line.startswith("problem:")]
    assert problem.startswith("problem: 2026-07-28")
    assert "uses protocol version 2025-11-25, below `oldest_protocol` (2026-07-28). Update" in problem


async def test_one_that_dies_during_a_call_fails_it_at_once_and_comes_back(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    marker = tmp_path / "asked"
    async with open_client({"mortal": raw("ok", "--log", str(marker)), "other": raw()}) as client:
        answer = await client.text("mortal_die_mirrored")
        assert "'mortal' closed the connection during 'die'" in answer
        assert "hello" in await client.text("other_hear_mirrored", {"text": "hello"})
        assert '"text": "again"' in await client.text("mortal_hear_mirrored", {"text": "again"})
        assert marker.read_text().count("initialize\n") == 2


async def test_an_invalid_message_fails_at_most_the_call_it_should_answer(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw()}) as client:
        assert await client.text("scream_mirrored") == "screamed"
        answer = await client.text("scream_mirrored", {"bad": True})
        assert "'raw' sent an invalid answer to 'scream'" in answer
        assert "not valid JSON" in answer
        assert await client.text("scream_mirrored") == "screamed"
        for wrong in ('"text"', "7", "[]", "null", '{"content":7}', '{"content":null}', '{"content":[],"isError":"y"}'):
            answer = await client.text("say_mirrored", {"result": wrong})
            assert "'raw'" in answer
            assert "'say'" in answer
        assert "'raw' refused 'refuse': no such key" in await client.text("refuse_mirrored")  # with the SDK's own code
        deep = "[" * 100_000 + "]" * 100_000
        answer = await client.text("say_mirrored", {"result": f'{{"content":[],"structuredContent":{{"a":{deep}}}}}'})
        assert "nested too deep" in answer
        answer = await client.text("say_mirrored", {"result": '{"content":[{"type":"text","text":"\\ud800"}]}'})
        assert answer == "\ufffd"
        assert await client.text("scream_mirrored") == "screamed"


TEXTS_BEFORE = {"word": "Starting...", "mark": "\ufeff", "json": 'Loaded {"a":1} in 3 ms. '}


@pytest.mark.parametrize(
    ("limits", "expected"),
    [
        ({}, '\\"' * 100),
        ({"spool_bytes": 1024}, '\\"' * 100),
        ({"max_message_bytes": 1 << 20}, "`limits.max_message_by"),
    ],
)
async def test_responses_after_other_text_in_the_same_line_are_taken_at_once(
    limits: dict[str, int], expected: str, open_client: OpenClient, raw: Any
) -> None:
    keys = {"overrides": {"hear": {"timeout": 5, "capture": "never"}}}
    upstreams = {name: raw("ok", "--before", text, **keys) for name, text in TEXTS_BEFORE.items()}
    async with open_client(upstreams, limits=limits) as client:
        for name in TEXTS_BEFORE:
            for _ in range(2):
                assert "hear" in await client.text(f"{name}_hear_mirrored")
                large = await client.text(f"{name}_hear_mirrored", {"text": '"' * 400_000})  # twice as long in JSON
                assert expected in large
    for name in TEXTS_BEFORE:
        warning = f"upstream {name} wrote other text before a message, in the same line"
        assert warning.encode() in b"".join(client.stderr)


async def test_a_call_times_out_and_its_late_answer_is_ignored(
    open_client: OpenClient, raw: Any, tmp_path: Path
) -> None:
    log, started, until = (tmp_path / name for name in ("log", "started", "until"))
    upstream = raw("ok", "--log", str(log), overrides={"hang": {"timeout": 0.3}})
    async with open_client({"raw": upstream}) as client:
        answer = await client.text("hang_mirrored", {"started": str(started), "until": str(until)})
        assert "did not answer 'hang' within 0.3 s" in answer
        assert "`timeout`" in answer
        until.touch()
        assert "hello" in await client.text("hear_mirrored", {"text": "hello"})
        assert "notifications/cancelled" in log.read_text()


async def test_calls_that_a_restart_ends_read_why_the_gateway_restarts(open_client: OpenClient, raw: Any) -> None:
    upstream = raw("deaf", timeout=30, overrides={"hear": {"timeout": 0.5}})
    async with open_client({"deaf": upstream}) as client:
        await client.send('{"jsonrpc":"2.0","id":"waits","method":"tools/call","params":{"name":"say_mirrored"}}')
        await client.send(json.dumps(
            {"jsonrpc": "2.0", "id": "large", "method": "tools/call",
             "params": {"name": "hear_mirrored", "arguments": {"text": "x" * 3_000_000}}}
        ))  # fmt: skip
        answers: dict[str, str] = {}
        while len(answers) < 2:
            answer = json.loads(await client.receive())
            answers[answer["id"]] = answer["result"]["content"][0]["text"]
        assert "'deaf' does not read its input" in answers["large"]
        assert answers["waits"] == (
            "Upstream 'deaf' does not read its input, so the gateway restarts it. 'say' has no answer; it may have had "
            "effects: check them before you repeat it."
        )


async def test_calls_that_a_flood_ends_read_why_the_gateway_disconnects(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"raw": raw()}) as client:
        answer = await client.text("storm_mirrored", {"times": 150_000})
    assert answer.startswith("Upstream 'raw' sent more than 50,000 unsolicited messages at more than 5,000 per second")
    assert "so the gateway closed the connection. Check the server's standard output. 'storm' has no answer;" in answer


ODD_TOOLS: list[Any] = [
    {"name": "x", "inputSchema": {"type": "object", "properties": {"a": {"type": "integer"}}}},
    {"name": "x_mirrored", "inputSchema": {"type": "object"}},
    {"name": "x", "description": "twice", "inputSchema": {"type": "object"}},
    {"name": "no_schema"},
    {"name": "null_schema", "inputSchema": None},
    {"name": "broken_schema", "inputSchema": {"type": "object", "properties": {"a": {"type": "wrong"}}}},
    {"name": "list_schema", "inputSchema": [1]},
    {"name": "root_any", "inputSchema": {"anyOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}]}},
    {"name": "remote", "inputSchema": {"type": "object", "properties": {"a": {"$ref": "http://127.0.0.1:9/x"}}}},
    {"inputSchema": {"type": "object"}},
    {"name": 7, "inputSchema": {"type": "object"}},
    {"name": "", "inputSchema": {"type": "object"}},
    "not a tool",
    None,
    {"name": "odd members", "inputSchema": {"type": "object"}, "annotations": "x", "title": 5, "icons": {}},
    {"name": "big", "inputSchema": {"type": "object", "properties": {"a": {"maximum": 10**400}}}},
    {"name": "retrieve_final_answer_from_memory", "inputSchema": {"type": "object"}},
    {"name": "werkzeug_für_alles", "inputSchema": {"type": "object"}},
    {"name": "long" * 30, "inputSchema": {"type": "object"}},
]


async def test_odd_tools_are_served_if_possible_and_reported(
    configured: Configured, open_lines: OpenLines, run: Run, raw: Any, tmp_path: Path, connect: Any
) -> None:
    tools = tmp_path / "tools.json"
    tools.write_text(json.dumps(ODD_TOOLS))
    config = configured({"odd": raw("ok", "--tools", str(tools)), "good": raw()})
    async with connect(config) as client:  # the SDK's client refuses a list with one bad tool in it
        listed = [tool.name for tool in (await client.list_tools()).tools]
    assert listed[:3] == ["x_mirrored", "x_mirrored_mirrored", "no_schema_mirrored"]
    assert {"null_schema_mirrored", "broken_schema_mirrored", "list_schema_mirrored", "root_any_mirrored",
            "remote_mirrored", "odd_members_mirrored", "big_mirrored", "say_mirrored"} <= set(listed)  # fmt: skip
    assert all(len(name) <= 64 for name in listed)
    assert len(set(listed)) == len(listed)
    checked = await run("check", "--config", str(config))
    assert checked.code == 1
    for wanted in (
        "lists tool 'x' twice",
        "does not serve the tool. (5 times)",
        "'no_schema'",
        "'broken_schema'",
        "'odd members'",
    ):
        assert wanted in checked.err
    assert "Traceback" not in checked.err
    async with open_lines(config) as client:
        await client.greet()
        assert "a: " in await client.text("x_mirrored", {"a": "no number"})
        assert '"a": 1' in await client.text("broken_schema_mirrored", {"a": 1})
        assert '"name":"x_mirrored"' in await client.text("x_mirrored_mirrored")
        assert '"any"' in await client.text("root_any_mirrored", {"any": 1})


async def test_check_and_doctor_report_a_gateway_behind_the_gateway(
    configured: Configured, run: Run, forking_gateway: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = str(forking_gateway)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    ended = await run("check", "--config", str(configured({"inner": {"command": gateway, "args": ["memory"]}})))
    assert ended.code == 1
    assert "problem: inner: It is an mcp-mirror gateway" in ended.err
    file = tmp_path / "client.json"
    file.write_text(
        json.dumps({"mcpServers": {"inner": {"command": gateway, "args": ["wrap", "--", gateway, "memory"]}}})
    )
    ended = await run("doctor", str(file))
    assert ended.code == 1
    assert "inner: It is an mcp-mirror gateway" in ended.err
    assert (
        f"Run `mcp-mirror uninstall {file}`, and wrap the others: `mcp-mirror install {file} --server NAME`."
        in ended.err
    )


async def test_check_prints_the_words_of_servers_without_control_characters(configured: Configured, run: Run) -> None:
    named = handshaking(serverInfo={"name": "x\x1b]0;title\x07", "version": "1\n2\u202e"})
    unlisted = handshaking(capabilities={"tools": {}})
    long = unlisted["args"][1].replace('"no"', "'no \x1b[31mkey\\n\u202eat all' + 10_000 * 'x'")
    unlisted["args"][1] = long.replace("print(", "'id' in request and print(")
    refusing = ANSWERS.replace("is_handshake else", "None else").replace('"no"', "'no \x1b[31mkey\\n\u202eat all'")
    program = {"command": sys.executable, "args": ["-c", f"RESULT = 0\n{refusing}"]}
    upstreams = {"named": named, "unlisted": unlisted, "refusing": program}
    checked = await run("check", "--config", str(configured(upstreams)))
    assert "named: ready, x\\u001b]0;title\\u0007 1\\u000a2\\u202e, protocol" in checked.out
    assert "unlisted: It refused tools/list: no \\u001b[31mkey \\u202eat allxxx" in checked.err
    assert len(checked.err) < 4_000
    assert "refusing: It refused to connect: no \\u001b[31mkey \\u202eat all (error -32601)." in checked.err


async def test_a_server_that_ends_at_discovery_gets_the_older_handshake(
    configured: Configured, run: Run, raw: Any
) -> None:
    ended = await run("check", "--config", str(configured({"strict": raw("strict")})))
    assert (ended.code, ended.err) == (0, "")
    assert "strict: ready, raw 7, protocol 2025-11-25" in ended.out


@pytest.mark.slow
async def test_ten_thousand_tools_on_many_pages_are_listed(configured: Configured, connect: Any, raw: Any) -> None:
    async with connect(configured({"many": raw("pages")})) as client:
        listed = (await client.list_tools()).tools
        assert len([tool for tool in listed if tool.name.endswith("_mirrored")]) == 10_000
        assert listed[9_999].name == "tool_09999_mirrored"


async def test_pages_that_go_round_end(configured: Configured, run: Run, raw: Any) -> None:
    checked = await run("check", "--config", str(configured({"round": raw("loop")})))
    assert "say_mirrored" in checked.out
    assert "`limits.max_listing_pages` (1,000)" in checked.err


async def test_a_server_that_forgot_the_session_is_asked_again_in_a_new_one(
    configured: Configured, open_lines: OpenLines, listening: Listening, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with listening("raw_http.py", "--log", str(log)) as port:
        async with open_lines(configured({"raw": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client:
            await client.greet()
            await client.text("forget_mirrored")
            assert "hello" in await client.text("hear_mirrored", {"text": "hello"})
        assert log.read_text().count("initialize") == 4  # two requests, two notifications


async def test_a_restarted_server_is_found_again(
    configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    async with AsyncExitStack() as stack:
        async with listening("raw_http.py", str(free_port())) as port:
            config = configured({"raw": {"url": f"http://127.0.0.1:{port}/mcp"}})
            client = await stack.enter_async_context(open_lines(config))
            await client.greet()
            assert "one" in await client.text("hear_mirrored", {"text": "one"})
        answer = await client.text("hear_mirrored", {"text": "two"})
        assert (
            f"'raw' did not answer 'hear'. The connection to 127.0.0.1:{port} failed: nothing listens there." in answer
        )
        assert "did not answer 'hear'" in await client.text("hear_mirrored", {"text": "two"})
        async with listening("raw_http.py", port):
            assert "three" in await client.text("hear_mirrored", {"text": "three"})
    logged = b"".join(client.stderr).decode()
    assert logged.count(f"'raw' did not answer 'hear'. The connection to 127.0.0.1:{port} failed") == 1


async def test_the_log_reports_a_rejected_token_also_after_an_outage(
    configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    async with AsyncExitStack() as stack:
        async with listening("raw_http.py", str(free_port())) as port:
            config = configured(
                {"raw": {"url": f"http://127.0.0.1:{port}/mcp", "headers": {"Authorization": "Bearer x"}}}
            )
            client = await stack.enter_async_context(open_lines(config))
            await client.greet()
            assert "one" in await client.text("hear_mirrored", {"text": "one"})
        assert "nothing listens there" in await client.text("hear_mirrored", {"text": "two"})
        cause = f"Upstream 'raw' failed during 'hear': 127.0.0.1:{port} answered with HTTP status 401 instead of MCP."
        async with listening("raw_http.py", port, "--status", "401"):
            for _ in range(2):
                assert f"{cause} It rejected the token" in await client.text("hear_mirrored", {"text": "three"})
    assert b"".join(client.stderr).decode().count(f": {cause}") == 1


@pytest.mark.parametrize("style", ["json", "lf"])
async def test_a_broken_http_answer_costs_one_call(
    style: str, configured: Configured, open_lines: OpenLines, listening: Listening
) -> None:
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(listening("raw_http.py", "--style", style))
        config = configured({"raw": {"url": f"http://127.0.0.1:{port}/mcp"}})
        client = await stack.enter_async_context(open_lines(config))
        await client.greet()
        for tool in ("cut", "rot", "nothing"):
            assert f"'raw' {'closed' if tool == 'cut' else 'did not answer'}" in await client.text(f"{tool}_mirrored")
            assert "hello" in await client.text("hear_mirrored", {"text": "hello"})


async def test_a_result_that_comes_on_a_resumed_stream_is_lifted(
    configured: Configured, open_lines: OpenLines, listening: Listening, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    async with listening("raw_http.py", "--log", str(log)) as port:
        async with open_lines(configured({"raw": {"url": f"http://127.0.0.1:{port}/mcp"}})) as client:
            await client.greet()
            assert (
                "1e400"
                in json.loads(await client.call("resume_mirrored", '{"n": 1e400}'))["result"]["content"][0]["text"]
            )
        assert "GET 1" in log.read_text()


async def test_the_data_of_an_error_follow_its_message(open_client: OpenClient, raw: Any) -> None:
    data = {"cause": "no column 'price'", "key": "c4nary-v4lue"}
    async with open_client({"raw": raw() | {"env": {"SECRET": "c4nary-v4lue"}}}) as client:
        answer = await client.text("refuse_mirrored", {"message": "Internal error", "data": data})
    details = '{"cause":"no column \'price\'","key":"***"}'
    assert answer == f"Upstream 'raw' refused 'refuse': Internal error (error -32000). Data: {details}"


@pytest.mark.parametrize("spool_bytes", [1 << 24, 1000], ids=["in memory", "in a file"])
async def test_the_whole_error_of_an_upstream_can_be_read(spool_bytes: int, open_client: OpenClient, raw: Any) -> None:
    short = "Traceback:\n" + "  at a frame\n" * 100 + "ValueError: column 'price' is missing"
    long = short.replace("  at a frame\n", "  at a frame\n" * 100)
    secret = raw() | {"env": {"SECRET": "c4nary-v4lue"}}
    async with open_client({"raw": secret}, limits={"spool_bytes": spool_bytes}) as client:
        for end in ("", ".", "\n", ".\n\n"):  # programs end their output with a newline
            answer = await client.text("refuse_mirrored", {"message": short + end})
            assert answer == f"Upstream 'raw' refused 'refuse': {short} (error -32000)."
        refused = json.loads(await client.call("refuse_mirrored", json.dumps({"message": f"%s\n{long}"})))["result"]
        assert refused["isError"] is True
        (notice,) = refused["content"]
        assert len(notice["text"]) < 2_000
        assert "'raw' refused 'refuse': no such key: ***" in notice["text"]
        assert "column 'price' is missing (error -32000)." in notice["text"]
        path = notice["text"].splitlines()[0].strip('"')
        end = await client.text("memory_grep", {"memory_path": path, "pattern": "ValueError"})
        assert end.endswith("column 'price' is missing (error -32000).")


async def test_a_path_of_a_gateway_behind_the_gateway_is_explained(
    configured: Configured, connect: Connect, forking_gateway: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    inner = {"command": str(forking_gateway), "args": ["memory"]}
    wanted = "If a tool of 'inner' returned it, another mcp-mirror gateway stored the value"

    async def text(client: Client, tool: str, **arguments: Any) -> tuple[str, bool]:
        result = await client.call_tool(tool, arguments)
        assert isinstance(result.content[0], TextContent)
        return result.content[0].text, result.is_error

    async with connect(configured({"inner": inner})) as client:
        stored, is_error = await text(client, "memory_put_mirrored", value="x" * 4_000)
        assert not is_error, stored
        path = stored.split('"')[1]
        for tool in ("retrieve_final_answer_from_memory", "memory_read", "memory_describe_mirrored"):
            message, is_error = await text(client, tool, memory_path=path)
            assert is_error
            assert wanted in message, tool
