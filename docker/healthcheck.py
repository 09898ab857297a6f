"""Checks the gateway of a container: exit code 0 if it is healthy.

Over HTTP, its liveness probe must answer. On stdio it is healthy while it runs, because its client would notice.
"""

import http.client
import sys
from pathlib import Path

TIMEOUT = 4.0
"""Seconds."""


def find_address(command: list[str]) -> tuple[str, int] | None:
    """Return the address that a `mcp-mirror serve` command serves, as seen from the container; None for stdio."""
    for option, value in zip(command, [*command[1:], ""], strict=True):
        name, _, attached = option.partition("=")
        if name == "--http":
            host, _, port = (attached or value).rpartition(":")
            host = host.strip("[]")
            return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host), int(port)  # noqa: S104  # compared
    return None


def is_healthy(command: list[str]) -> bool:
    """Whether the gateway that a command started is healthy."""
    address = find_address(command)
    if address is None:
        return True
    connection = http.client.HTTPConnection(*address, timeout=TIMEOUT)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except OSError:
        return False
    finally:
        connection.close()


if __name__ == "__main__":
    started = Path("/proc/1/cmdline").read_bytes().decode().split("\0")
    sys.exit(0 if is_healthy(started) else 1)
