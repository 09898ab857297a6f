"""One of our own tools: how clients see it, how its arguments are read, and what it works on."""

import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final
from uuid import UUID

import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.memory.flow_guard import FlowGuard
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.memory.value_lookup import nearest
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.observability.audit import NO_AUDIT, Audit, CallTrace
from mcp_mirror.payload.spool import Spool
from mcp_mirror.query.windows import Budget
from mcp_mirror.security.flows import Flows
from mcp_mirror.settings.policies import MemoryToolsPolicy, MirrorPolicy, WirePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner

Content = tuple[Segments, ...]
"""Content blocks of an answer, JSON text."""


@dataclass(frozen=True, slots=True)
class Memory:
    """What our own tools work on."""

    writer: ValueWriter
    scanner: FrameScanner
    queries: QueryRunner
    spool: Spool
    usage_counter: UsageCounter
    mirror: MirrorPolicy
    tools: MemoryToolsPolicy
    limits: WirePolicy
    estimate: Callable[[Buffer], int]
    new_id: Callable[[], UUID]
    audit: Audit = NO_AUDIT
    """Where it is said what is read."""
    flows: Flows = field(default_factory=Flows)
    """What may flow where."""
    consent: str | None = None
    """The one flow that the user lets pass this time."""
    trace: CallTrace = field(default_factory=CallTrace)
    """Receives the path of a value that a tool stores."""

    @property
    def store(self) -> Store:
        """Where values are."""
        return self.writer.store

    def guard(self, namespace: str, tool: str) -> FlowGuard:
        """Where a value is held that a tool is to take."""
        return FlowGuard(self.flows, namespace, tool, self.audit, consent=self.consent)

    @property
    def budget(self) -> Budget:
        """What a reading tool shows at once."""
        return Budget(self.mirror.read_budget, self.tools.read_characters, self.estimate)


class Arguments:
    """The arguments of a call, each of its type."""

    def __init__(self, values: Mapping[str, Any], raw: bytes) -> None:
        """Take what was read.

        Args:
            values: Each argument that was given: text, a number, a truth value, or JSON as it came.
            raw: All of them, as they came.
        """
        self._values = values
        self.raw = raw

    def has(self, name: str) -> bool:
        """Whether it was given."""
        return name in self._values

    def text(self, name: str, default: str = "") -> str:
        """A string."""
        return str(self._values.get(name, default))

    def number(self, name: str, default: int = 0) -> int:
        """An integer."""
        return int(self._values.get(name, default))

    def flag(self, name: str) -> bool:
        """A truth value; false where it was not given."""
        return bool(self._values.get(name, False))

    def json(self, name: str) -> bytes:
        """JSON as it came."""
        return bytes(self._values[name])


@dataclass(frozen=True, slots=True)
class ToolInput:
    """The input of one of our own tools."""

    memory: Memory
    namespace: str
    """Whose memory it works on."""
    tool: str
    given: Arguments


@dataclass(frozen=True, slots=True)
class MemoryTool:
    """One of our own tools."""

    name: str
    description: str
    properties: Mapping[str, Mapping[str, Any]]
    """The schema of each argument."""
    required: tuple[str, ...]
    run: Callable[[ToolInput], Awaitable[Content]] = field(repr=False)
    hints: Mapping[str, bool] = field(default_factory=lambda: READS)
    meta: Mapping[str, Any] = field(default_factory=dict)

    @property
    def advert(self) -> dict[str, Any]:
        """The tool as clients see it."""
        properties = {name: dict(schema) for name, schema in self.properties.items()}
        required = {"required": list(self.required)} if self.required else {}
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": {"type": "object", "properties": properties, **required},
            "annotations": dict(self.hints),
            **({"_meta": dict(self.meta)} if self.meta else {}),
        }

    def told(self, description: str) -> "MemoryTool":
        """The same tool in other words."""
        return replace(self, description=description)

    async def call(self, memory: Memory, namespace: str, arguments: Buffer) -> Content:
        """Answer a call.

        Raises:
            ToolError: The arguments do not fit, or what they ask for cannot be done.
        """
        return await self.run(ToolInput(memory, namespace, self.name, self.read_arguments(arguments)))

    def read_arguments(self, arguments: Buffer) -> Arguments:
        """The arguments of a call, checked.

        Raises:
            ToolError: One is missing, unknown or of another type.
        """
        try:
            given = msgspec.json.decode(arguments, type=dict[str, msgspec.Raw])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise ToolError(f"The arguments are no JSON object. {self._usage}") from None
        text_content = {name: bytes(raw) for name, raw in given.items() if bytes(raw) != b"null"}
        if unknown := next((name for name in text_content if name not in self.properties), None):
            near = nearest(unknown, self.properties)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise ToolError(f"{self.name} takes no argument {unknown[:80]!r}.{hint} {self._usage}")
        if missing := next((name for name in self.required if name not in text_content), None):
            raise ToolError(f"{self.name} needs {missing!r}. {self._usage}")
        return Arguments({name: self._read(name, raw) for name, raw in text_content.items()}, bytes(arguments))

    def _read(self, name: str, raw: bytes) -> Any:
        schema = self.properties[name]
        kind = schema.get("type", "")
        value = _READERS.get(kind, _any)(raw)
        if value is None:
            raise ToolError(f"{name!r} of {self.name} must be {_TYPES[kind]}. {self._usage}")
        if "enum" in schema and value not in schema["enum"]:
            raise ToolError(f"{name!r} of {self.name} must be one of {', '.join(schema['enum'])}.")
        return value

    @property
    def _usage(self) -> str:
        optional = [name for name in self.properties if name not in self.required]
        needed = f"It takes {', '.join(self.required)}" if self.required else "It takes nothing"
        may = f", and may take {', '.join(optional)}" if optional else ""
        return f"{needed}{may}."


def _any(raw: bytes) -> bytes:
    return raw


def _text(raw: bytes) -> str | None:
    try:
        return msgspec.json.decode(raw, type=str)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _bare(raw: bytes) -> str:
    """A scalar as written, without the quotes that models put around numbers and truth values."""
    return raw.decode("utf-8", "replace").strip().strip('"').strip().lower()


def _number(raw: bytes) -> int | None:
    match = re.fullmatch(r"([+-]?[0-9]{1,18})(?:\.0*)?", _bare(raw))
    return int(match[1]) if match else None


def _flag(raw: bytes) -> bool | None:
    return {"true": True, "false": False}.get(_bare(raw))


def _json(opening: bytes) -> Callable[[bytes], bytes | None]:
    """JSON of one kind, as it came; a text that spells it does as well."""

    def read(raw: bytes) -> bytes | None:
        text = _text(raw)
        spelled = raw if text is None else text.strip().encode()
        try:
            msgspec.json.decode(spelled, type=msgspec.Raw)
        except (msgspec.MsgspecError, RecursionError):
            return None
        return spelled if spelled[:1] == opening else None

    return read


_READERS: Final[Mapping[str, Callable[[bytes], Any]]] = {
    "string": _text,
    "integer": _number,
    "boolean": _flag,
    "array": _json(b"["),
    "object": _json(b"{"),
}
_TYPES: Final[Mapping[str, str]] = {
    "string": "text",
    "integer": "a whole number",
    "boolean": "true or false",
    "array": "a list",
    "object": "an object",
}

READS: Final[Mapping[str, bool]] = {"readOnlyHint": True, "openWorldHint": False}
ADDS: Final[Mapping[str, bool]] = {"destructiveHint": False, "openWorldHint": False}
DESTROYS: Final[Mapping[str, bool]] = {"openWorldHint": False}


def text_content(text: str) -> Content:
    """One text block."""
    return ((msgspec.json.encode({"type": "text", "text": text}),),)
