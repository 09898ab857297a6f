"""Two functions as tools, and the MCP server of `mirror.yaml`, with one memory.

The examples for frameworks import `mirror` from this file. `python measurements.py` serves the same tools to any MCP
client over stdio, for programs that cannot install the library.
"""

import asyncio
import math
from pathlib import Path
from typing import Annotated

from pydantic import Field

from mcp_mirror import Mirror

mirror = Mirror(upstreams=Path(__file__).with_name("mirror.yaml"))


@mirror.tool
async def load_table(city: Annotated[str, Field(description="such as Bonn")]) -> dict[str, list[float]]:
    """A year's hourly temperatures of a city."""
    hours = [float(hour) for hour in range(8760)]
    return {"hour": hours, "celsius": [round(10 + len(city) * math.sin(hour / 1394), 3) for hour in hours]}


@mirror.tool
def average(values: list[float]) -> float:
    """The mean of the values."""
    return round(sum(values) / len(values), 6)


QUESTION = "How warm was Bonn on average, and in how many hours was it above 12 degrees?"

if __name__ == "__main__":
    asyncio.run(mirror.serve_stdio())
