"""An SDK server whose tools have other names than their functions, so no output schema's title names its tool."""

import hashlib

from mcp.server import MCPServer

TEXT = "".join(f'{line:05} a line that says \\ and "quotes" and ü\n' for line in range(800))

server = MCPServer("renamed")


def apply(name_path: str = "") -> str:
    """Return a text, as a tool of a language server does."""
    return TEXT + name_path


def rows() -> list[dict[str, int]]:
    """Return the rows of a table."""
    return [{"id": number, "square": number**2} for number in range(900)]


def digest(content: str) -> str:
    """Return the digest of a text."""
    return hashlib.sha256(content.encode()).hexdigest()


server.add_tool(apply, name="find_symbol")
server.add_tool(rows, name="list_rows")
server.add_tool(digest, name="check_text")

if __name__ == "__main__":
    server.run()
