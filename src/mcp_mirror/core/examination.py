"""Everything that the gateway finds out about a listed tool, once per definition: bounds, schema, twin, cost.

What depends on the configuration, such as names and pins, is not known here. Pure.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

import mcp_types as types
from pydantic import ValidationError

from mcp_mirror.core.definitions import excess_of
from mcp_mirror.core.schema import Schema, admit_paths, header_locations
from mcp_mirror.core.validation import Check, Cost, compile_check, cost_of
from mcp_mirror.settings.limits import UpstreamBounds

_ANY: Final[Schema] = {"type": "object"}
_SMALL: Final = 1 << 16
"""Characters of a schema that may be compiled on the event loop."""
_SOON_COMPILED: Final = 1 << 13
"""Characters of a schema of unknown cost that may be compiled on the event loop."""
_SLOWLY_COMPILED: Final = ("unevaluated", "$dynamicRef", "$recursiveRef", "pattern")
"""Keywords that can make the compilation of a small schema take seconds."""
_FEW_PATTERNS: Final = 20
"""Patterns that may be compiled on the event loop: each takes 0.3 ms at most."""


@dataclass(frozen=True, slots=True)
class Examined:
    """A tool as its upstream lists it, and what was found out about it."""

    raw: Mapping[str, Any]
    """The whole definition."""
    excess: str | None = None
    """Why the tool is not served."""
    spoilt: tuple[str, ...] = ()
    """Members of the definition that clients could not read."""
    schema: Schema = field(default_factory=lambda: dict(_ANY))
    """The input schema; any object if the upstream's cannot be used."""
    widened: Schema = field(default_factory=lambda: dict(_ANY))
    """The input schema of the twin."""
    headers: tuple[tuple[str, ...], ...] = ()
    """Where the arguments stand that are mirrored into HTTP headers."""
    cost: Cost | None = None
    """A bound on the work of validation; None if it may take exponential time."""
    wrong: str | None = None
    """Why the arguments are not validated."""
    check: Check | None = field(default=None, compare=False, repr=False)
    """Validates arguments; None if that is too much work for the event loop."""

    @property
    def name(self) -> str:
        """The tool's name; empty if it has no usable one."""
        name = self.raw.get("name")
        return name if isinstance(name, str) else ""

    @property
    def kept(self) -> Mapping[str, Any]:
        """The definition without what clients could not read: one such tool would cost them the whole list."""
        return {key: value for key, value in self.raw.items() if key not in self.spoilt}

    @property
    def is_validated(self) -> bool:
        """Whether calls are validated before they are sent."""
        return self.wrong is None

    def unchecked(self, wrong: str) -> "Examined":
        """The same tool, served with its schema but without validation."""
        return replace(self, wrong=wrong, check=None)


def examine(raw: Mapping[str, Any], bounds: UpstreamBounds) -> Examined:
    """Find out everything about a tool, its schema compiled."""
    return compiled(look_through(raw, bounds))


def look_through(raw: Mapping[str, Any], bounds: UpstreamBounds) -> Examined:
    """Find out what does not take the schema's compilation. The work is linear in the size of the definition."""
    if excess := excess_of(raw, bounds):
        return Examined(raw, excess)
    found = Examined(raw, spoilt=_spoilt_members(raw))
    schema = raw.get("inputSchema")
    if not isinstance(schema, dict):
        return replace(found, wrong="it has no input schema")
    return replace(
        found,
        schema=schema,
        widened=admit_paths(schema),
        headers=header_locations(schema),
        cost=cost_of(schema),
    )


def compiled(found: Examined) -> Examined:
    """The same with a schema that is proved to be valid, or with one for any object instead."""
    if found.excess or found.wrong:
        return found
    try:
        check = compile_check(found.schema)
    except ValueError as error:
        return refused(found, str(error))
    return replace(found, check=check if is_small(found) else None)


def refused(found: Examined, wrong: str) -> Examined:
    """The same tool with a schema for any object, since its own cannot be used."""
    any_object = replace(found, schema=dict(_ANY), widened=admit_paths(_ANY), headers=(), cost=None)
    return any_object.unchecked(wrong.rstrip("."))


def with_check(found: Examined) -> Examined | None:
    """The same with its check, compiled here; None if that may be too much work for the event loop."""
    if found.excess or found.wrong:
        return found
    if not is_small(found) and not _is_soon_compiled(found.schema):
        return None
    try:
        check = compile_check(found.schema, is_small=True)
        return replace(found, check=check if is_small(found) else None)
    except ValueError:  # invalid, or a pattern that is large
        return None


def is_small(found: Examined) -> bool:
    """Whether the event loop may compile the schema."""
    cost = found.cost
    return cost is not None and cost.patterns <= _FEW_PATTERNS and len(str(found.schema)) <= _SMALL


def _is_soon_compiled(schema: Schema) -> bool:
    """Whether the event loop may compile a schema only to prove that it is valid."""
    text = str(schema)
    return len(text) <= _SOON_COMPILED and not any(word in text for word in _SLOWLY_COMPILED)


def _spoilt_members(raw: Mapping[str, Any]) -> tuple[str, ...]:
    try:
        types.Tool.model_validate({**raw, "inputSchema": {"type": "object"}}, by_name=False)
    except ValidationError as error:
        return tuple(sorted({str(found["loc"][0]) for found in error.errors(include_url=False, include_input=False)}))
    return ()
