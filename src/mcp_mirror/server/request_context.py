"""The sender of a client's request, and what upstreams get of its `_meta`."""

import json
from collections import Counter
from collections.abc import Collection, Mapping
from typing import Any, Final

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, MODERN_PROTOCOL_VERSIONS
from starlette.types import Scope

from mcp_mirror.callers import LOCAL, NO_HEADERS, Caller, ClientHeaders
from mcp_mirror.gateway.context_budgets import CONVERSATION
from mcp_mirror.payload.json_rpc import PAYLOAD_MARK
from mcp_mirror.server.auth.principals import read_namespace, read_scopes
from mcp_mirror.server.http.endpoints import read_upstream
from mcp_mirror.system.patterns import lazy_pattern

_GATEWAY_META_KEYS: Final = frozenset(
    {
        PAYLOAD_MARK,
        CONVERSATION,
        "progressToken",
        types.PROTOCOL_VERSION_META_KEY,
        types.CLIENT_INFO_META_KEY,
        types.CLIENT_CAPABILITIES_META_KEY,
        types.LOG_LEVEL_META_KEY,
    }
)
"""Members of `_meta` that are for the gateway; upstreams get the others."""
_CREDENTIALS: Final = frozenset({"authorization", "proxy-authorization", "cookie", "x-api-key", "dpop"})
"""Headers that authenticate a client to the gateway, and members of `_meta` with the same names."""
_SEPARATORS: Final = lazy_pattern(r"[\s;,=]+")
_MIN_SECRET_LENGTH: Final = 8
"""Characters; shorter words occur in many texts."""
_MAX_SEARCHES: Final = 1 << 19
"""Searches for one credential in one member of `_meta`, in about 20 ms; 32 characters of a member count as one more."""
_SEARCHED_AT_ONCE: Final = 32
_UNSUPPORTED_CAPABILITIES: Final = frozenset({"tasks"})
UNSUPPORTED_EXTENSIONS: Final = frozenset({"io.modelcontextprotocol/tasks"})
"""Extensions that the gateway cannot relay."""

_CLIENT_HEADERS: Final = "mcp_mirror.client_headers"
_HEADER_VALUE: Final = lazy_pattern(rb"[\t\x20-\x7e]+")

Context = ServerRequestContext[Any, Any]


def read_meta(context: Context) -> Mapping[str, Any]:
    """Return the `_meta` of a request; empty if it has none."""
    meta = (context.params or {}).get("_meta")
    return meta if isinstance(meta, Mapping) else {}


def select_relayed_meta(meta: Mapping[str, Any], headers: Mapping[str, str] | None, caller: Caller) -> dict[str, Any]:
    """Return the members of a request's `_meta` for the upstream, without credentials of the caller.

    These are in the HTTP headers; None on stdio. If the members take too long to search for the credentials, no member
    is returned.
    """
    relayed = {
        key: value
        for key, value in meta.items()
        if key not in _GATEWAY_META_KEYS and key.lower().rpartition("/")[2] not in _CREDENTIALS
    }
    if not relayed or headers is None:
        return relayed
    texts = [*(headers.get(name, "") for name in _CREDENTIALS), *(caller.client_headers or {}).values()]
    secrets = {word for text in texts for word in _SEPARATORS.split(text) if len(word) >= _MIN_SECRET_LENGTH}
    written = {key: json.dumps([key, value], ensure_ascii=False) for key, value in relayed.items()}
    if len(secrets) * sum(1 + len(text) // _SEARCHED_AT_ONCE for text in written.values()) > _MAX_SEARCHES:
        return {}
    return {key: value for key, value in relayed.items() if not any(secret in written[key] for secret in secrets)}


def read_caller(context: Context, namespace: str, session: str | None) -> Caller:
    """Return the sender of a request, with the capabilities of the request or of its session's handshake.

    `session` is the key of the session; ignored for 2026-07-28 requests.
    """
    is_stateless = context.protocol_version in MODERN_PROTOCOL_VERSIONS
    if is_stateless:
        declared: Any = read_meta(context).get(types.CLIENT_CAPABILITIES_META_KEY)
    elif context.method == "initialize":
        declared = (context.params or {}).get("capabilities")
    else:
        model = context.session.client_capabilities
        declared = model.model_dump(by_alias=True, mode="json", exclude_none=True) if model else None
    capabilities = dict(declared) if isinstance(declared, Mapping) else {}
    upstream = None if context.request is None else read_upstream(context.request.scope)
    selected = _select_supported(capabilities)
    return Caller(namespace, is_stateless, None if is_stateless else session, selected, upstream=upstream)


def _select_supported(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the capabilities that the gateway can relay."""
    supported = {key: value for key, value in capabilities.items() if key not in _UNSUPPORTED_CAPABILITIES}
    extensions = supported.get("extensions")
    if isinstance(extensions, Mapping):
        supported["extensions"] = {key: value for key, value in extensions.items() if key not in UNSUPPORTED_EXTENSIONS}
    return supported


def read_rights(scope: Scope | None) -> tuple[frozenset[str] | None, ClientHeaders | None]:
    """Return the scopes of a request's token, and its headers for upstreams; `scope` is None on stdio."""
    return (None, None) if scope is None else (read_scopes(scope), scope.get(_CLIENT_HEADERS, NO_HEADERS))


def with_rights(caller: Caller, scope: Scope | None) -> Caller:
    """Return a client with the rights of a request; see `read_rights`."""
    scopes, headers = read_rights(scope)
    if caller.scopes == scopes and caller.client_headers == headers:
        return caller
    return msgspec.structs.replace(caller, scopes=scopes, client_headers=headers)


def keep_client_headers(scope: Scope, names: Collection[str]) -> None:
    """Keep the headers of a request with these names for `read_rights`.

    A header counts as missing if it is repeated, empty, or contains more than printable ASCII characters.
    """
    given = [(name.decode("latin-1"), value.strip(b" \t")) for name, value in scope["headers"]]
    counts = Counter(name for name, _ in given)
    scope[_CLIENT_HEADERS] = ClientHeaders(
        (name, value.decode())
        for name, value in given
        if name in names and counts[name] == 1 and _HEADER_VALUE.fullmatch(value)
    )


def build_session_key(namespace: str, session_id: str) -> str:
    """Return the key of a session, which contains the principal, so that others cannot use the session by its id.

    An empty id gives an empty key.
    """
    return f"{session_id} {namespace}" if session_id and namespace != LOCAL else session_id


class HttpRequest(msgspec.Struct, frozen=True):
    """The head of an HTTP request."""

    scope: Scope
    """The ASGI scope."""
    headers: Mapping[str, str]
    """The headers by their names in lower case; the last one of repeated headers."""
    namespace: str
    """The namespace of the principal."""
    session_key: str
    """The key of the session; empty for a request without one."""
    upstream: str | None
    """The upstream that the endpoint serves; see `Caller.upstream`."""


def read_request(scope: Scope) -> HttpRequest:
    """Return the head of the request with this ASGI scope."""
    headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
    namespace = read_namespace(scope)
    version = next((value for name, value in scope["headers"] if name == b"mcp-protocol-version"), None)
    # The SDK, too, decides by the first of these headers; requests of other versions have no session.
    is_stateful = version is None or version.decode("latin-1") in HANDSHAKE_PROTOCOL_VERSIONS
    session_key = build_session_key(namespace, headers.get("mcp-session-id", "")) if is_stateful else ""
    return HttpRequest(scope, headers, namespace, session_key, read_upstream(scope))
