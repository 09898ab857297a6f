"""Commands whose standard input is a terminal."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE
from typing import TYPE_CHECKING, Any

import pytest
from gateway_processes import COMMAND
from tests.walk.conftest import BOUND

if TYPE_CHECKING:
    from tests.walk.conftest import Configured


@pytest.mark.skipif(sys.platform == "win32", reason="pseudo terminals need a POSIX system")
async def test_serve_on_a_terminal_says_that_it_waits_and_stops_at_ctrl_c(configured: Configured, raw: Any) -> None:
    terminal, other = os.openpty()
    process = await asyncio.create_subprocess_exec(
        COMMAND, "serve", "--config", str(configured({"raw": raw()})), stdin=other, stdout=DEVNULL, stderr=PIPE
    )
    try:
        assert process.stderr is not None
        line = await asyncio.wait_for(process.stderr.readline(), BOUND)
        assert b"waits for an MCP client" in line
        assert b"Ctrl-C" in line
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), BOUND) == 130
    finally:
        if process.returncode is None:
            process.kill()
        os.close(terminal)
        os.close(other)
