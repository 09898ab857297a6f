"""Writes `definitions.jsonl.gz`: the tool definitions of real servers, each started from its package and listed once.

Usage: python -m tests.search.collect FOLDER..., the folders with executables (`node_modules/.bin`, or the `bin` of an
environment). A server without an executable in them keeps its line.
"""

import asyncio
import gzip
import json
import os
import sys
import tempfile
from collections.abc import Mapping
from importlib.metadata import distributions
from pathlib import Path
from typing import Any, Final, TextIO

import yaml
from mcp import Client, StdioServerParameters, stdio_client

HERE: Final = Path(__file__).parent
DEFINITIONS: Final = HERE / "definitions.jsonl.gz"
_TIMEOUT: Final = 90.0
_KEPT: Final = ("name", "description", "inputSchema", "annotations")


def read_definitions() -> list[dict[str, Any]]:
    """Return the collected servers: package, version, name as an upstream, and tools."""
    with gzip.open(DEFINITIONS, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


async def list_tools(program: Path, given: Mapping[str, Any], errors: TextIO) -> list[dict[str, Any]]:
    """Start a server, with its standard error in a file, and return its tools."""
    with tempfile.TemporaryDirectory() as folder:
        args = [str(one).replace("{folder}", folder) for one in given.get("args", ())]
        env = {"HOME": folder, **given.get("env", {})}
        parameters = StdioServerParameters(command=str(program), args=args, cwd=folder, env=env)
        async with asyncio.timeout(_TIMEOUT), Client(stdio_client(parameters, errlog=errors)) as client:
            listed: list[dict[str, Any]] = []
            cursor: str | None = None
            while True:
                page = await client.list_tools(cursor=cursor)
                listed += [tool.model_dump(by_alias=True, exclude_none=True, mode="json") for tool in page.tools]
                if not (cursor := page.next_cursor):
                    return [{key: tool[key] for key in _KEPT if key in tool} for tool in listed]


def find_version(program: Path, package: str) -> str:
    """Return the installed version of a package, from the files beside its executable."""
    manifest = program.parent.parent / package / "package.json"
    if manifest.is_file():
        return str(json.loads(manifest.read_text())["version"])
    site = [str(path) for path in program.parent.parent.glob("lib/*/site-packages")]
    return {one.metadata["Name"].lower(): one.version for one in distributions(path=site)}[package.lower()]


async def main(folders: list[Path], errors: TextIO) -> None:
    by_server = {one["server"]: one for one in (read_definitions() if DEFINITIONS.is_file() else ())}
    servers = yaml.safe_load((HERE / "servers.yaml").read_text())
    for package, given in servers.items():
        program = next((folder / given["run"] for folder in folders if (folder / given["run"]).exists()), None)
        if program is not None:
            tools = await list_tools(program, given, errors)
            version = find_version(program, package)
            by_server[package] = {"server": package, "version": version, "name": given["name"], "tools": tools}
            sys.stdout.write(f"{package} {version}: {len(tools)} tools\n")
    ordered = (by_server[name] for name in sorted(by_server))
    text = "".join(json.dumps(one, ensure_ascii=False, separators=(",", ":")) + "\n" for one in ordered)
    DEFINITIONS.write_bytes(gzip.compress(text.encode(), 9, mtime=0))


if __name__ == "__main__":
    with Path(os.devnull).open("w", encoding="utf-8") as devnull:
        asyncio.run(main([Path(name).absolute() for name in sys.argv[1:]], devnull))
