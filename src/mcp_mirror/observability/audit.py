"""Audit records: calls, flows, refusals and reads of stored values, and the interface that writes them.

A record contains no value, argument or complete memory path; a hash replaces each path. Reporting a record does not
wait and never fails.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any, Final, Literal, Protocol

import msgspec

from mcp_mirror.callers import split_namespace
from mcp_mirror.errors import MirrorError, RefusalReason
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.settings.labels import Labels
from mcp_mirror.types import Buffer

Event = Literal["call", "flow", "refusal", "read"]
"""`call`: a tool was called; `flow`: a value went from one zone to another; `refusal`: the gateway refused an action or
withheld a value; `read`: a client read a stored value."""

UNKNOWN: Final = "(unknown)"
"""Replaces the name of an unknown tool, because a client may send any text as a name."""

_LONGEST: Final = 200
"""Characters of one text."""
_SCANNED: Final = 4096
"""Characters of one text that are searched for memory paths."""
_MAX_ITEMS: Final = 16
"""Labels or details of one record."""


class AuditRecord(msgspec.Struct, frozen=True):
    """One line of the audit log."""

    event: Event
    principal: str
    """The namespace of the caller."""
    tool: str
    """The name by which clients call the tool."""
    outcome: str
    """One word, such as `ok`, `stored`, `error`, `refused`."""
    path: str | None = None
    """The memory path of the record. Its hash is written."""
    labels: Mapping[str, Any] = msgspec.field(default_factory=dict)
    bytes: int = 0
    """The size of the response, or of the value that was read."""
    detail: Mapping[str, str] = msgspec.field(default_factory=dict)
    """Further members, without text of upstreams or clients."""
    upstream: str = ""
    milliseconds: float | None = None
    correlation: str = ""
    """An id that all records of one call share."""
    requests: int = 1
    """The number of rejected HTTP requests that the record has."""


class AuditSink(Protocol):
    """Writes records."""

    def enqueue(self, record: AuditRecord) -> None:
        """Write a record soon, or count it as lost. Never raises and never waits."""

    async def write(self, record: AuditRecord) -> bool:
        """Write a record and wait for it. Returns False if it cannot be written."""

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of records that were `written` and `lost`."""


class Audit(msgspec.Struct, frozen=True):
    """Writes audit records to a sink. Without a sink, records are dropped."""

    sink: AuditSink | None = None
    is_required: bool = False
    """An action is refused if its record cannot be written."""
    correlation: str = ""
    """The id for records without one."""

    def write(self, record: AuditRecord) -> None:
        """Write a record soon. Never raises and never waits."""
        if self.sink is not None:
            self.sink.enqueue(
                record if record.correlation else msgspec.structs.replace(record, correlation=self.correlation)
            )

    async def admit(self, record: AuditRecord) -> bool:
        """Whether the recorded action may be done. If records are required, the record is written first."""
        return self.sink is None or not self.is_required or await self.sink.write(record)

    @property
    def counts(self) -> Mapping[str, int]:
        """The number of records that were `written` and `lost`; empty without a sink."""
        return self.sink.counts if self.sink else {}

    def with_correlation(self, correlation: str) -> "Audit":
        """The same audit log, with the correlation id of one call."""
        return msgspec.structs.replace(self, correlation=correlation)


@dataclass(slots=True)
class CallTrace:
    """Facts about one call, collected on its way."""

    upstream: str = ""
    path: str | None = None
    """The memory path of the stored value."""
    inputs: dict[str, str] = field(default_factory=dict)
    """The memory paths of the stored values that the call used, each with the trace context of the call that produced
    the value, empty without traces."""
    path_slugs: frozenset[str] | None = None
    """The slugs by which memory paths in the arguments were searched; None if they were not searched."""
    other_members: bytes = b"{}"
    """The members of the stored result beside its value, a JSON object."""
    labels: Labels | None = None
    """The flow labels of the result; None before they are known."""
    input_labels: Labels | None = None
    """The joined flow labels of the stored values that the arguments name; None before they are known."""
    refusal: MirrorError | None = None
    """The error with which the gateway refused the call; None if it did not."""
    traceparent: str = ""
    """The W3C trace context of the call; empty without traces."""
    span: Any = field(default=None, repr=False)
    """The span of the call; None without traces."""
    hidden_tokens: int = 0
    """Tokens of the stored result that a path or a preview replaces."""
    shown: str = field(default="", repr=False)
    """The text of the result that the reply begins with, whose tokens were counted before."""
    sent: int | None = None
    """Tokens of the reply; None if they were not counted yet."""
    kept_out: int = 0
    """Tokens that the model did not have to read, because a path replaces the value."""
    detail: Mapping[str, str] = field(default_factory=dict)
    """Further members of the audit record."""
    returned: Buffer | None = field(default=None, repr=False)
    """The value that a script or an SQL query returned, JSON text, for the program that runs the gateway."""
    printed: str = field(default="", repr=False)
    """The text that a script printed, for the program that runs the gateway."""

    @property
    def reason(self) -> RefusalReason | None:
        """Why the gateway refused the call; None if it did not."""
        return self.refusal.reason if self.refusal else None

    def take_result(self, begun: "CallTrace") -> None:
        """Take over what a script has done from the trace of the call that began it."""
        self.path, self.labels, self.detail = begun.path, begun.labels, begun.detail
        self.inputs, self.refusal = begun.inputs, begun.refusal


def format_record(record: AuditRecord, time: str, path_hasher: PathHasher) -> bytes:
    """A record as a line of ASCII with bounded length."""
    cut = partial(_cut_text, path_hasher=path_hasher)
    issuer, name = split_namespace(record.principal)
    labels = islice(record.labels.items(), _MAX_ITEMS)
    details = islice(record.detail.items(), _MAX_ITEMS)
    members: dict[str, Any] = {
        "time": time,
        "event": record.event,
        "principal": cut(name),
        "issuer": cut(issuer),
        "tool": cut(record.tool),
        "upstream": cut(record.upstream),
        "outcome": cut(record.outcome),
        "path": path_hasher.hash_path(record.path) if record.path else "",
        "labels": {cut(key): _format_label(label, cut) for key, label in labels},
        "bytes": record.bytes,
        "milliseconds": None if record.milliseconds is None else round(record.milliseconds, 1),
        "correlation": cut(record.correlation),
        "requests": record.requests if record.requests > 1 else None,
        **{cut(key): cut(text) for key, text in details},
    }
    return json.dumps({key: value for key, value in members.items() if value not in ("", None, {})}).encode() + b"\n"


def _cut_text(text: str, path_hasher: PathHasher) -> str:
    """The text; a long one with the hash of all of it, because names of principals may differ only at their ends."""
    hidden = path_hasher.replace_paths(text[:_SCANNED])
    return hidden if len(hidden) <= _LONGEST else f"{hidden[:_LONGEST]}... {path_hasher.hash_text(text)}"


def _format_label(label: Any, cut: Callable[[str], str]) -> Any:
    """The value of a label: a text or a list of texts."""
    if isinstance(label, (list, tuple, set, frozenset)):
        return [cut(text) for text in sorted(map(str, label))[:_MAX_ITEMS]]
    return cut(str(label))
