"""The rule for every field with which an upstream's text can reach a client, and messages rebuilt by these rules.

Content is *hidden* if an upstream has `preview: false`, or if `flows.model` keeps its values from the model.
"""

import hashlib
import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import mcp_types as types
import msgspec

from mcp_mirror.callers import CAPABILITY_OF
from mcp_mirror.errors import RefusedError
from mcp_mirror.security.sanitize import sanitize_lines

MAX_BOUNDED: Final = 1 << 16
"""Bytes of a notification, of an error's data and of a form."""
_MAX_MESSAGE: Final = 8_000
"""Bytes of a message text."""
_LARGEST_NUMBER: Final = 1 << 53
_LARGEST_CODE: Final = 1 << 31
_KEY: Final = secrets.token_bytes(16)


class FieldRule(StrEnum):
    """What happens to a field."""

    PASSES = "passes"
    BOUNDED = "passes, up to 64 KiB"
    TRUNCATED = "passes, cut at 8,000 bytes"
    BOTH_ENDS = "shown or stored for a tool call; else passes, 8,000 bytes of both ends"
    NUMBER = "a finite number up to 2^53"
    PROTOCOL_WORD = "a keyword of the protocol"
    GATEWAY_TEXT = "a text of the gateway"
    OPAQUE = "an opaque value of the gateway"
    CAPTURED = "shown or stored, as `mirror.capture` says"
    STORED = "stored; only its path passes"
    LISTED = "passes with the listing"
    TO_USER = "passes to a person"
    REFUSED = "the request is refused"
    DROPPED = "left out"


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a kind of message."""

    message: str
    name: str
    rule: FieldRule
    rule_if_hidden: FieldRule


def _fields_of(message: str, /, **fields: tuple[FieldRule, FieldRule]) -> tuple[Field, ...]:
    return tuple(Field(message, name.replace("__", ".").strip(), *rules) for name, rules in fields.items())


_LIST: Final = (FieldRule.LISTED, FieldRule.LISTED)
_DROPPED: Final = (FieldRule.DROPPED, FieldRule.DROPPED)
_PAGE: Final = {
    "nextCursor": _DROPPED,
    "ttlMs": (FieldRule.NUMBER, FieldRule.NUMBER),
    "cacheScope": (FieldRule.PROTOCOL_WORD, FieldRule.PROTOCOL_WORD),
}
_UPDATE: Final = (FieldRule.BOUNDED, FieldRule.DROPPED)

FIELDS: Final[tuple[Field, ...]] = (
    *_fields_of(
        "initialize, server/discover",
        protocolVersion=_DROPPED,
        supportedVersions=_DROPPED,
        capabilities=(FieldRule.PROTOCOL_WORD, FieldRule.PROTOCOL_WORD),
        serverInfo=(FieldRule.PASSES, FieldRule.DROPPED),
        instructions=(FieldRule.TRUNCATED, FieldRule.DROPPED),
        ttlMs=_DROPPED,
        cacheScope=_DROPPED,
        _meta=_DROPPED,
        resultType=_DROPPED,
    ),
    *_fields_of("tools/list", tools=_LIST, _meta=_DROPPED, resultType=_DROPPED, **_PAGE),
    *_fields_of("resources/list", resources=_LIST, _meta=_DROPPED, resultType=_DROPPED, **_PAGE),
    *_fields_of("resources/templates/list", resourceTemplates=_LIST, _meta=_DROPPED, resultType=_DROPPED, **_PAGE),
    *_fields_of("prompts/list", prompts=_LIST, _meta=_DROPPED, resultType=_DROPPED, **_PAGE),
    *_fields_of(
        "tools/call",
        content=(FieldRule.CAPTURED, FieldRule.STORED),
        structuredContent=(FieldRule.CAPTURED, FieldRule.STORED),
        isError=(FieldRule.PROTOCOL_WORD, FieldRule.PROTOCOL_WORD),
        resultType=(FieldRule.PROTOCOL_WORD, FieldRule.PROTOCOL_WORD),
        _meta=(FieldRule.BOUNDED, FieldRule.STORED),
        others=(FieldRule.PASSES, FieldRule.STORED),
    ),
    *_fields_of(
        "resources/read",
        contents=(FieldRule.PASSES, FieldRule.STORED),
        resultType=(FieldRule.PROTOCOL_WORD, FieldRule.PROTOCOL_WORD),
        ttlMs=(FieldRule.NUMBER, FieldRule.DROPPED),
        cacheScope=(FieldRule.PROTOCOL_WORD, FieldRule.DROPPED),
        _meta=(FieldRule.BOUNDED, FieldRule.DROPPED),
    ),
    *_fields_of(
        "prompts/get",
        messages=(FieldRule.PASSES, FieldRule.STORED),
        description=(FieldRule.PASSES, FieldRule.DROPPED),
        resultType=(FieldRule.PROTOCOL_WORD, FieldRule.PROTOCOL_WORD),
        _meta=(FieldRule.BOUNDED, FieldRule.DROPPED),
    ),
    *_fields_of(
        "completion/complete",
        completion=(FieldRule.PASSES, FieldRule.DROPPED),
        resultType=(FieldRule.PROTOCOL_WORD, FieldRule.PROTOCOL_WORD),
        _meta=(FieldRule.BOUNDED, FieldRule.DROPPED),
    ),
    *_fields_of(
        "input required",
        inputRequests=(FieldRule.PASSES, FieldRule.TO_USER),
        requestState=(FieldRule.OPAQUE, FieldRule.OPAQUE),
        keys=(FieldRule.PASSES, FieldRule.GATEWAY_TEXT),
        resultType=(FieldRule.PROTOCOL_WORD, FieldRule.PROTOCOL_WORD),
        _meta=_DROPPED,
    ),
    *_fields_of("empty results", _meta=_DROPPED, resultType=_DROPPED),
    *_fields_of(
        "error",
        code=(FieldRule.NUMBER, FieldRule.NUMBER),
        message=(FieldRule.BOTH_ENDS, FieldRule.GATEWAY_TEXT),
        data=(FieldRule.BOUNDED, FieldRule.DROPPED),
    ),
    *_fields_of("error -32021", data__requiredCapabilities=(FieldRule.BOUNDED, FieldRule.PROTOCOL_WORD)),
    *_fields_of("error -32042", data__elicitations=(FieldRule.BOUNDED, FieldRule.DROPPED)),
    *_fields_of(
        "notifications/progress",
        progressToken=(FieldRule.OPAQUE, FieldRule.OPAQUE),
        progress=(FieldRule.NUMBER, FieldRule.NUMBER),
        total=(FieldRule.NUMBER, FieldRule.NUMBER),
        message=(FieldRule.TRUNCATED, FieldRule.DROPPED),
        _meta=_UPDATE,
    ),
    *_fields_of(
        "notifications/message",
        level=(FieldRule.PROTOCOL_WORD, FieldRule.DROPPED),
        logger=(FieldRule.BOUNDED, FieldRule.DROPPED),
        data=(FieldRule.BOUNDED, FieldRule.DROPPED),
        _meta=_UPDATE,
    ),
    *_fields_of("notifications/resources/updated", uri=(FieldRule.BOUNDED, FieldRule.LISTED), _meta=_UPDATE),
    *_fields_of("notifications/tools/list_changed", _meta=_DROPPED),
    *_fields_of("notifications/resources/list_changed", _meta=_DROPPED),
    *_fields_of("notifications/prompts/list_changed", _meta=_DROPPED),
    *_fields_of(
        "notifications/elicitation/complete", elicitationId=(FieldRule.BOUNDED, FieldRule.OPAQUE), _meta=_UPDATE
    ),
    *_fields_of("notifications/cancelled", requestId=_DROPPED, reason=_DROPPED, _meta=_DROPPED),
    *_fields_of("notifications/subscriptions/acknowledged", notifications=_DROPPED, _meta=_DROPPED),
    *_fields_of("unknown notifications", params=_UPDATE, method=_UPDATE),
    *_fields_of(
        "elicitation/create",
        mode=(FieldRule.PROTOCOL_WORD, FieldRule.PROTOCOL_WORD),
        message=(FieldRule.TO_USER, FieldRule.TO_USER),
        requestedSchema=(FieldRule.TO_USER, FieldRule.TO_USER),
        url=(FieldRule.TO_USER, FieldRule.TO_USER),
        elicitationId=(FieldRule.PASSES, FieldRule.OPAQUE),
        task=(FieldRule.PASSES, FieldRule.DROPPED),
        _meta=(FieldRule.PASSES, FieldRule.DROPPED),
    ),
    *_fields_of("sampling/createMessage", params=(FieldRule.PASSES, FieldRule.REFUSED)),
    *_fields_of("roots/list", params=(FieldRule.PASSES, FieldRule.DROPPED)),
    *_fields_of("ping", params=_DROPPED),
    *_fields_of("standard error", lines=(FieldRule.TRUNCATED, FieldRule.DROPPED)),
)
"""The table. docs/operations/upstream-fields.md shows it."""


def write_table() -> str:
    """Return the table in Markdown."""
    rows = [f"| {one.message} | `{one.name}` | {one.rule} | {one.rule_if_hidden} |" for one in FIELDS]
    return "\n".join(["| message | field | usually | where values are hidden |", "|---|---|---|---|", *rows])


def hash_opaque(text: object) -> str:
    """Return an opaque value for a text: the same for the same text while the gateway runs."""
    return hashlib.blake2b(repr(text).encode("utf-8", "replace"), key=_KEY, digest_size=16).hexdigest()


def rebuild_notification(
    method: str, params: Mapping[str, Any], *, is_content_hidden: bool, size: int = 0
) -> Mapping[str, Any] | None:
    """Return the parameters of a notification for the client; None if it is dropped."""
    rest = {} if is_content_hidden or size > MAX_BOUNDED else dict(params)
    if method == "notifications/progress":
        return _rebuild_progress(params, rest)
    if is_content_hidden and method == "notifications/elicitation/complete":
        return {"elicitationId": hash_opaque(params.get("elicitationId"))}
    if is_content_hidden or size > MAX_BOUNDED:
        return None
    return rest


def rebuild_request(method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the parameters of a request to the client if content is hidden: the fields that a person needs.

    Raises:
        RefusedError: The client's model would read it, or its form is missing or too large.
    """
    if method == "roots/list":
        return {}
    if method != "elicitation/create":
        message = "The upstream's content is hidden from the client's model, so sampling is refused."
        raise RefusedError(message, types.METHOD_NOT_FOUND, message)
    kept: dict[str, Any] = {"message": sanitize_lines(str(params.get("message", "")), _MAX_MESSAGE)}
    if params.get("mode") == "url":
        address = sanitize_lines(str(params.get("url", "")), _MAX_MESSAGE)
        return {**kept, "mode": "url", "url": address, "elicitationId": hash_opaque(params.get("elicitationId"))}
    schema = params.get("requestedSchema")
    if not isinstance(schema, Mapping) or len(msgspec.json.encode(schema)) > MAX_BOUNDED:
        message = "The form of the elicitation request is missing or too large."
        raise RefusedError(message, types.INVALID_PARAMS, message)
    mode = {"mode": "form"} if "mode" in params else {}
    return {**kept, **mode, "requestedSchema": schema}


def rebuild_code(code: int) -> int:
    """Return an error's code if it fits 32 bits, else that of an internal error."""
    return code if -_LARGEST_CODE <= code < _LARGEST_CODE else types.INTERNAL_ERROR


def rebuild_data(code: int, data: object, *, is_content_hidden: bool) -> object:
    """Return an error's data for the client."""
    if is_content_hidden:
        return _rebuild_capabilities(data) if code == types.MISSING_REQUIRED_CLIENT_CAPABILITY else None
    return data if data is None or len(msgspec.json.encode(data)) <= MAX_BOUNDED else None


def _rebuild_progress(params: Mapping[str, Any], rest: dict[str, Any]) -> Mapping[str, Any] | None:
    numbers = {key: params[key] for key in ("progress", "total") if _is_number(params.get(key))}
    if "progress" not in numbers:
        return None
    rest.pop("total", None)
    if "message" in rest:
        rest["message"] = sanitize_lines(str(rest["message"]), _MAX_MESSAGE)
    return {**rest, **numbers}


def _is_number(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) <= _LARGEST_NUMBER  # type: ignore[arg-type]


def _rebuild_capabilities(data: object) -> Mapping[str, Any]:
    needed = data.get("requiredCapabilities") if isinstance(data, Mapping) else None
    names = needed if isinstance(needed, Mapping) else {}
    return {"requiredCapabilities": {one: {} for one in CAPABILITY_OF.values() if one in names}}
