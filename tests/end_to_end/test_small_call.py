"""How much of the package a small call passes through: a stranger has to read that much to understand it."""

import sys
from pathlib import Path
from types import FrameType

import pytest

import mcp_mirror
from mcp_mirror import Mirror

PACKAGE = str(Path(mcp_mirror.__file__).parent)
SERVER = str(Path(__file__).parents[1] / "bench" / "raw_server.py")
MOST_MODULES = 40
MOST_CALLS = 170


@pytest.mark.posix
async def test_a_small_call_enters_few_modules_and_functions() -> None:
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered.append(frame.f_code.co_filename)

    async with Mirror(upstreams={"raw": {"command": sys.executable, "args": [SERVER]}}) as mirror:
        for _ in range(3):
            await mirror.call("echo_mirrored", {"text": "hi"})
        sys.setprofile(note)
        try:
            reply = await mirror.call("echo_mirrored", {"text": "hi"})
        finally:
            sys.setprofile(None)
    assert reply.text == "hi"
    modules = sorted(set(entered))
    assert len(modules) <= MOST_MODULES, modules
    assert len(entered) <= MOST_CALLS
