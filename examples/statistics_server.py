"""An ordinary MCP server without knowledge of memory paths."""

from mcp.server.mcpserver import MCPServer

server = MCPServer("statistics", log_level="ERROR")


@server.tool()
def count_above(values: list[float], limit: float) -> int:
    """How many of the values are above a limit."""
    return sum(value > limit for value in values)


if __name__ == "__main__":
    server.run("stdio")
