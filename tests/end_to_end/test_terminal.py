"""Commands whose standard streams are a terminal."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from contextlib import asynccontextmanager
from itertools import product
from typing import TYPE_CHECKING, Any

import pytest
from gateway_processes import GatewayProcess, start_command
from samples import sample
from tests.end_to_end.conftest import BOUND, SERVERS

from mcp_mirror import Mirror

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from tests.end_to_end.conftest import Configured

pytestmark = [
    pytest.mark.posix,
    pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals need a POSIX system"),
]
END = b"(end)"
SHOW_CURSOR = b"\x1b[?25h"
ERASE_LINE = b"\x1b[2K"
NO_SETTINGS = ("FORCE_COLOR", "NO_COLOR", "COLUMNS", "LINES", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
"""Variables with which rich does not look at the terminal."""


class Terminal:
    """A pseudo terminal: commands write to `device`, tests read what it shows."""

    def __init__(self, device: int, shown: asyncio.StreamReader) -> None:
        self.device = device
        self._shown = shown

    async def read_until(self, text: bytes) -> bytes:
        return await asyncio.wait_for(self._shown.readuntil(text), BOUND)

    async def read_rest(self) -> bytes:
        """What the terminal shows of commands that have ended."""
        os.write(self.device, END)
        return await self.read_until(END)


@asynccontextmanager
async def open_terminal(columns: int = 0) -> AsyncIterator[Terminal]:
    ours, device = os.openpty()
    if columns:
        import termios  # noqa: PLC0415  # Windows does not have it

        termios.tcsetwinsize(device, (24, columns))
    shown = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(shown), os.fdopen(ours, "rb", 0)
    )
    try:
        yield Terminal(device, shown)
    finally:
        transport.close()
        os.close(device)


@asynccontextmanager
async def start(*args: str, **keys: Any) -> AsyncIterator[GatewayProcess]:
    environment = {key: value for key, value in os.environ.items() if key not in NO_SETTINGS} | {"TERM": "xterm"}
    keys = {"stdin": DEVNULL, "stdout": PIPE, "stderr": PIPE, **keys}
    environment |= keys.pop("env", {})
    process = await start_command(*args, env=environment, **keys)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await asyncio.wait_for(process.wait(), BOUND)


@pytest.fixture
def call(configured: Configured, tmp_path: Path) -> list[str]:
    """The arguments of a call that reports progress, and then waits for the file `gate`."""
    upstream = {"command": sys.executable, "args": [str(SERVERS / "slow.py"), str(tmp_path / "log")]}
    config = str(configured({"slow": upstream}, mirror={"capture": "never"}))
    arguments = {"steps": "2", "pause": "0", "message": "Reading\n\x1b[31mpages", "gate": str(tmp_path / "gate")}
    options = [f"--arg={key}={value}" for key, value in arguments.items()]
    return ["call", "work_mirrored", "--config", config, *options]


async def test_call_on_a_terminal_shows_the_progress_of_the_upstream(call: list[str], tmp_path: Path) -> None:
    async with open_terminal() as terminal, start(*call, stderr=terminal.device) as process:
        shown = await terminal.read_until(b" s, 2/2, Reading ")
        shown += await terminal.read_until(b"pages")
        assert b"work_mirrored: " in shown
        (tmp_path / "gate").touch()
        output, _ = await asyncio.wait_for(process.communicate(), BOUND)
        rest = await terminal.read_rest()
    assert (process.returncode, output) == (0, b"done\n")
    assert b"\x1b[31m" not in shown + rest
    assert rest.endswith(ERASE_LINE + END)
    assert SHOW_CURSOR in rest


async def test_call_on_a_terminal_shows_the_upstreams_it_waits_for(
    configured: Configured, raw: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "late"
    config = str(configured({"late": raw("ok", "--gate", str(gate))}, mirror={"capture": "never"}))
    async with (
        open_terminal() as terminal,
        start("call", "hear_mirrored", "--config", config, stderr=terminal.device) as process,
    ):
        await terminal.read_until(b"hear_mirrored: ")
        await terminal.read_until(b" s, waiting for late")
        gate.touch()
        await asyncio.wait_for(process.communicate(), BOUND)


async def test_ctrl_c_during_a_call_erases_its_progress(call: list[str]) -> None:
    async with open_terminal() as terminal, start(*call, stderr=terminal.device) as process:
        await terminal.read_until(b"2/2, Reading ")
        process.send_signal(signal.SIGINT)
        output, _ = await asyncio.wait_for(process.communicate(), BOUND)
        rest = await terminal.read_rest()
    assert (process.returncode, output) == (130, b"")
    assert SHOW_CURSOR in rest
    assert rest.endswith(ERASE_LINE + END)


async def test_a_result_sends_a_terminal_no_control_characters(configured: Configured, raw: Any) -> None:
    config = str(configured({"raw": raw("ok")}, mirror={"capture": "never"}))
    text = {"type": "text", "text": "\x1b]52;c;bWluZQ==\x07red \x1b[31m\u202eto\n\tline\r\x9b2J two"}
    result = json.dumps(json.dumps({"content": [text]}))
    arguments = ("call", "say_mirrored", "--config", config, "--arg", f"result={result}")
    async with start(*arguments) as process:
        output, _ = await asyncio.wait_for(process.communicate(), BOUND)
    assert output.decode() == text["text"] + "\n"
    async with open_terminal() as terminal, start(*arguments, stdout=terminal.device) as process:
        shown = await terminal.read_until(b" two")
        await asyncio.wait_for(process.communicate(), BOUND)
    assert shown.decode().replace("\r\n", "\n") == "]52;c;bWluZQ==red [31mto\n\tline2J two"


async def test_a_change_sends_a_terminal_no_control_characters(tmp_path: Path) -> None:
    file = tmp_path / "client.json"
    server = {"command": "python3", "args": ["a\u202eb\x9b31m"]}
    file.write_text(json.dumps({"mcpServers": {"one": server}}, ensure_ascii=False, indent="\t"), encoding="utf-8")
    arguments = ("install", str(file), "--dry-run")
    async with start(*arguments) as process:
        output, _ = await asyncio.wait_for(process.communicate(), BOUND)
    assert "a\u202eb\x9b31m" in output.decode()
    async with open_terminal() as terminal, start(*arguments, stdout=terminal.device) as process:
        await asyncio.wait_for(process.communicate(), BOUND)
        shown = (await terminal.read_rest()).decode()
    assert "\\u202eb\\u009b31m" in shown
    assert "\\u0009" not in shown
    assert not {"\u202e", "\x9b"} & set(shown)


@pytest.mark.parametrize("env", sample([{}, {"FORCE_COLOR": "1"}], bool), ids=["plain", "colors"])
async def test_call_on_a_pipe_prints_only_the_result(call: list[str], tmp_path: Path, env: dict[str, str]) -> None:
    (tmp_path / "gate").touch()
    async with start(*call, env=env) as process:
        assert await asyncio.wait_for(process.communicate(), BOUND) == (b"done\n", b"")
    assert process.returncode == 0


async def test_check_on_a_terminal_shows_the_upstreams_it_waits_for(
    configured: Configured, raw: Any, tmp_path: Path
) -> None:
    gate = tmp_path / "late"
    config = str(configured({"late": raw("ok", "--gate", str(gate)), "quick": raw()}))
    async with open_terminal() as terminal, start("check", "--config", config, stdout=terminal.device) as process:
        await terminal.read_until(b"quick: ready")
        await terminal.read_until(b"late: starting, ")
        gate.touch()
        await terminal.read_until(b"late: ready")
        await asyncio.wait_for(process.communicate(), BOUND)
        assert b"starting" not in (await terminal.read_rest()).rpartition(ERASE_LINE)[2]


@pytest.mark.parametrize("name", ["serve", "wrap", "memory"])
async def test_a_gateway_on_a_terminal_says_that_it_waits_and_stops_at_ctrl_c(
    name: str, configured: Configured, raw: Any, tmp_path: Path
) -> None:
    server = raw()
    words = {
        "serve": ["--config", str(configured({"raw": server}))],
        "wrap": ["--store", str(tmp_path), "--", server["command"], *server["args"]],
        "memory": ["--store", str(tmp_path)],
    }
    terminal, other = os.openpty()
    process = await start_command(name, *words[name], stdin=other, stdout=DEVNULL, stderr=PIPE)
    try:
        assert process.stderr is not None
        line = b""
        async with asyncio.timeout(BOUND):  # the wrapped server may print before
            while b"waits for an MCP client" not in line:
                line = await process.stderr.readline()
                assert line
        assert b"Ctrl-C" in line
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), BOUND) == 130
    finally:
        if process.returncode is None:
            process.kill()
        os.close(terminal)
        os.close(other)


LONG = "find_customers_by_postal_code"
"""The name of a tool."""
TABLES = {
    "values list": ("tool", "upstream", "kind", "stored size", "age", "expires in"),
    "usage --by tool": ("calls", "errors", "refused", "bytes", "tokens sent", "tokens kept out", "mean ms"),
    "stats": ("values", "size", "tokens sent", "tokens kept out", "ratio"),
    "check": ("upstream", "tool", "tokens", "original"),
}
"""Commands, with columns of their tables after the first."""


@pytest.fixture
async def customers(configured: Configured, raw: Any) -> tuple[str, str]:
    """A configuration with a stored value of a tool with a long name, and the path of the value."""
    config = configured({"customer_relationships": raw()}, store={"kind": "disk"})
    mirror = Mirror(upstreams=str(config))
    mirror.tool(make_rows)
    async with mirror:
        reply = await mirror.call(f"{LONG}_mirrored", {})
    path = reply.path
    assert path, reply
    return str(config), path


def make_rows() -> list[int]:
    """Rows."""
    return list(range(9000))


make_rows.__name__ = LONG


@pytest.mark.parametrize(
    ("command", "columns"),
    sample(product(TABLES, (60, 80, 200)), lambda case: case[1] == 60 or case[0] == "values list"),
)
async def test_tables_fit_the_terminal_and_no_name_is_broken(
    customers: tuple[str, str], command: str, columns: int
) -> None:
    config, path = customers
    async with (
        open_terminal(columns) as terminal,
        start(*command.split(), "--config", config, stdout=terminal.device) as process,
    ):
        await asyncio.wait_for(process.communicate(), BOUND)
        shown = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", await terminal.read_rest()).decode()
    lines = [
        line for line in shown.replace("(end)", "").splitlines() if ": ready, " not in line and ": starting" not in line
    ]
    names = {
        "values list": {path, LONG},
        "usage --by tool": {f"{LONG}_mirrored"},
        "stats": {"local"},
        "check": {"say_mirrored"},
    }
    assert names[command] <= {word.strip(",") for word in shown.split()}
    table = " ".join(shown.split())
    assert all(all(word in table for word in column.split()) for column in TABLES[command])
    assert all(len(line) <= columns or len(line.split()) == 1 for line in lines if "cost " not in line)


@pytest.mark.parametrize("command", TABLES)
async def test_tables_in_a_pipe_have_no_empty_lines(customers: tuple[str, str], command: str) -> None:
    config, _ = customers
    async with start(*command.split(), "--config", config) as process:
        output, _ = await asyncio.wait_for(process.communicate(), BOUND)
    lines = output.decode().splitlines()
    assert lines
    assert all(line.strip() for line in lines)
