"""The name of a wrapped server that its command gives: errors, the log of calls and `usage` contain it."""

import pytest

from mcp_mirror.cli.wrapping import Target, derive_name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("npx -y @modelcontextprotocol/server-filesystem@1.0 /home/ann", "server-filesystem"),
        ("uvx mcp-server-git --repository .", "mcp-server-git"),
        ("uvx --python 3.12 mcp-server-git", "mcp-server-git"),
        ("uv run --with pandas weather.py", "weather"),
        ("python -c import_this", "python"),
        ("node --import tsx src/weather.ts", "weather"),
        ("python -m mcp_server_time", "mcp_server_time"),
        ("uv --directory /opt/weather run server.py", "weather"),
        ("/usr/bin/my-server --port 1", "my-server"),
        ("node /opt/notes/chemist.mjs", "chemist"),
        ("node /opt/node_modules/@scope/server-postgres/dist/index.js postgresql://ann@db/shop", "server-postgres"),
        ("node build/src/index.js", "index"),
        ("python3 weather/src/weather_server/__main__.py", "weather_server"),
        ("python /opt/weather/server.py", "weather"),
        (
            "docker run -i --rm -e TOKEN -v /data:/data --name one ghcr.io/github/github-mcp-server stdio",
            "github-mcp-server",
        ),
        ("docker run --rm -i --mount type=bind,src=/a,dst=/b mcp/postgres:latest postgresql://db/x", "postgres"),
        ("podman run -i registry:5000/team/notes@sha256:0a1b", "notes"),
        ("docker exec -i box /app/server", "box"),
        ("docker run -i", "docker"),
    ],
)
def test_a_command_names_its_server(command: str, name: str) -> None:
    assert derive_name(Target(tuple(command.split()), "", (), None)) == name


def test_an_address_names_its_server_by_its_host() -> None:
    assert derive_name(Target((), "https://api.example.com/mcp", (), None)) == "api.example.com"
