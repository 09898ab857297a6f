"""The endpoints below the main one: `<server.path>/<upstream>` serves only that upstream, under its own names.

`<server.path>/~memory` serves only the gateway's own tools and resources. The main application serves the requests of
all endpoints; the caller of a request has the name of the upstream.
"""

from typing import Any, Final

from starlette.types import ASGIApp, Receive, Scope, Send

from mcp_mirror.callers import OWN_UPSTREAM

MEMORY: Final = "~memory"
"""The last part of the path of the gateway's own endpoint; no upstream can have this name."""
_KEY: Final = "mcp_mirror.upstream"


class EndpointRouter:
    """An ASGI middleware that directs requests of all endpoints to the main path."""

    def __init__(self, app: ASGIApp, path: str) -> None:
        self._app = app
        self._path = path
        self._prefix = f"{path.rstrip('/')}/"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, whether its path ends with a slash or not.

        A redirect would name `http` as its scheme, also behind a TLS proxy.
        """
        if scope["type"] == "http" and scope["path"] != self._path:
            path = scope["path"].removesuffix("/")
            name = path.removeprefix(self._prefix) if path.startswith(self._prefix) else ""
            is_main = f"{path}/" == self._prefix
            if is_main or (name and "/" not in name):
                upstream = OWN_UPSTREAM if name == MEMORY else name
                scope = {**scope, "path": self._path, "raw_path": self._path.encode()}
                scope[_KEY] = None if is_main else upstream
        await self._app(scope, receive, send)


def read_upstream(scope: Scope | Any) -> str | None:
    """Return the upstream that the endpoint of a request serves; None for the main endpoint. See `Caller.upstream`."""
    name: str | None = scope.get(_KEY)
    return name
