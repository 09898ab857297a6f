"""What upstreams said of their tools when the operator looked last, and in what they differ from it now.

Pinned is all that an upstream sends of a tool, members that nobody knows included: a twin passes them on, and what a
client makes of them is not known here. Its instructions are pinned too, which a model reads unasked. Prompts and
resources are not: a person picks them, and what they hold comes when they are fetched. Pure.
"""

import difflib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Literal

import msgspec

from mcp_mirror.payload.canonical_json import canonical, digest_of
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.settings.policies import LockMode, UpstreamPolicy

Definition = Mapping[str, Any]

_FORMAT: Final = 1
_NAME: Final = 160
_NAMED: Final = 5
"""Members of a definition that a sentence names."""
_LINE: Final = 1 << 20
_SHOWN: Final = 1 << 9
"""Characters of a line that are shown."""
_CONTEXT: Final = 1
_INSTRUCTIONS: Final = "instructions"
_TOO_DEEP: Final = "(nested too deep to be shown)"
_ADVICE: Final = "`mcp-mirror lock --check` shows the difference, `mcp-mirror lock` takes it."


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tool as it was."""

    sha256: str
    """Of the definition's canonical form, hexadecimal."""
    definition: dict[str, Any]


class Pinned(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One upstream as it was."""

    instructions: str | None
    tools: dict[str, Pin]
    """In the order in which it listed them."""


class Lock(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All upstreams as they were."""

    format: Literal[1]
    upstreams: dict[str, Pinned]


NO_LOCK: Final = Lock(_FORMAT, {})


@dataclass(frozen=True, slots=True)
class DefinitionChange:
    """What an upstream says otherwise than it was pinned: one tool, or its instructions."""

    upstream: str
    tool: str | None
    """None: the upstream's instructions."""
    was: Definition | None
    """None: it was not pinned."""
    now: Definition | None
    """None: it is there no more."""

    @property
    def what(self) -> str:
        """Its name in a sentence."""
        if self.tool is None:
            return f"The instructions of upstream {self.upstream!r}"
        return f"Tool {as_json_string(self.tool, _NAME)} of upstream {self.upstream!r}"

    @property
    def how(self) -> str:
        """What is the matter with it, a predicate without a word of the upstream's."""
        verb = "are" if self.tool is None else "is"
        if self.was is None:
            return f"{verb} not in the lock file"
        return f"{verb} not as locked" if self.now is not None else f"{verb} there no more"

    @property
    def where(self) -> str:
        """The members that differ, in brackets; nothing where that says no more."""
        if self.tool is None or self.was is None or self.now is None:
            return ""
        names = [as_json_string(name, _NAME) for name in _differing(self.was, self.now)]
        more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
        return f" ({', '.join(names[:_NAMED])}{more})"

    def lines(self) -> Iterator[str]:
        """The difference, a line each, as a unified diff without its head; nothing invisible in it."""
        told = difflib.unified_diff(_told(self.was), _told(self.now), n=_CONTEXT, lineterm="")
        return (line[:_SHOWN] for line in islice(told, 2, None) if not line.startswith("@@ "))


@dataclass(frozen=True, slots=True)
class Finding:
    """A change and what is done about it."""

    change: DefinitionChange
    is_blocked: bool
    """It is kept from clients; else told of alone."""

    @property
    def sentence(self) -> str:
        """For an operator."""
        done = "quarantined" if self.is_blocked else "served all the same"
        what, verb = self.change, "they are" if self.change.tool is None else "it is"
        return f"{what.what} {what.how}{what.where}: {verb} {done}. {_ADVICE}"

    @property
    def refusal(self) -> str:
        """For a model that calls the tool."""
        return f"{self.change.what} {self.change.how}, so it is quarantined. Ask the operator to look at it: {_ADVICE}"


def _differing(was: Definition, now: Definition) -> list[str]:
    """The members that are not the same."""
    return [key for key in {**was, **now} if _form(was, key) != _form(now, key)]


def _form(definition: Definition, key: str) -> str | None:
    """A member's one text; of one that is nested too deep none that a pin can have."""
    try:
        return canonical(definition[key]) if key in definition else None
    except RecursionError:
        return _TOO_DEEP


def _told(definition: Definition | None) -> Sequence[str]:
    """A definition in lines that a person reads: its texts keep their lines."""
    try:
        return [] if definition is None else list(_tell("", definition, ""))
    except RecursionError:
        return [_TOO_DEEP]


def _tell(begin: str, value: Any, margin: str) -> Iterator[str]:
    inner = f"{margin}  "
    match value:
        case dict() if value:
            yield f"{margin}{begin}{{"
            for key in sorted(value):
                yield from _tell(f"{as_json_string(key, _LINE)}: ", value[key], inner)
            yield f"{margin}}}"
        case list() if value:
            yield f"{margin}{begin}["
            for item in value:
                yield from _tell("", item, inner)
            yield f"{margin}]"
        case str() if "\n" in value:
            yield f"{margin}{begin}"
            yield from (f"{inner}{as_json_string(line, _LINE)}" for line in value.splitlines())
        case str():
            yield f"{margin}{begin}{as_json_string(value, _LINE)}"
        case _:
            yield f"{margin}{begin}{json.dumps(value)}"


def judge(lock: Lock, upstream: str, tool: str, definition: Definition) -> DefinitionChange | None:
    """In what a tool differs from how it was pinned; None where in nothing."""
    pinned = lock.upstreams.get(upstream)
    pin = pinned.tools.get(tool) if pinned else None
    if pin is None:
        return DefinitionChange(upstream, tool, None, definition)
    return None if _is_same(pin, definition) else DefinitionChange(upstream, tool, pin.definition, definition)


def _is_same(pin: Pin, definition: Definition) -> bool:
    try:
        return _sorted(pin.definition) == _sorted(definition) or pin.sha256 == digest_of(definition)
    except RecursionError:
        return False


def _sorted(definition: Definition) -> bytes:
    """What is equal for most equal definitions, and never for others: it costs a small part of the digest."""
    return msgspec.json.encode(definition, order="deterministic")


def judge_instructions(lock: Lock, upstream: str, instructions: str | None) -> DefinitionChange | None:
    """In what an upstream's instructions differ from how they were pinned; None where in nothing."""
    pinned = lock.upstreams.get(upstream)
    was = pinned.instructions if pinned else None
    if (was or None) == (instructions or None):
        return None
    return DefinitionChange(upstream, None, _said(was), _said(instructions))


def _said(instructions: str | None) -> Definition | None:
    return {_INSTRUCTIONS: instructions} if instructions else None


@dataclass(frozen=True, slots=True)
class Pins:
    """What is pinned, and what is done about what differs."""

    lock: Lock = NO_LOCK
    mode: LockMode = "off"

    def mode_of(self, policy: UpstreamPolicy) -> LockMode:
        """What is done where this upstream's tools differ; where nothing is locked, nothing."""
        return self.mode if self.mode == "off" else policy.lock or self.mode

    def judge(self, policy: UpstreamPolicy, tool: str, definition: Definition) -> Finding | None:
        """What there is to say of a tool; nothing where it is as it was pinned, or need not be."""
        return self._finding(policy, lambda: judge(self.lock, policy.name, tool, definition))

    def judge_instructions(self, policy: UpstreamPolicy, said: str | None) -> Finding | None:
        """The same of what an upstream says of itself."""
        return self._finding(policy, lambda: judge_instructions(self.lock, policy.name, said))

    def _finding(self, policy: UpstreamPolicy, look: Callable[[], DefinitionChange | None]) -> Finding | None:
        mode = self.mode_of(policy)
        change = None if mode == "off" else look()
        return Finding(change, mode == "block") if change else None

    def pinned_tools(self, policies: Iterable[UpstreamPolicy]) -> list[tuple[str, str]]:
        """Upstream and name of every tool that is pinned and would be served, in a stable order."""
        held = [one for one in policies if self.mode_of(one) != "off" and one.name in self.lock.upstreams]
        return [(one.name, tool) for one in held for tool in self.lock.upstreams[one.name].tools if one.admits(tool)]


NO_PINS: Final = Pins()


def pin_upstream(
    policy: UpstreamPolicy, instructions: str | None, tools: Iterable[Definition], problems: list[str]
) -> Pinned:
    """An upstream as it lists its tools now: those that are served, the first of each name.

    Args:
        policy: Which are served.
        instructions: What it says of itself.
        tools: All that it lists.
        problems: Told what cannot be pinned, a sentence each.
    """
    pins: dict[str, Pin] = {}
    for tool in tools:
        name = tool.get("name")
        if not isinstance(name, str) or not name or name in pins or not policy.admits(name):
            continue
        try:
            text = canonical(tool)
        except RecursionError:
            problems.append(
                f"Tool {as_json_string(name, _NAME)} of upstream {policy.name!r} is nested too deep to be locked."
            )
            continue
        pins[name] = Pin(digest_of(tool), json.loads(text))
    return Pinned(instructions or None, pins)


def differences(was: Lock, now: Lock) -> tuple[DefinitionChange, ...]:
    """What one lock has otherwise than another."""
    found: list[DefinitionChange | None] = []
    for name in {**was.upstreams, **now.upstreams}:
        before, after = was.upstreams.get(name, _NOBODY), now.upstreams.get(name, _NOBODY)
        found.append(judge_instructions(was, name, after.instructions))
        found += [judge(was, name, tool, pin.definition) for tool, pin in after.tools.items()]
        gone = before.tools.keys() - after.tools.keys()
        found += [
            DefinitionChange(name, tool, pin.definition, None) for tool, pin in before.tools.items() if tool in gone
        ]
    return tuple(change for change in found if change)


_NOBODY: Final = Pinned(None, {})


def write_lock(lock: Lock) -> str:
    """A lock as the text of its file, ASCII alone: what is not seen cannot hide there."""
    return f"{json.dumps(msgspec.to_builtins(lock), indent=1)}\n"


def read_lock(text: str) -> Lock:
    """The lock that was written.

    Raises:
        ValueError: It is none, or a definition in it was changed by hand; the message says which.
    """
    try:
        lock = msgspec.convert(json.loads(text), Lock)
    except RecursionError:
        raise ValueError("it is nested too deep") from None
    for upstream, pinned in lock.upstreams.items():
        for tool, pin in pinned.tools.items():
            if digest_of(pin.definition) != pin.sha256:
                raise ValueError(
                    f"tool {as_json_string(tool, _NAME)} of upstream {upstream!r} is not what its sha256 says"
                )
    return lock
