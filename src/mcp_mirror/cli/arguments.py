"""Arguments as they are written on a command line, as the JSON that a tool takes."""

import json
from collections.abc import Mapping
from typing import Final

import msgspec

from mcp_mirror.core.schema import Schema, types_at
from mcp_mirror.payload.json_spans import kind_at, trim


def read_arguments(given: Mapping[str, str], schema: Schema) -> bytes:
    """The arguments as a JSON object, each by what the schema wants of it."""
    types = types_at(schema)
    members = (json.dumps(key).encode() + b":" + _read(value, types((key,))) for key, value in given.items())
    return b"{" + b",".join(members) + b"}"


def _read(text: str, wanted: frozenset[str]) -> bytes:
    """JSON if it is some and the argument takes it; where that takes text, JSON of another type that it names alone."""
    try:
        msgspec.json.decode(raw := text.encode(), type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return msgspec.json.encode(text)
    kind = kind_at(raw, trim(raw).start)
    admits = _ADMITS.get(kind, frozenset({kind}))
    return raw if "string" not in wanted or admits & wanted else msgspec.json.encode(text)


_ADMITS: Final = {"text": frozenset({"number", "integer"}), "number": frozenset({"number", "integer"})}
"""The types of which an argument that takes text must name one for JSON of a kind to count: so "7" can be text."""
