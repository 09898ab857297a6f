"""The identity of the server that a client sees: the gateway's, or that of the only upstream that it replaces."""

from typing import Any, Final

from mcp_mirror.callers import Caller
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.security.sanitize import sanitize

_MAX_CHARACTERS: Final = 200
"""Characters of a name, a title or a version."""


def find_identity(gateway: Gateway, caller: Caller) -> dict[str, Any] | None:
    """Return the `serverInfo` of the upstream that the gateway replaces, for this client.

    Returns:
        Name, title and version; None if the gateway replaces none, or its texts may not be shown.
    """
    upstream = gateway.find_only_upstream(caller)
    if upstream is None or upstream.listing is None or not gateway.may_show(upstream.policy.name):
        return None
    info = {key: sanitize(str(text))[:_MAX_CHARACTERS] for key, text in upstream.listing.info.items()}
    return {"version": "", **info} if info.get("name") else None
