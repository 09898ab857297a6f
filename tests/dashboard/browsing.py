"""A headless Chromium for the tests, driven over Node."""

import asyncio
import json
import os
import shutil
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NODE_MODULES = HERE.parent / "node" / "node_modules"
NODE = NODE_MODULES / "node" / "bin" / "node"
SHOTS = os.environ.get("DASHBOARD_SHOTS")
"""The folder for screenshots; None: none are made."""
BOUND = 90.0
"""Seconds that one command may take."""


def find_missing() -> str:
    """Why the browser tests cannot run; empty if they can."""
    if find_chromium() is None:
        return "chromium was not found: apt-get install chromium"
    if not NODE.is_file() or not (NODE_MODULES / "axe-core").is_dir():
        return "the Node packages of the tests were not found: make node"
    return ""


def find_chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@dataclass
class Browser:
    """A page in a headless Chromium."""

    process: asyncio.subprocess.Process

    async def __call__(self, command: str, **given: Any) -> Any:
        assert self.process.stdin
        assert self.process.stdout
        self.process.stdin.write(json.dumps({"command": command, **given}).encode() + b"\n")
        line = await asyncio.wait_for(self.process.stdout.readline(), BOUND)
        answer = json.loads(line)
        assert "error" not in answer, f"{command} {given}: {answer['error']}"
        return answer["answer"]


@asynccontextmanager
async def open_browser() -> AsyncIterator[Browser]:
    chromium = find_chromium()
    assert chromium
    process = await asyncio.create_subprocess_exec(
        NODE, HERE / "browser.mjs", NODE_MODULES / "index.js", chromium, stdin=PIPE, stdout=PIPE, limit=1 << 24
    )
    browser = Browser(process)
    try:
        yield browser
        await browser("close")
        await asyncio.wait_for(process.wait(), BOUND)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
