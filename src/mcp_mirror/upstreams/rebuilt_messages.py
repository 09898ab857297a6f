"""Messages to clients, rebuilt from the fields of an upstream's messages.

docs/operations/upstream-fields.md has the rule for every field with which an upstream's text can reach a client.
Content is *hidden* if an upstream has `preview: false`, or if `flows.model` keeps its values from the model.
"""

import hashlib
import math
import secrets
from collections.abc import Mapping
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


def _hash_opaque(text: object) -> str:
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
        return {"elicitationId": _hash_opaque(params.get("elicitationId"))}
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
        raise RefusedError(message, types.METHOD_NOT_FOUND)
    kept: dict[str, Any] = {"message": sanitize_lines(str(params.get("message", "")), _MAX_MESSAGE)}
    if params.get("mode") == "url":
        address = sanitize_lines(str(params.get("url", "")), _MAX_MESSAGE)
        return {**kept, "mode": "url", "url": address, "elicitationId": _hash_opaque(params.get("elicitationId"))}
    schema = params.get("requestedSchema")
    if not isinstance(schema, Mapping) or len(msgspec.json.encode(schema)) > MAX_BOUNDED:
        raise RefusedError("The form of the elicitation request is missing or too large.", types.INVALID_PARAMS)
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
