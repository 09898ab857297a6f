"""A stage of your own, which bounds how often a caller uses each tool: `python examples/quota_stage.py`."""

import asyncio
from collections import Counter

from mcp_mirror import Call, Mirror, Next, ToolResult
from mcp_mirror.errors import ToolError


class Quota:
    """Refuses further calls of a tool by the same caller."""

    def __init__(self, most: int) -> None:
        """Allow this many calls of each tool."""
        self._most = most
        self._calls = Counter[tuple[str, str]]()

    async def __call__(self, call: Call, call_next: Next) -> ToolResult:
        """Count a call and pass it on, or refuse it; the model reads the error."""
        key = call.namespace, call.name
        self._calls[key] += 1
        if self._calls[key] > self._most:
            raise ToolError(f"{call.name} was called {self._most} times, which is the limit. Use the results you have.")
        return await call_next(call)


mirror = Mirror(stages=[Quota(most=2)])


@mirror.tool
def search(text: str) -> str:
    """Search for a text."""
    return f"Nothing about {text}."


async def main() -> None:
    """Call a tool once more than the quota allows."""
    async with mirror:
        for word in ("pipelines", "stages", "quotas"):
            print((await mirror.call("search_mirrored", {"text": word})).text)


if __name__ == "__main__":
    asyncio.run(main())
