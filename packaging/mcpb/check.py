"""Starts a built bundle as a client does, by its manifest, and lists the tools: `check.py BUNDLE`. Needs uv."""

import asyncio
import json
import os
import sys
import tempfile
import zipfile
from pathlib import Path

from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client

BOUND = 300.0


async def check(bundle: Path) -> None:
    """Check that the bundle serves the twins of a server.

    Raises:
        AssertionError: It does not.
    """
    with tempfile.TemporaryDirectory() as folder:
        content = Path(folder) / "bundle"
        with zipfile.ZipFile(bundle) as archive:
            archive.extractall(content)
        server = {"command": sys.executable, "args": ["-m", "mcp_mirror.demo.log_server"]}
        config = Path(folder) / "mirror.yaml"
        config.write_text(json.dumps({"upstreams": {"shop": server}, "store": {"kind": "memory"}}))
        given = {"${__dirname}": str(content), "${user_config.config}": str(config)}

        def fill(text: str) -> str:
            for name, value in given.items():
                text = text.replace(name, value)
            return text

        started = json.loads((content / "manifest.json").read_text())["server"]["mcp_config"]
        environment = {name: fill(value) for name, value in started["env"].items()}
        command = StdioServerParameters(
            command=started["command"],
            args=list(map(fill, started["args"])),
            env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **environment},
        )
        async with asyncio.timeout(BOUND), Client(stdio_client(command)) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
    assert "read_log_mirrored" in names, names
    print(f"The bundle works: {len(names)} tools.")


if __name__ == "__main__":
    asyncio.run(check(Path(sys.argv[1])))
