"""The command `mcp-mirror token`."""

import json
from typing import Annotated, Final

import typer

from mcp_mirror.cli.run import print_note
from mcp_mirror.server.auth.principals import mint_token
from mcp_mirror.system.patterns import lazy_pattern

_PLAIN: Final = lazy_pattern(r"[A-Za-z0-9_][A-Za-z0-9_.@/+-]*")
"""Names that YAML reads as they are."""


def token(
    name: Annotated[str, typer.Argument(help="The principal that the token authenticates, such as alice.")],
) -> None:
    """Create a bearer token for a principal and print it with its hash.

    The hash goes into the configuration. The token is printed once and stored nowhere.

    Example: mcp-mirror token alice
    """
    if not name.strip():
        raise typer.BadParameter("A principal needs a name, such as alice.")
    minted, digest = mint_token()
    print(minted)
    key = name if _PLAIN.fullmatch(name) else json.dumps(name)
    print_note(f"The token is printed above and stored nowhere. Add its hash:\nauth:\n  tokens:\n    {key}: {digest}")
