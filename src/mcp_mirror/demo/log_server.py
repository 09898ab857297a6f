"""An MCP server with invented log files of a shop: `python -m mcp_mirror.demo.log_server`, on stdio."""

from collections import Counter
from typing import Final

from mcp.server import MCPServer

server: Final = MCPServer("shop logs", version="1")

_LINES: Final = 4_000
_REQUESTS: Final = ("GET /cart", "GET /products/lamp", "POST /orders", "GET /search?q=desk", "POST /login")
_DISKS: Final = ("sda", "sdb", "sdc")


@server.tool()
def list_days() -> str:
    """The days for which there is a log."""
    return "monday, tuesday, wednesday"


@server.tool()
def read_log(day: str) -> str:
    """The web server's log of one day.

    Args:
        day: Its name, such as `monday`.
    """
    offset = sum(day.encode())
    return "\n".join(_line(number, offset) for number in range(_LINES))


@server.tool()
def count_errors(log: str) -> str:
    """Count the errors in a log by disk.

    Args:
        log: The text of the log.
    """
    counts = Counter(line.split()[3] for line in log.splitlines() if " ERROR " in line)
    return ", ".join(f"{disk} {count}" for disk, count in counts.most_common())


def _line(number: int, offset: int) -> str:
    hour, minute, second = number // 170 % 24, number // 3 % 60, number * 7 % 60
    clock = f"{hour:02}:{minute:02}:{second:02}"
    if (number + offset) % 89 == 0:
        return f"{clock} ERROR disk {_DISKS[number * number % 7 % 3]} timed out after {200 + number % 700} ms"
    return f"{clock} info request {_REQUESTS[(number * 7 + offset) % 5]} took {number * 13 % 40} ms"


if __name__ == "__main__":
    server.run()
