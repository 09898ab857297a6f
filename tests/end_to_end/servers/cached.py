"""An upstream on the SDK whose list of tools clients may cache for a minute."""

from mcp.server.caching import CacheHint
from mcp.server.mcpserver import MCPServer

server = MCPServer("cached", log_level="ERROR", cache_hints={"tools/list": CacheHint(ttl_ms=60_000, scope="public")})


@server.tool()
def shout(text: str) -> str:
    """The text in capitals."""
    return text.upper()


server.run("stdio")
