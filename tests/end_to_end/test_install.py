"""The gateway installed in a client: the command in the client's file serves the servers that were there."""

from __future__ import annotations

import asyncio
import json
import signal
import sqlite3
import sys
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from gateway_processes import start_executable
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp_types import ListRootsResult
from notices import path_in
from samples import sample
from tests.end_to_end.conftest import BOUND, SERVERS
from waiting import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from tests.end_to_end.conftest import Run


@pytest.fixture(autouse=True)
def home(forking_gateway: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A folder of a user, into whose clients a command is installed that runs as a fork."""
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.setenv("FORKED_EXECUTABLE", str(forking_gateway.with_name("python")))


@pytest.fixture
def real_command(home: None, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001  # sets what this removes
    """The installed command is the executable."""
    monkeypatch.delenv("FORKED_EXECUTABLE")


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    """Writes the client's file."""

    def write(**servers: Any) -> Path:
        file = tmp_path / "Claude" / "claude_desktop_config.json"
        file.parent.mkdir()
        file.write_text(json.dumps({"scale": 2, "mcpServers": servers}))
        return file

    return write


@pytest.mark.usefixtures("real_command")
async def test_the_installed_command_serves_the_clients_servers(
    chemist: dict[str, Any], write: Callable[..., Path], run: Run
) -> None:
    file = write(chemist=chemist)
    before = json.loads(file.read_text())
    ended = await run("install", "claude-desktop", "--merge")
    assert ended.code == 0, ended.err
    path = path_in(await call(file, "make_grid_mirrored", size=30))
    assert await call(file, "total_mirrored", grid=f"{path}/grid") == "1188000.0"  # the client was restarted
    assert (await run("uninstall", "claude-desktop")).code == 0
    assert json.loads(file.read_text()) == before


async def test_after_install_the_first_list_of_a_client_is_complete(
    raw: Any, write: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    file = write(slow=raw("ok", "--gate", str(gate)))
    ended = await run("install", "claude-desktop", "--merge")
    assert ended.code == 0, ended.err
    assert "slow: ready, raw 7, protocol 2025-11-25, 8 tools" in ended.out
    assert ended.err.splitlines()[-1] == "Restart Claude Desktop."
    gate.unlink()  # from now on the server answers nothing
    async with started(file, list_roots_callback=no_roots) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert "say_mirrored" in names


async def test_a_server_that_does_not_connect_is_reported_and_stays_installed(
    raw: Any, write: Callable[..., Path], run: Run
) -> None:
    file = write(good=raw(), bad=raw("exits"))
    ended = await run("install", "claude-desktop", "--merge")
    assert ended.code == 0, ended.err
    assert "good: ready" in ended.out
    assert "bad: down" in ended.out
    assert "RuntimeError: no licence found" in ended.err
    assert "mcp-mirror check --config" in ended.err.splitlines()[-1]
    assert list(json.loads(file.read_text())["mcpServers"]) == ["mirror"]


async def test_status_and_doctor_know_the_gateway_of_a_merged_client(
    raw: Any, write: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    file = write(good=raw(), bad=raw("exits"))
    assert (await run("install", "claude-desktop", "--merge", "--no-connect")).code == 0
    config = tmp_path / "mcp-mirror" / "claude-desktop.yaml"
    ended = await run("status")
    assert ended.out.splitlines()[1:] == [f"  one gateway (mirror) with 2 servers from {config}"]
    ended = await run("doctor")
    assert (ended.code, ended.out) == (1, "claude-desktop: mirror: 1 of 2 servers is ready\n")
    assert "problem: claude-desktop: mirror: bad: It ended with exit code 3 before it answered." in ended.err
    assert ended.err.splitlines()[-1] == "1 of 2 servers is ready."
    late = json.loads(file.read_text())
    late["mcpServers"]["late"] = {"command": "x"}
    file.write_text(json.dumps(late))
    ended = await run("status")
    assert "not wrapped: late (add them to the configuration of the gateway)" in ended.out
    config.write_text(config.read_text().replace("exits", "ok"))
    ended = await run("doctor")
    assert ended.code == 0, ended.err
    assert "claude-desktop: mirror: ready, 2 servers, after " in ended.out
    assert ended.err.splitlines()[-1] == "2 of 2 servers are ready."
    config.write_text("mcpServers: {good: {comand: x}}")
    for command, code in (("doctor", 1), ("status", 0)):
        ended = await run(command)
        assert ended.code == code
        assert f"problem: claude-desktop: mirror: {config}:1: " in ended.err or f"problem: {config}:1: " in ended.out


async def test_doctor_takes_a_gateway_with_settings_without_effect_for_ready(
    raw: Any, write: Callable[..., Path], run: Run
) -> None:
    write(good={**raw(), "alwaysAllow": ["say"]})
    assert (await run("install", "claude-desktop", "--merge", "--no-connect")).code == 0
    ended = await run("doctor")
    assert ended.code == 0, ended.err
    assert "claude-desktop: mirror: ready, 1 server, after " in ended.out
    assert "mcpServers.good.alwaysAllow: it has no effect here" in ended.err
    assert ended.err.splitlines()[-1] == "1 of 1 server is ready."


async def test_doctor_reports_a_gateway_whose_secrets_others_can_read(
    raw: Any, write: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    write(good={**raw(), "env": {"API_KEY": "s3cret-of-the-server"}})
    await run("install", "claude-desktop", "--merge", "--no-connect")
    config = tmp_path / "mcp-mirror" / "claude-desktop.yaml"
    assert (await run("doctor")).code == 0
    config.chmod(0o644)
    ended = await run("doctor")
    assert ended.code == 1
    assert "other users can read this file (mode 0644)" in ended.err
    assert "ended with exit code" not in ended.err


async def test_install_with_no_connect_starts_no_server(raw: Any, write: Callable[..., Path], run: Run) -> None:
    write(bad=raw("silent"))
    ended = await run("install", "claude-desktop", "--merge", "--no-connect")
    assert (ended.code, ended.out) == (0, "")
    assert "mcp-mirror check --config" in ended.err.splitlines()[-1]


async def test_a_server_wrapped_in_place_keeps_the_names_of_its_tools(
    chemist: dict[str, Any], write: Callable[..., Path], run: Run
) -> None:
    file = write(chemist=chemist)
    before = file.read_bytes()
    ended = await run("install", "claude-desktop")
    assert ended.code == 0, ended.err
    assert list(json.loads(file.read_text())["mcpServers"]) == ["chemist"]
    path = path_in(await call(file, "make_grid", size=40))
    assert float(await call(file, "total", grid=f"{path}/grid")) > 0  # the client was restarted
    ended = await run("doctor", "claude-desktop")
    assert ended.code == 0, ended.err
    assert "claude-desktop: chemist: starting" in ended.err
    assert "claude-desktop: chemist: ready, " in ended.out
    assert (await run("uninstall", "claude-desktop")).code == 0
    assert file.read_bytes() == before


async def test_doctor_reports_why_wrapped_servers_do_not_start(
    raw: Any, write: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    file = write(good=raw(), bad=raw("exits"), far={**raw(), "cwd": str(tmp_path / "nowhere")})
    assert (await run("install", "claude-desktop")).code == 0
    ended = await run("doctor")
    assert ended.code == 1
    assert "claude-desktop: good: ready, 10 tools" in ended.out
    assert "problem: claude-desktop: bad: Server 'bad' did not start: " in ended.err
    assert "RuntimeError: no licence found" in ended.err
    assert f"claude-desktop: far: its folder {tmp_path / 'nowhere'} does not exist" in ended.err
    file.write_text(file.read_text().replace('"command": "', '"command": "/nowhere'))
    ended = await run("doctor", "claude-desktop")
    assert ended.code == 1
    assert ended.err.count("does not exist. Run `mcp-mirror uninstall`") == 3


async def test_doctor_reports_a_store_that_the_wrapped_servers_cannot_share(
    raw: Any, write: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    write(good=raw())
    assert (await run("install", "claude-desktop", "--memory")).code == 0
    assert (await run("doctor")).code == 0
    with closing(sqlite3.connect(tmp_path / "mcp-mirror" / "store" / "index.sqlite")) as index, index:
        index.execute("PRAGMA user_version = 1")  # the format of another version
    ended = await run("doctor")
    assert ended.code == 1
    for server in ("good", "mcp-mirror"):
        problem = f"problem: claude-desktop: {server}: it does not share values with other servers. The store in"
        assert problem in ended.err
    assert ended.err.count("has format 1 and this mcp-mirror knows format") == 2
    assert ended.err.splitlines()[-1] == "0 of 2 servers are ready."


async def test_check_and_doctor_report_the_store_that_stdio_would_use(
    raw: Any, write: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    write(good=raw())
    assert (await run("install", "claude-desktop", "--merge", "--no-connect")).code == 0
    assert (await run("check")).code == 0
    assert not (tmp_path / "mcp-mirror" / "store").exists()  # a gateway over HTTP does not need it
    assert (await run("stats")).code == 0
    with closing(sqlite3.connect(tmp_path / "mcp-mirror" / "store" / "index.sqlite")) as index, index:
        index.execute("PRAGMA user_version = 1")  # the format of another version
    loss = "A gateway on stdio keeps values in memory, and loses them when it ends. The store in"
    checked = await run("check")
    assert (checked.code, f"warning: {loss}" in checked.err) == (0, True)
    ended = await run("doctor")
    assert ended.code == 1
    assert f"problem: claude-desktop: mirror: {loss}" in ended.err
    assert ended.err.count("has format 1 and this mcp-mirror knows format") == 1


async def test_doctor_names_a_file_without_a_known_client_by_its_path(raw: Any, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "servers.json"
    file.write_text(json.dumps({"mcpServers": {"good": raw()}}))
    assert (await run("install", str(file))).code == 0
    ended = await run("doctor", str(file))
    assert ended.out.startswith(f"{file}: good: ready, 10 tools")


async def test_doctor_prints_each_problem_once_and_a_summary(raw: Any, write: Callable[..., Path], run: Run) -> None:
    named = {"command": sys.executable, "args": ["-c", "raise SystemExit('no key')", "named"]}  # its name is redacted
    write(good=raw(), none={"command": "/nowhere/server"}, bad=raw("exits"), named=named)
    assert (await run("install", "claude-desktop", "--memory")).code == 0
    ended = await run("doctor")
    assert ended.code == 1
    assert "claude-desktop: mcp-mirror: ready, " in ended.out
    assert ended.err.count("the command '/nowhere/server' does not exist") == 1
    assert all(f"It ended with exit code {code} before it answered" in ended.err for code in (1, 3))
    assert ended.err.count(": no key\n") == 1
    assert ended.err.splitlines()[-1] == "2 of 5 servers are ready."


TRACEBACK = """
Traceback (most recent call last):
  File "server.py", line 7, in <module>
    start()
    ^^^^^^^
  File "server.py", line 4, in start
    load()
    ^^^^^^
  File "server.py", line 2, in load
    raise RuntimeError("no licence")
RuntimeError: no licence
"""


async def test_doctor_prints_the_end_of_the_error_output_in_order(
    write: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    script = tmp_path / "a server.py"
    script.write_text(f"import sys\nsys.exit({TRACEBACK!r})\n")  # at each of two handshakes
    write(bad={"command": sys.executable, "args": [str(script), "--token", "s3cret"], "env": {"KEY": "k3y"}})
    assert (await run("install", "claude-desktop")).code == 0
    ended = await run("doctor")
    _, _, output = ended.err.partition("Its error output: RuntimeError: no licence\n")
    by_hand = f"To run it without mcp-mirror, with the variables of its entry: {sys.executable} '{script}' --token ***"
    printed = [*TRACEBACK.strip().splitlines(), by_hand]
    assert output.splitlines() == [*(f"    {line}" for line in printed), "0 of 1 server is ready."]


async def test_doctor_prints_the_command_of_a_server_without_its_secrets(write: Callable[..., Path], run: Run) -> None:
    commands = {
        "env *** ***": ["env", "KEY=s3cret", "false"],
        "sh -c ***": ["sh", "-c", "KEY=s3cret false"],
        "false ***": ["false", "postgres://ann:s3cret@host/db"],
        "false @scope/server '/a b' --key=*** -v": ["false", "@scope/server", "/a b", "--key=s3cret", "-v"],
    }
    write(**{f"bad{place}": {"command": word, "args": args} for place, (word, *args) in enumerate(commands.values())})
    assert (await run("install", "claude-desktop")).code == 0
    ended = await run("doctor")
    for shown in commands:
        assert f"    To run it without mcp-mirror: {shown}\n" in ended.err
    assert "s3cret" not in ended.err


async def test_doctor_waits_for_the_server_and_not_for_its_last_listing(
    raw: Any, write: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    gate.touch()
    write(slow=raw("ok", "--gate", str(gate)))
    assert (await run("install", "claude-desktop")).code == 0
    assert (await run("doctor")).code == 0
    gate.unlink()  # from now on the server answers nothing
    ended = await run("doctor", "--timeout", "2")
    assert (ended.code, ended.out) == (1, "")
    assert "problem: claude-desktop: slow: it did not list its tools within 2 s. A first start may" in ended.err


STUCK = """
import os, pathlib, signal, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))
while True:
    signal.pause()
"""
NOISY = "import sys; sys.stderr.write('\\x1b[31mno licence\\x1b[0m\\x07\\n' * 100_000); sys.exit(1)"


@pytest.mark.usefixtures("real_command")
@pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc")
async def test_doctor_ends_at_once_with_ctrl_c_and_its_servers_follow(
    write: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    number = tmp_path / "number"
    write(stuck={"command": sys.executable, "args": ["-c", STUCK, str(number)]})
    assert (await run("install", "claude-desktop")).code == 0
    doctor = await start_executable("doctor")
    await until(lambda: number.exists() and number.read_text())
    server = Path("/proc") / number.read_text()
    doctor.send_signal(signal.SIGINT)
    assert await asyncio.wait_for(doctor.wait(), BOUND) == 130
    assert server.exists()
    await until(lambda: not server.exists())


async def test_doctor_prints_no_control_characters_of_a_server(write: Callable[..., Path], run: Run) -> None:
    write(noisy={"command": sys.executable, "args": ["-c", NOISY]})
    assert (await run("install", "claude-desktop")).code == 0
    ended = await run("doctor")
    assert ended.code == 1
    assert 1 <= ended.err.count("no licence") <= 10
    assert not {"\x1b", "\x07"} & set(ended.err)


@pytest.mark.parametrize("separator", ["--", ""])
async def test_doctor_prints_no_secret_of_an_entry(write: Callable[..., Path], run: Run, separator: str) -> None:
    program = "import os, sys; sys.exit(f'refused: {sys.argv[1:]} {os.environ[\"SHOP_KEY\"]}')"
    args = ["-c", program, "--token=first-secret", "--user", "second-secret"]
    file = write(
        shop={"command": sys.executable, "args": args, "env": {"SHOP_KEY": "third-secret"}},
        remote={"type": "http", "url": "http://127.0.0.1:9/mcp?key=fourth-secret"},
    )
    assert (await run("install", "claude-desktop")).code == 0
    content = json.loads(file.read_text())
    shop = content["mcpServers"]["shop"]
    shop["args"] = [word for word in shop["args"] if word != "--" or separator]
    file.write_text(json.dumps(content))
    ended = await run("doctor")
    assert ended.code == 1
    assert "refused: [" in ended.err
    assert "127.0.0.1:9 failed" in ended.err
    assert "-secret" not in ended.err + ended.out


@pytest.mark.parametrize(
    ("client", "file", "code"),
    sample(
        [("gemini", ".gemini/settings.json", 0), ("cursor", ".cursor/mcp.json", 1)], lambda case: case[0] == "gemini"
    ),
)
async def test_doctor_replaces_bare_variables_where_the_client_does(
    client: str, file: str, code: int, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FOLDER_OF_SERVERS", str(SERVERS))
    path = tmp_path / file
    path.parent.mkdir()
    args = ["$FOLDER_OF_SERVERS/raw.py", "ok", "--name", "$NOT_SET"]
    path.write_text(json.dumps({"mcpServers": {"x": {"command": sys.executable, "args": args}}}))
    assert (await run("install", client)).code == 0
    ended = await run("doctor", client)
    assert ended.code == code, ended.err
    assert (f"{client}: x: ready, 10 tools" in ended.out) == (code == 0)


async def test_doctor_names_the_variables_that_only_the_client_sets(
    raw: Any, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / ".cursor" / "mcp.json"
    path.parent.mkdir()
    placed = {**raw(), "cwd": "${workspaceFolder}"}
    args = ["${userHome}/raw.py", "${userHome}", "${workspaceFolder}"]
    servers = {"placed": placed, "named": {"command": sys.executable, "args": args}, "bad": raw("exits")}
    servers["remote"] = {"url": "http://127.0.0.1:9/mcp?key=k"}  # `wrap` reads its address from a variable of the entry
    path.write_text(json.dumps({"mcpServers": servers}))
    assert (await run("install", "cursor")).code == 0
    ended = await run("doctor", "cursor")
    assert ended.code == 1
    found = {part.split(":")[1].strip(): part for part in ended.err.split("problem: ")[1:]}
    assert "The entry contains ${workspaceFolder}, which is not set here. If Cursor" in found["placed"]
    assert "The entry contains ${userHome}, ${workspaceFolder}, which are not set here." in found["named"]
    assert "The entry contains" not in found["bad"] + found["remote"]
    monkeypatch.setenv("workspaceFolder", str(tmp_path))
    ended = await run("doctor", "cursor")
    assert "cursor: placed: ready, 10 tools" in ended.out, ended.err
    assert "The entry contains ${userHome}, which is not set here." in ended.err


NO_MESSAGE = "its answer is not a message of MCP"
ANSWERS = {
    "nothing": ("", "it ended the connection"),
    "text": ("licence missing\n", NO_MESSAGE),
    "array": ("[]\n", NO_MESSAGE),
    "deep": ("[" * 100_000 + "\n", NO_MESSAGE),
    "error": ('{"id": "initialize", "error": {"message": "No licence."}}\n', "No licence."),
    "empty": ('{"id": "initialize", "result": {}}\n{"id": "tools/list", "result": {}}\n', NO_MESSAGE),
    "none": (
        '{"id": "initialize", "result": {}}\n{"id": "tools/list", "result": {"tools": []}}\n',
        "it lists no tools",
    ),
}


@pytest.mark.skipif(sys.platform == "win32", reason="a script")
async def test_doctor_reports_what_a_program_answers_in_place_of_tools(
    write: Callable[..., Path], run: Run, tmp_path: Path
) -> None:
    for name, (answer, _) in ANSWERS.items():
        file, program = tmp_path / name / "answer", tmp_path / name / "mcp-mirror"
        file.parent.mkdir()
        file.write_text(answer)
        program.write_text(f"#!/bin/sh\nread line\ncat '{file}'\ntest -s '{file}' && exec cat > /dev/null\n")
        program.chmod(0o755)
    write(**{name: {"command": str(tmp_path / name / "mcp-mirror"), "args": ["wrap", "--", "x"]} for name in ANSWERS})
    ended = await run("doctor")
    assert (ended.code, ended.out) == (1, "")
    for name, (_, problem) in ANSWERS.items():
        assert f"problem: claude-desktop: {name}: {problem}" in ended.err


async def test_doctor_without_a_wrapped_server_says_so(write: Callable[..., Path], run: Run) -> None:
    write(x={"command": "x"})
    ended = await run("doctor")
    assert (ended.code, ended.out) == (0, "")
    assert "No server is wrapped" in ended.err


async def no_roots(_context: Any) -> ListRootsResult:
    return ListRootsResult(roots=[])


async def call(file: Path, tool: str, **arguments: Any) -> str:
    """What a client that starts the only server in this file reads of a call; the client ends then."""
    async with started(file) as client:
        [block] = (await client.call_tool(tool, arguments)).content
        assert block.type == "text"
        return block.text


@asynccontextmanager
async def started(file: Path, **keys: Any) -> AsyncIterator[Client]:
    """A client that starts the only server in this file."""
    [entry] = json.loads(file.read_text())["mcpServers"].values()
    home = dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME"), str(file.parents[1]))
    entry["env"] = {**entry.get("env", {}), **home}
    async with Client(stdio_client(StdioServerParameters(**entry)), **keys) as client:
        yield client
