"""Runs the built image read-only with servers of npx and uvx, and an SDK client over stdio and HTTP."""

import asyncio
import http.client
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from container import IMAGE, podman, podman_run, run
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

FILES: Final = ["npx", "-y", "@modelcontextprotocol/server-filesystem", "/files"]
CLOCK: Final = ["uvx", "mcp-server-time"]
LOG: Final = "".join(f"{line:05d} {'ERROR disk full' if line % 50 == 0 else 'info ok'}\n" for line in range(1_000))
TIMEOUT: Final = 180.0
ORPHAN: Final = "(true &); sleep 1; grep -h '^State:.Z' /proc/[0-9]*/status || true"
"""Leaves an ended process without a parent, and prints a line for each ended process that process 1 has not removed."""
TRUST: Final = dict.fromkeys(("NODE_EXTRA_CA_CERTS", "SSL_CERT_FILE"), "/etc/ssl/certs/ca-certificates.crt")
"""npm and uv otherwise trust only the authorities that they bring along, and not those of this machine's proxy."""


class Folders:
    """What a user mounts: the configuration and files read-only, and the home folder."""

    def __init__(self, root: Path) -> None:
        self.config = root / "mirror.yaml"
        self.files = root / "files"
        self.home = root / "home"
        for folder in (self.files, self.home):
            folder.mkdir()
            os.chown(folder, 1000, 1000)
        (self.files / "system.log").write_text(LOG)
        upstreams = {"files": FILES, "clock": CLOCK}
        servers = {
            name: {"command": words[0], "args": words[1:], "env": TRUST, "required": True}
            for name, words in upstreams.items()
        }
        self.config.write_text(json.dumps({"upstreams": servers, "store": {"kind": "disk"}}))
        self.config.chmod(0o644)
        root.chmod(0o755)

    def command(self, *arguments: str) -> list[str]:
        """Return the command that runs the image."""
        home = [f"--volume={self.home}:/home/mirror", f"--volume={self.files}:/files:ro"]
        config = f"--volume={self.config}:/home/mirror/mcp-mirror.yaml:ro"
        trust = [f"--env={name}={value}" for name, value in TRUST.items()]
        return podman_run(*home, config, *trust, "--tmpfs=/tmp", *arguments)


async def check_stdio(folders: Folders) -> str:
    """Wrap a server of npx over stdio, and return the path of a result."""
    command = folders.command("--interactive", "--no-healthcheck", IMAGE, "wrap", "--", *FILES)
    async with asyncio.timeout(TIMEOUT), Client(stdio_client(_parameters(command))) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert "read_text_file" in names, names
        notice = await _call(client, "read_text_file", path="/files/system.log")
        assert "1,000 lines" in notice, notice
        path = notice.splitlines()[0].strip('"')
        assert await _call(client, "retrieve_final_answer_from_memory", memory_path=path) == LOG
    return path


async def check_http(folders: Folders, path: str) -> None:
    """Serve both servers over HTTP, and check their calls, the stored value, and the health."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    async with serve(folders, port) as name, asyncio.timeout(TIMEOUT):
        run(podman("healthcheck", "run", name))
        await asyncio.to_thread(wait_until_ready, port)
        async with Client(f"http://127.0.0.1:{port}/mcp") as client:
            now = await _call(client, "get_current_time_mirrored", timezone="Europe/Berlin")
            assert "Europe/Berlin" in now, now
            assert await _call(client, "retrieve_final_answer_from_memory", memory_path=path) == LOG
            text = await _call(client, "read_text_file_mirrored", path="/files/system.log")
            assert "1,000 lines" in text, text
        assert run(podman("exec", name, "id", "-un")) == "mirror"
        assert run(podman("exec", name, "sh", "-c", ORPHAN)) == "", "Ended processes are not removed."
        outcome = await asyncio.create_subprocess_exec(
            *podman("exec", "--user", "root", name, "touch", "/opt/x"), stderr=asyncio.subprocess.PIPE
        )
        _, errors = await outcome.communicate()
        assert b"Read-only file system" in errors, errors


def wait_until_ready(port: int) -> None:
    """Wait until the gateway has connected to all servers, by its readiness probe."""
    end = time.monotonic() + TIMEOUT
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT)
        connection.request("GET", "/readyz")
        response = connection.getresponse()
        connection.close()
        if response.status == http.HTTPStatus.OK:
            return
        assert time.monotonic() < end, "The servers did not start."
        time.sleep(0.2)


@asynccontextmanager
async def serve(folders: Folders, port: int) -> AsyncIterator[str]:
    """Serve over HTTP in a container until the context ends; yields the container's name when it serves."""
    name = f"mcp-mirror-{uuid4().hex[:8]}"
    command = folders.command("--name", name, IMAGE, "serve", "-v", "--http", f"127.0.0.1:{port}")
    process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
    assert process.stderr is not None
    try:
        while b" serves " not in (line := await asyncio.wait_for(process.stderr.readline(), TIMEOUT)):
            assert line, "The gateway ended."
            print(line.decode(), end="", file=sys.stderr)
        reading = asyncio.create_task(process.stderr.read())
        yield name
        process.terminate()
        assert await asyncio.wait_for(process.wait(), TIMEOUT) == 0
        await reading
    finally:
        if process.returncode is None:
            run(podman("rm", "--force", name))


def _parameters(command: Sequence[str]) -> StdioServerParameters:
    return StdioServerParameters(command=command[0], args=list(command[1:]), env=dict(os.environ))


async def _call(client: Client, tool: str, **arguments: str) -> str:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return "".join(block.text for block in result.content if block.type == "text")


async def main() -> None:
    """Check the image.

    Raises:
        AssertionError: It does not do what its documentation says.
    """
    with tempfile.TemporaryDirectory() as folder:
        folders = Folders(Path(folder))
        path = await check_stdio(folders)
        await check_http(folders, path)
    size = int(run(podman("image", "inspect", "--format", "{{.Size}}", IMAGE)))
    print(f"The image works, over stdio and HTTP: {size / 1e6:.0f} MB.")


if __name__ == "__main__":
    asyncio.run(main())
