"""Who called, read and was refused what: the records of an audit log, and where the parts say them.

No record holds a value, an argument or a whole memory path; a hash stands for a path. Writing is elsewhere: to say
something here takes no time and never fails.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Final, Literal, Protocol

from mcp_mirror.errors import RefusalReason
from mcp_mirror.security.path_hash import PathHasher

Event = Literal["call", "flow", "refusal", "read"]
"""`call`: a tool was called; `flow`: a value went from one zone to another; `refusal`: something was not done or shown;
`read`: a stored value was looked at."""

UNKNOWN: Final = "(unknown)"
"""Stands for a tool that is none of ours: what a client calls it may be anything."""

_LONGEST: Final = 200
"""Characters of one text."""
_LOOKED: Final = 4096
"""Characters of it that are looked at."""
_MOST: Final = 16
"""Labels or details of one record."""
_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class AuditRecord:
    """One line of the audit log."""

    event: Event
    principal: str
    """The namespace of who did it."""
    tool: str
    """As clients call it."""
    outcome: str
    """One word, such as `ok`, `stored`, `error`, `refused`."""
    path: str | None = None
    """The memory path that it is about. A hash of it is written."""
    labels: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    """Those of the value."""
    bytes: int = 0
    """Of the answer, or of the value that was read."""
    detail: Mapping[str, str] = field(default_factory=lambda: _NONE)
    """What else there is to say, in words of ours alone."""
    upstream: str = ""
    milliseconds: float | None = None
    correlation: str = ""
    """One for all that comes of one call."""


class Sink(Protocol):
    """What takes records."""

    def put(self, record: AuditRecord) -> None:
        """Write it some time soon, or count that it is lost. Never raises, and never waits."""

    async def keep(self, record: AuditRecord) -> bool:
        """Write it now; False where that cannot be."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many records are `written`, and how many `lost`."""


@dataclass(frozen=True, slots=True)
class Audit:
    """Where a part says what is to be written down. Without a sink nothing is."""

    sink: Sink | None = None
    is_required: bool = False
    """Nothing may be done that cannot be written down."""
    correlation: str = ""
    """Of the records that have none."""

    def write(self, record: AuditRecord) -> None:
        """Have it written down. Never raises, and never waits."""
        if self.sink is not None:
            self.sink.put(record if record.correlation else replace(record, correlation=self.correlation))

    async def admit(self, record: AuditRecord) -> bool:
        """Whether what a record announces may be done: where it must be written down, it is before."""
        return self.sink is None or not self.is_required or await self.sink.keep(record)

    @property
    def counts(self) -> Mapping[str, int]:
        """How many records are `written` and `lost`; nothing where none are said."""
        return self.sink.counts if self.sink else {}

    def within(self, correlation: str) -> "Audit":
        """The same for what comes of one call."""
        return replace(self, correlation=correlation)


SILENT: Final = Audit()
"""Writes nothing."""


@dataclass(slots=True)
class CallTrace:
    """Facts about one call, collected on its way."""

    upstream: str = ""
    """The upstream that was called."""
    path: str | None = None
    """The memory path of the stored value."""
    envelope: bytes = b"{}"
    """The members of the stored result beside its value, a JSON object."""
    labels: Mapping[str, Any] = field(default_factory=lambda: _NONE)
    """The flow labels of the result."""
    reason: RefusalReason | None = None
    """Why the call was refused; None if it was not."""
    stands_for: int = 0
    """Tokens of the stored result that a path or a preview replaces."""
    sent: int | None = None
    """Tokens of the reply; None if they were not counted yet."""
    kept_out: int = 0
    """Tokens that the model did not have to read, because a path replaces the value."""


def line_of(record: AuditRecord, time: str, path_hasher: PathHasher) -> bytes:
    """A record as a line: ASCII, and bounded.

    Args:
        record: What happened.
        time: When, as it is written.
        path_hasher: Says its path.
    """
    members: dict[str, Any] = {
        "time": time,
        "event": record.event,
        "principal": _told(record.principal, path_hasher),
        "tool": _told(record.tool, path_hasher),
        "upstream": _told(record.upstream, path_hasher),
        "outcome": _told(record.outcome, path_hasher),
        "path": path_hasher.of(record.path) if record.path else "",
        "labels": {_told(k, path_hasher): _said(v, path_hasher) for k, v in [*record.labels.items()][:_MOST]},
        "bytes": record.bytes,
        "milliseconds": None if record.milliseconds is None else round(record.milliseconds, 1),
        "correlation": _told(record.correlation, path_hasher),
        **{_told(k, path_hasher): _told(v, path_hasher) for k, v in [*record.detail.items()][:_MOST]},
    }
    return json.dumps({key: value for key, value in members.items() if value not in ("", None, {})}).encode() + b"\n"


def _told(text: str, path_hasher: PathHasher) -> str:
    hidden = path_hasher.hide(text[:_LOOKED])
    return hidden if len(hidden) <= _LONGEST else f"{hidden[:_LONGEST]}..."


def _said(value: Any, path_hasher: PathHasher) -> Any:
    """A label's value: a text, or a list of texts."""
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_told(str(one), path_hasher) for one in sorted(map(str, value))[:_MOST]]
    return _told(str(value), path_hasher)
