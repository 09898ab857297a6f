"""A program with a tool that blocks the event loop, which no tool should do."""

import asyncio
import time

from mcp_mirror import Mirror
from mcp_mirror.system.event_loop import measure_stalls, new_event_loop

mirror = Mirror()


@mirror.tool
async def block(seconds: float) -> str:
    """Block the event loop."""
    time.sleep(seconds)  # noqa: ASYNC251  # that is the fault
    return "done"


async def serve() -> None:
    """Serve the tool with a measured event loop, as `mcp-mirror serve` does."""
    measure_stalls()
    await mirror.serve_stdio()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
