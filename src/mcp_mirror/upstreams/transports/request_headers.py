"""The HTTP headers of requests of protocol version 2026-07-28, which repeat parts of the requests."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_NAME_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    NAME_BEARING_METHODS,
    encode_header_value,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)

from mcp_mirror.payload.json_rpc import decode_as
from mcp_mirror.types import Buffer

_MARK: Final = b'"x-mcp-header"'
"""The schema keyword of arguments that are mirrored into headers."""
_MAX_DEFINITIONS: Final = 4 << 20
"""Bytes of the definitions with that keyword that are read, of one listing."""


class _Tool(msgspec.Struct):
    name: str
    schema: dict[str, Any] = msgspec.field(name="inputSchema")


class RequestHeaders:
    """The HTTP headers that repeat parts of a session's requests, so that intermediaries need not read their bodies.

    Requests of protocol version 2026-07-28 name their method, and the tool, prompt or resource. A tool's schema may
    mirror arguments into headers too (`x-mcp-header`).
    """

    def __init__(self, version: str, *, is_stateless: bool) -> None:
        self._version = {MCP_PROTOCOL_VERSION_HEADER: version}
        self._is_stateless = is_stateless
        self._arguments: Mapping[str, Mapping[tuple[str, ...], str]] = {}
        """By tool: the headers of its arguments, by their locations."""

    def note_tools(self, listed: Iterable[Buffer]) -> None:
        """Note which arguments of the listed tools, JSON text, go into headers.

        Tools whose annotations are not valid have none. Run it in a thread: large schemas take seconds.
        """
        found: dict[str, Mapping[tuple[str, ...], str]] = {}
        left = _MAX_DEFINITIONS
        for raw in listed:
            if len(raw) > left or _MARK not in bytes(raw):
                continue
            left -= len(raw)
            tool: _Tool | None = decode_as(raw, _Tool)
            if tool is not None and find_invalid_x_mcp_header(tool.schema) is None:
                found[tool.name] = x_mcp_header_map(tool.schema)
        self._arguments = found

    def build(self, method: str, shown: Mapping[str, Any]) -> Mapping[str, str]:
        """Return the headers of a request."""
        if not self._is_stateless:
            return self._version
        headers = {**self._version, MCP_METHOD_HEADER: method}
        key = NAME_BEARING_METHODS.get(method)
        name = shown.get(key) if key is not None else None
        if isinstance(name, str):
            headers[MCP_NAME_HEADER] = encode_header_value(name)
            if method == "tools/call" and (mirrored := self._arguments.get(name)):
                headers |= mcp_param_headers(mirrored, shown.get("arguments") or {})
        return headers
