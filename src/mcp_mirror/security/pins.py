"""Pinned tool definitions and instructions of upstreams, and their changes since the operator locked them.

A pin covers the complete definition of a tool, unknown members included, because a twin passes them on to clients. It
also covers an upstream's instructions, which models read. Prompts and resources are not pinned, because a person
selects them. Pure.
"""

import difflib
import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.settings.upstreams import LockMode, UpstreamPolicy

Definition = Mapping[str, Any]

_FORMAT: Final = 1
_NAME: Final = 160
_NAMED: Final = 5
"""Number of changed members that a sentence names."""
_LINE: Final = 1 << 20
_SHOWN: Final = 1 << 9
"""Characters of a diff line that are shown."""
_CONTEXT: Final = 1
_INSTRUCTIONS: Final = "instructions"
_TOO_DEEP: Final = "(nested too deep to be shown)"
_ADVICE: Final = "`mcp-mirror lock --check` shows the difference, `mcp-mirror lock` accepts it."
_MOST_DIGITS: Final = 21
_LEAST_DIGITS: Final = -5
"""Positions of the decimal point up to which ECMAScript (Number::toString) writes a number without an exponent."""


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pinned definition of a tool."""

    sha256: str
    """The digest of the definition's canonical form, hexadecimal."""
    definition: dict[str, Any]


class Pinned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pins of an upstream."""

    instructions: str | None
    tools: dict[str, Pin]
    """In the order of the upstream's list."""


class Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The pins of all upstreams."""

    format: Literal[1]
    upstreams: dict[str, Pinned]


NO_LOCK: Final = Lock(_FORMAT, {})


class DefinitionChange(msgspec.Struct, frozen=True):
    """A difference between a pin and the upstream: of one tool, or of the instructions."""

    upstream: str
    tool: str | None
    """None for the upstream's instructions."""
    was: Definition | None
    """The pinned definition; None if it was not pinned."""
    now: Definition | None
    """The present definition; None if it was removed."""

    @property
    def subject(self) -> str:
        """The changed object in a sentence."""
        if self.tool is None:
            return f"The instructions of upstream {self.upstream!r}"
        return f"Tool {as_json_string(self.tool, _NAME)} of upstream {self.upstream!r}"

    @property
    def predicate(self) -> str:
        """The kind of the change in a sentence, without text of the upstream."""
        if self.was is None:
            return f"{'are' if self.tool is None else 'is'} not in the lock file"
        if self.now is None:
            return f"{'were' if self.tool is None else 'was'} removed"
        return f"{'are' if self.tool is None else 'is'} not as locked"

    @property
    def changed_members(self) -> str:
        """The members that differ, in parentheses; empty for instructions and for new or removed tools."""
        if self.tool is None or self.was is None or self.now is None:
            return ""
        differing = (
            key for key in {**self.was, **self.now} if _encode_member(self.was, key) != _encode_member(self.now, key)
        )
        names = [as_json_string(name, _NAME) for name in differing]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f" ({', '.join(names[:_NAMED])}{more})"

    def lines(self) -> Iterator[str]:
        """The lines of a unified diff without its header. Invisible characters are escaped."""
        diff = difflib.unified_diff(_render(self.was), _render(self.now), n=_CONTEXT, lineterm="")
        return (line[:_SHOWN] for line in islice(diff, 2, None) if not line.startswith("@@ "))


class Finding(msgspec.Struct, frozen=True):
    """A change and its consequence."""

    change: DefinitionChange
    is_blocked: bool
    """The object is hidden from clients. Otherwise the change is only reported."""

    @property
    def sentence(self) -> str:
        """The finding for an operator."""
        consequence = "quarantined" if self.is_blocked else "still served"
        change, verb = self.change, "they are" if self.change.tool is None else "it is"
        return f"{change.subject} {change.predicate}{change.changed_members}: {verb} {consequence}. {_ADVICE}"

    @property
    def refusal(self) -> str:
        """The error for a model that calls the tool."""
        change = self.change
        return f"{change.subject} {change.predicate}, so it is quarantined. Ask the operator to review it: {_ADVICE}"


def _encode_member(definition: Definition, key: str) -> str | None:
    """A member's canonical text; a text that no pin can have if the member is nested too deep."""
    try:
        return write_canonical(definition[key]) if key in definition else None
    except RecursionError:
        return _TOO_DEEP


def _render(definition: Definition | None) -> Sequence[str]:
    """The lines of a readable form of a definition: its texts keep their line breaks."""
    try:
        return [] if definition is None else list(_render_value("", definition, ""))
    except RecursionError:
        return [_TOO_DEEP]


def _render_value(begin: str, value: Any, margin: str) -> Iterator[str]:
    inner = f"{margin}  "
    match value:
        case dict() if value:
            yield f"{margin}{begin}{{"
            for key in sorted(value):
                yield from _render_value(f"{as_json_string(key, _LINE)}: ", value[key], inner)
            yield f"{margin}}}"
        case list() if value:
            yield f"{margin}{begin}["
            for item in value:
                yield from _render_value("", item, inner)
            yield f"{margin}]"
        case str() if "\n" in value:
            yield f"{margin}{begin}"
            yield from (f"{inner}{as_json_string(line, _LINE)}" for line in value.splitlines())
        case str():
            yield f"{margin}{begin}{as_json_string(value, _LINE)}"
        case _:
            yield f"{margin}{begin}{json.dumps(value)}"


def compare_tool(lock: Lock, upstream: str, tool: str, definition: Definition) -> DefinitionChange | None:
    """The difference between a tool and its pin; None if they are equal."""
    pinned = lock.upstreams.get(upstream)
    pin = pinned.tools.get(tool) if pinned else None
    if pin is None:
        return DefinitionChange(upstream, tool, None, definition)
    return None if _is_same(pin, definition) else DefinitionChange(upstream, tool, pin.definition, definition)


def _is_same(pin: Pin, definition: Definition) -> bool:
    try:
        # Equal definitions can have two texts, for 1 and 1.0. The digest, which is slow, decides only on equal values.
        was, now = (msgspec.json.encode(one, order="deterministic") for one in (pin.definition, definition))
        return was == now or (
            msgspec.json.decode(was) == msgspec.json.decode(now) and pin.sha256 == hash_json(definition)
        )
    except RecursionError:
        return False


def _compare_instructions(lock: Lock, upstream: str, instructions: str | None) -> DefinitionChange | None:
    """The difference between an upstream's instructions and their pin; None if they are equal."""
    pinned = lock.upstreams.get(upstream)
    was = pinned.instructions if pinned else None
    if (was or None) == (instructions or None):
        return None
    old, new = ({_INSTRUCTIONS: text} if text else None for text in (was, instructions))
    return DefinitionChange(upstream, None, old, new)


class Pins(msgspec.Struct, frozen=True):
    """The pins of a configuration and the mode in which they are enforced."""

    lock: Lock = NO_LOCK
    mode: LockMode = "off"

    def _find_mode(self, policy: UpstreamPolicy) -> LockMode:
        """The mode for an upstream; always off if the mode of the gateway is off."""
        return self.mode if self.mode == "off" else policy.lock or self.mode

    def check_tool(self, policy: UpstreamPolicy, tool: str, definition: Definition) -> Finding | None:
        """The finding about a tool; None if it matches its pin or is not enforced."""
        return self._build_finding(policy, lambda: compare_tool(self.lock, policy.name, tool, definition))

    def check_instructions(self, policy: UpstreamPolicy, instructions: str | None) -> Finding | None:
        """The finding about an upstream's instructions; None if they match their pin or are not enforced."""
        return self._build_finding(policy, lambda: _compare_instructions(self.lock, policy.name, instructions))

    def _build_finding(self, policy: UpstreamPolicy, compare: Callable[[], DefinitionChange | None]) -> Finding | None:
        mode = self._find_mode(policy)
        change = None if mode == "off" else compare()
        return Finding(change, mode == "block") if change else None

    def pinned_tools(self, policies: Iterable[UpstreamPolicy]) -> list[tuple[str, str]]:
        """Upstream and name of every pinned tool that the policy admits, in a stable order."""
        held = [one for one in policies if self._find_mode(one) != "off" and one.name in self.lock.upstreams]
        return [(one.name, tool) for one in held for tool in self.lock.upstreams[one.name].tools if one.admits(tool)]


NO_PINS: Final = Pins()


def pin_upstream(
    policy: UpstreamPolicy, instructions: str | None, tools: Iterable[Definition]
) -> tuple[Pinned, tuple[str, ...]]:
    """Pin the instructions of an upstream, and those of its tools that the policy admits; of one name, the first tool.

    Return the pins, and a sentence about each tool that cannot be pinned.
    """
    pins: dict[str, Pin] = {}
    problems: list[str] = []
    for tool in tools:
        name = tool.get("name")
        if not isinstance(name, str) or not name or name in pins or not policy.admits(name):
            continue
        try:
            text = write_canonical(tool)
        except RecursionError:
            problems.append(
                f"Tool {as_json_string(name, _NAME)} of upstream {policy.name!r} is nested too deep to be locked."
            )
            continue
        pins[name] = Pin(hash_json(tool), json.loads(text))
    return Pinned(instructions or None, pins), tuple(problems)


def compare_locks(was: Lock, now: Lock) -> tuple[DefinitionChange, ...]:
    """The differences between two locks."""
    found: list[DefinitionChange | None] = []
    for name in {**was.upstreams, **now.upstreams}:
        before, after = was.upstreams.get(name, _NO_TOOLS), now.upstreams.get(name, _NO_TOOLS)
        found.append(_compare_instructions(was, name, after.instructions))
        found += [compare_tool(was, name, tool, pin.definition) for tool, pin in after.tools.items()]
        gone = before.tools.keys() - after.tools.keys()
        found += [
            DefinitionChange(name, tool, pin.definition, None) for tool, pin in before.tools.items() if tool in gone
        ]
    return tuple(change for change in found if change)


_NO_TOOLS: Final = Pinned(None, {})


def write_lock(lock: Lock) -> str:
    """The text of a lock file, in ASCII, so that invisible characters are escaped."""
    return f"{json.dumps(msgspec.to_builtins(lock), indent=1)}\n"


def read_lock(text: str) -> Lock:
    """Parse the text of a lock file.

    Raises:
        ValueError: The text is not a lock file, or a definition in it was edited; the message names the definition.
    """
    try:
        lock = msgspec.convert(json.loads(text), Lock)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    for upstream, pinned in lock.upstreams.items():
        for tool, pin in pinned.tools.items():
            if hash_json(pin.definition) != pin.sha256:
                raise ValueError(
                    f"the definition of tool {as_json_string(tool, _NAME)} of upstream {upstream!r} does not match its "
                    "sha256"
                )
    return lock


def write_canonical(value: Any) -> str:
    """The canonical text of a JSON value: one text per value, for any key order and number notation.

    The form is that of RFC 8785, except that integers keep all their digits: beyond 2**53, RFC 8785 would write two
    different bounds alike. NaN and infinity become null, as in sent messages.

    Raises:
        RecursionError: The value is nested too deep.
    """
    match value:
        case dict():
            members = sorted(value.items(), key=lambda member: member[0].encode("utf-16-be", "surrogatepass"))
            return "{" + ",".join(f"{_encode_text(key)}:{write_canonical(each)}" for key, each in members) + "}"
        case list() | tuple():
            return "[" + ",".join(map(write_canonical, value)) + "]"
        case str():
            return _encode_text(value)
        case float():
            return _encode_number(value)
    return json.dumps(value)


def hash_json(value: Any) -> str:
    """The SHA-256 of the text of `write_canonical` in UTF-8, hexadecimal."""
    return hashlib.sha256(write_canonical(value).encode("utf-8", "surrogatepass")).hexdigest()


def _encode_text(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _encode_number(number: float) -> str:
    if not math.isfinite(number):
        return "null"
    if number.is_integer() and abs(number) < 10**_MOST_DIGITS:
        return str(int(number))
    sign, digits, exponent = Decimal(repr(number)).normalize().as_tuple()
    assert isinstance(exponent, int)  # noqa: S101  # it is finite
    text, minus, place = "".join(map(str, digits)), "-" if sign else "", exponent + len(digits)
    if not _LEAST_DIGITS <= place <= _MOST_DIGITS:
        point = f".{text[1:]}" if len(text) > 1 else ""
        return f"{minus}{text[0]}{point}e{place - 1:+d}"
    return f"{minus}{text[:place]}.{text[place:]}" if place > 0 else f"{minus}0.{'0' * -place}{text}"
