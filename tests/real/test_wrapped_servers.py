"""Real servers, each wrapped by a process of its own: same names as without, and one memory."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from gateway_processes import forked_python
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from samples import sample
from tests.real.conftest import PACKAGES

if TYPE_CHECKING:
    from tests.real.conftest import Place, Servers

pytestmark = pytest.mark.xdist_group("real")

BOUND = 120.0
RETRIEVE = "retrieve_final_answer_from_memory"
TEXT = "\n".join(f'line {number}: caf\u00e9 \u2028 \\ "quoted" \U0001f600' for number in range(5_000))


@asynccontextmanager
async def connect(command: str, *args: str, mode: Any = "auto", **env: str) -> AsyncIterator[Client]:
    parameters = StdioServerParameters(command=command, args=list(args), env={**os.environ, **env})
    with anyio.fail_after(BOUND):
        async with Client(stdio_client(parameters), mode=mode) as client:
            yield client


def text_of(result: Any) -> str:
    assert not result.is_error, result.content
    return str(result.content[0].text)


@pytest.mark.parametrize("mode", sample(["legacy", "auto"], "auto".__eq__))
async def test_a_file_read_by_one_wrapped_server_is_an_entity_of_another(
    node: str, command: str, servers: "Servers", place: "Place", tmp_path: Path, mode: Any
) -> None:
    source, graph = place.notes / "wrapped.txt", tmp_path / "graph.json"
    source.write_text(TEXT, encoding="utf-8", newline="")
    data = {"XDG_DATA_HOME": str(tmp_path / "data")}
    knowledge = str(PACKAGES / "server-memory" / "dist" / "index.js")
    files = servers["files"]
    async with (
        connect(*forked_python(command, "wrap", "--", files.command, *files.args), mode=mode, **data) as reader,
        connect(
            *forked_python(command, "wrap", "--", node, knowledge), mode=mode, MEMORY_FILE_PATH=str(graph), **data
        ) as keeper,
        connect(*forked_python(command, "memory"), mode=mode, **data) as memory,
    ):
        notice = text_of(await reader.call_tool("read_text_file", {"path": str(source)}))
        path = notice.splitlines()[0].strip('"')
        entity = {"name": "book", "entityType": "file", "observations": [path]}
        assert not (await keeper.call_tool("create_entities", {"entities": [entity]})).is_error
        window = text_of(await memory.call_tool("memory_read", {"memory_path": path, "by": "lines", "limit": 1}))
        assert window.startswith("line 0: ")
    assert json.loads(graph.read_text(encoding="utf-8").split("\n")[0])["observations"] == [TEXT]


@pytest.mark.parametrize(
    ("name", "mode"),
    sample(
        product(("git", "files", "everything"), ("legacy", "auto")),
        {("git", "legacy"), ("files", "auto"), ("everything", "legacy"), ("everything", "auto")}.__contains__,
    ),
)
async def test_a_wrapped_server_looks_like_the_bare_one(
    command: str, servers: "Servers", tmp_path: Path, name: str, mode: Any
) -> None:
    server, data = servers[name], {"XDG_DATA_HOME": str(tmp_path / "data")}
    async with (
        connect(server.command, *server.args, mode=mode) as bare,
        connect(*forked_python(command, "wrap", "--", server.command, *server.args), mode=mode, **data) as wrapped,
    ):
        expected, seen = bare.server_info, wrapped.server_info
        assert expected is not None
        assert seen is not None
        assert (seen.name, seen.title, seen.version) == (expected.name, expected.title, expected.version)
        assert (wrapped.instructions or "").startswith((bare.instructions or "")[:1000])
        own = [tool.name for tool in (await bare.list_tools()).tools]
        assert [tool.name for tool in (await wrapped.list_tools()).tools] == [*own, RETRIEVE, "memory_read"]
        offered, without = wrapped.server_capabilities, bare.server_capabilities
        for capability in ("resources", "prompts", "completions", "logging"):
            assert (getattr(offered, capability) is None) == (getattr(without, capability) is None), capability
