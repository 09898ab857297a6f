"""The official Inspector, as a command, works as the client."""

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from notices import path_in
from samples import sample

if TYPE_CHECKING:
    from tests.real.conftest import Connection, Place

pytestmark = pytest.mark.xdist_group("real")

INSPECTOR: Final = "inspector/clients/launcher/build/index.js"
PATIENCE: Final = 60
"""Seconds that one run of the Inspector may take; each starts Node and makes a connection of its own."""

WAYS: Final = [("over_stdio", "legacy"), ("over_http", "modern"), ("over_stdio", "modern"), ("over_http", "legacy")]
ALL: Final = "ALL_COMBINATIONS" in os.environ
"""`make soak` lists and calls in all four ways, other runs in two."""
Inspect = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def packages() -> Path:
    return Path(__file__).parents[1] / "node" / "node_modules" / "@modelcontextprotocol"


OF_ROOTS = "get-roots-list_mirrored"
"""A tool that server-everything has for clients with roots, such as the Inspector."""


@pytest.fixture
def inspect(node: str, packages: Path, tmp_path: Path) -> Inspect:
    """Run the Inspector on a target; what it prints as the result."""
    environ = os.environ | {"HOME": str(tmp_path), "USERPROFILE": str(tmp_path), "MCP_INSPECTOR_SECRET_STORE": "memory"}

    def inspect(target: list[str], method: str, *options: str, exits: int = 0) -> dict[str, Any]:
        argv = [node, str(packages / INSPECTOR), "--cli", *target, "--method", method, "--format", "json", *options]
        done = subprocess.run(argv, env=environ, capture_output=True, timeout=PATIENCE, check=False)
        assert done.returncode == exits, done.stderr.decode(errors="replace")
        result: dict[str, Any] = json.loads(done.stdout)["result"]
        return result

    return inspect


@pytest.fixture
def over_stdio(command: str, config: Path, tmp_path: Path) -> list[str]:
    """The gateway as an entry of a client's configuration."""
    path = tmp_path / "client.json"
    entry = {"command": command, "args": ["serve", "--config", str(config)]}
    path.write_text(json.dumps({"mcpServers": {"mirror": entry}}), encoding="utf-8")
    return ["--config", str(path), "--server", "mirror"]


@pytest.fixture
def over_http(http_gateway: str) -> list[str]:
    return ["--server-url", http_gateway, "--transport", "http"]


@pytest.mark.parametrize(("way", "version"), sample(WAYS if ALL else WAYS[:2], WAYS[1].__eq__))
def test_the_inspector_lists_every_twin_with_a_valid_schema(
    way: str, version: str, request: pytest.FixtureRequest, inspect: Inspect, gateway: "Connection"
) -> None:
    listed = inspect(request.getfixturevalue(way), "tools/list", "--strict", "--protocol-era", version)
    names = [tool["name"] for tool in listed["tools"]]
    assert [name for name in names if name != OF_ROOTS] == [tool.name for tool in gateway.tools()]
    assert (OF_ROOTS in names) is (way == "over_stdio")  # where upstreams see what the one client can do


@pytest.mark.slow
@pytest.mark.parametrize(("way", "version"), WAYS if ALL else WAYS[2:])
def test_the_inspector_calls_a_twin(way: str, version: str, request: pytest.FixtureRequest, inspect: Inspect) -> None:
    target = request.getfixturevalue(way)
    arguments = ("--tool-name", "get-sum_mirrored", "--tool-args-json", '{"a": 2, "b": 40}', "--protocol-era", version)
    assert inspect(target, "tools/call", *arguments)["content"] == [
        {"type": "text", "text": "The sum of 2 and 40 is 42."}
    ]


def test_a_result_stored_in_one_run_is_an_argument_of_the_next(
    over_http: list[str], inspect: Inspect, place: "Place"
) -> None:
    source, target = place.notes / "inspected.txt", place.notes / "copied.txt"
    source.write_bytes("".join(f"{number} \u2028 \U0001f600\r\n" for number in range(100_000)).encode())
    arguments = json.dumps({"path": str(source)})
    stored = inspect(over_http, "tools/call", "--tool-name", "read_text_file_mirrored", "--tool-args-json", arguments)
    assert len(json.dumps(stored)) < 2048
    path = path_in(stored["content"][0]["text"])
    arguments = json.dumps({"path": str(target), "content": f"{path}/content"})
    inspect(over_http, "tools/call", "--tool-name", "write_file_mirrored", "--tool-args-json", arguments)
    assert target.read_bytes() == source.read_bytes()


@pytest.mark.slow
def test_a_value_is_brought_back_in_a_later_run(over_http: list[str], inspect: Inspect) -> None:
    arguments = ("--tool-name", "get-structured-content_mirrored", "--tool-arg", "location=Chicago")
    path = path_in(inspect(over_http, "tools/call", *arguments)["content"][0]["text"])
    arguments = ("--tool-name", "retrieve_final_answer_from_memory", "--tool-arg", f"memory_path={path}/temperature")
    assert inspect(over_http, "tools/call", *arguments)["content"][0]["text"].lstrip("-").isdecimal()
