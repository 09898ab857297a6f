"""Pieces of large messages: the event loop handles a few in each pass, for the senders in turn."""

import asyncio
from typing import Final

import anyio.lowlevel

from mcp_mirror.system.fair_queue import FairQueue

_AT_ONCE: Final = 4
"""Pieces, of up to 256 KiB, that a pass of the event loop handles."""
_turns: Final = anyio.lowlevel.RunVar[FairQueue]("mcp_mirror.fair_turns")


async def wait_for_turn(sender: str) -> None:
    """Wait until the event loop may handle a piece of a message, such as a part of an HTTP body.

    A sender that must wait is not read in the meantime, so its message stays with it.
    """
    turns = _turns.get(None)
    if turns is None:
        _turns.set(turns := FairQueue(_AT_ONCE))
    if not turns.try_enter(sender, _AT_ONCE):
        await turns.wait(sender, _AT_ONCE, None)
    asyncio.get_running_loop().call_soon(turns.release, sender)
