"""A small typical server with the Python SDK."""

from mcp.server import MCPServer

server = MCPServer("bench", log_level="WARNING")


@server.tool(structured_output=False)
def small(text: str) -> str:  # noqa: ARG001  # as the bare server's
    """Answer ok."""
    return "ok"


@server.tool(structured_output=False)
def echo(text: str) -> str:
    """Answer with the text."""
    return f"text {text}"


if __name__ == "__main__":
    server.run("stdio")
