"""The static files of the page, and the security headers of all answers. The files contain no data."""

import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

SECURITY_HEADERS: Final[Mapping[str, str]] = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
    "connect-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-embedder-policy": "require-corp",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
"""Headers of all answers of the dashboard."""

STATIC_PREFIX: Final = "/dashboard/"
"""The path of all static files but the page itself."""

_TYPES: Final[Mapping[str, str]] = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@cache
def read_static() -> Mapping[str, tuple[str, bytes, str]]:
    """Return the media type, the content and the ETag of each static file, by the path of its URL."""
    found: dict[str, tuple[str, bytes, str]] = {}
    for file in files("mcp_mirror.dashboard").joinpath("static").iterdir():
        ending = file.name[file.name.rfind(".") :]
        if ending in _TYPES:
            content = file.read_bytes()
            tag = f'"{hashlib.sha256(content).hexdigest()[:16]}"'
            path = "/" if file.name == "index.html" else f"{STATIC_PREFIX}{file.name}"
            found[path] = (_TYPES[ending], content, tag)
    return found


def serve_static(request: Request, *, needs_token: bool = False) -> Response:
    """Return the static file of a request; 404 for other paths, 405 for other methods than GET and HEAD.

    `needs_token`: the page itself has the status 401. It contains no data, and its form asks for the token.
    """
    if request.method not in ("GET", "HEAD"):
        return Response("Use GET.", 405, {**SECURITY_HEADERS, "allow": "GET, HEAD"}, "text/plain")
    found = read_static().get(request.url.path)
    if found is None:
        return Response("Not Found", 404, dict(SECURITY_HEADERS), "text/plain")
    media_type, content, tag = found
    if needs_token and request.url.path == "/":
        headers = {**SECURITY_HEADERS, "cache-control": "no-store", "www-authenticate": "Bearer"}
        return Response(content, 401, {**headers, "content-type": media_type})
    headers = {**SECURITY_HEADERS, "cache-control": "no-cache", "etag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers={**headers, "content-type": media_type})
