"""The walk of one call: route, resolve, call, capture, notice.

Pure functions decide at each step and shells act; who the caller is comes in as an explicit namespace, and ids,
clock and estimator are passed in. A mistake of anybody's becomes an answer that the model can act on.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import msgspec

from mcp_mirror.capture import Captured, capture
from mcp_mirror.catalog import Catalog, Entry
from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.models import Buffer, Descriptor, Draft, JsonToken, Provenance, Segments
from mcp_mirror.notice import Stored, write_notice
from mcp_mirror.paths import new_base
from mcp_mirror.policies import MirrorPolicy, StorePolicy
from mcp_mirror.recall import nearest_first, recall, unknown_path
from mcp_mirror.resolve import Escaped, Pointer, Resolved, find_pointers, substitute
from mcp_mirror.schema import types_at
from mcp_mirror.spans import Miss, locate
from mcp_mirror.stores.base import Store
from mcp_mirror.tools import OWN_TOOLS, Content, Memory
from mcp_mirror.upstreams.base import RawResult
from mcp_mirror.upstreams.supervisor import Upstreams
from mcp_mirror.wire import array_of, join

_CHECKED_BYTES = 1 << 18
"""Arguments up to this size are validated against the tool's schema."""

Reply = Mapping[str, Buffer | Segments]
"""The members of a `tools/call` result, JSON text."""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call as a client made it."""

    namespace: str
    name: str
    arguments: Buffer
    """A JSON object."""


@dataclass(slots=True)
class Gateway:
    """Serves tool calls. The catalog is exchanged whole when an upstream's listing changes."""

    upstreams: Upstreams
    store: Store
    mirror: MirrorPolicy
    lifetime: StorePolicy
    clock: Callable[[], float]
    """Seconds since the epoch."""
    new_id: Callable[[], UUID]
    """UUID version 4."""
    estimate: Callable[[Buffer], int]
    """Tokens."""
    catalog: Catalog = field(default_factory=lambda: Catalog({}, frozenset()))

    async def call_tool(self, call: ToolCall) -> Reply:
        """Answer a call; errors become results with `isError` that say what to do."""
        try:
            if own := OWN_TOOLS.get(call.name):
                return _content(await own.run(self._memory, call.namespace, own.read_arguments(call.arguments)))
            entry = await self._route(call.name)
            return await (self._walk(entry, call) if entry.mirrored else self._pass(entry, call.arguments))
        except MirrorError as error:
            return error_reply(str(error))

    async def _walk(self, entry: Entry, call: ToolCall) -> Reply:
        found = find_pointers(call.arguments, self.catalog.labels)
        values = await self._fetch(call.namespace, found)
        arguments = substitute(call.arguments, found, values, lambda at: types_at(entry.schema, at))
        _check(entry, arguments)
        result = await self._pass(entry, *arguments)
        captured = capture(result, entry.rules, self.estimate)
        if captured.value is None:
            return result
        stored = await self._keep(call, entry, captured, values)
        return self._notice(call, entry, captured, stored)

    @property
    def _memory(self) -> Memory:
        return Memory(self.store, self.mirror, self.estimate)

    async def _route(self, name: str) -> Entry:
        if name not in self.catalog.entries:  # its upstream may be starting still
            await self.upstreams.settle(self.mirror.startup_wait)
        if entry := self.catalog.entries.get(name):
            return entry
        nearest = nearest_first(name, (*self.catalog.entries, *OWN_TOOLS))[:3]
        down = [one.policy.name for one in self.upstreams if one.status.state != "ready"]
        missing = f" Upstreams that are not connected now: {', '.join(down)}." if down else ""
        raise ToolError(f"There is no tool {name!r}. Nearest are {', '.join(nearest)}.{missing}")

    async def _pass(self, entry: Entry, *arguments: Buffer) -> RawResult:
        headers = _header_arguments(entry, arguments)
        return await self.upstreams[entry.upstream].call_tool(entry.tool, arguments, headers, entry.timeout)

    async def _fetch(self, namespace: str, found: tuple[Pointer | Escaped, ...]) -> dict[Pointer, Resolved]:
        """The value of each pointer; a text that only looks like one, of a tool we never served, stays a text."""
        values: dict[Pointer, Resolved] = {}
        for pointer in found:
            if isinstance(pointer, Escaped):
                continue
            recalled = await recall(self.store, namespace, pointer.path) if pointer.path else None
            if recalled:
                values[pointer] = Resolved(str(recalled.path), recalled.blob, recalled.kind)
            elif pointer.ours:
                raise await unknown_path(self.store, namespace, pointer.text)
        return values

    async def _keep(
        self, call: ToolCall, entry: Entry, captured: Captured, inputs: Mapping[Pointer, Resolved]
    ) -> Descriptor:
        """Store the value, and before it what the same result said beside it."""
        digest = hashlib.sha256(call.arguments).hexdigest()
        paths = tuple(sorted({value.path for value in inputs.values()}))
        provenance = Provenance(entry.upstream, entry.tool, digest, paths)
        companion = None
        if captured.companion:
            described = self._describe(entry, captured.companion, provenance)
            await self.store.put(call.namespace, described, (captured.companion.blob,))
            companion = described.base
        assert captured.value is not None  # noqa: S101  # the walk returns where nothing is to be kept
        described = self._describe(entry, captured.value, provenance, companion, captured.envelope)
        await self.store.put(call.namespace, described, (captured.value.blob,))
        return described

    def _describe(
        self,
        entry: Entry,
        draft: Draft,
        provenance: Provenance,
        companion: str | None = None,
        envelope: bytes = b"{}",
    ) -> Descriptor:
        now = self.clock()
        return Descriptor(
            base=new_base(entry.tool, self.new_id()),
            kind=draft.kind,
            size=len(draft.blob),
            tokens=draft.tokens,
            members=draft.members,
            created=now,
            expires=now + self.lifetime.ttl,
            provenance=provenance,
            media_type=draft.media_type,
            companion=companion,
            envelope=envelope,
        )

    def _notice(self, call: ToolCall, entry: Entry, captured: Captured, stored: Descriptor) -> Reply:
        assert captured.value is not None  # noqa: S101  # as in _keep
        text = write_notice(
            Stored(
                path=stored.base,
                tool=entry.tool,
                arguments=call.arguments,
                blob=captured.value.blob,
                kind=stored.kind,
                tokens=stored.tokens,
                members=stored.members,
                media_type=stored.media_type,
                shown=captured.shown,
                companion=stored.companion if captured.named else None,
                head=captured.head,
            ),
            self.mirror.notice,
        )
        reply = _content(((text_block(text),), *((block,) for block in captured.passed)))
        return {**reply, "isError": b"true"} if captured.is_error else reply


def text_block(text: str) -> bytes:
    """A text content block."""
    return msgspec.json.encode({"type": "text", "text": text})


def error_reply(message: str) -> Reply:
    """A tool error that the model reads."""
    return {"content": array_of([text_block(message)]), "isError": b"true"}


def _content(blocks: Content) -> Reply:
    return {"content": array_of(blocks)}


def _check(entry: Entry, arguments: Segments) -> None:
    """Small arguments are held against the tool's own schema, so that the model hears what is wrong at once.

    Raises:
        ToolError: They do not fit.
    """
    if sum(len(segment) for segment in arguments) > _CHECKED_BYTES:
        return
    try:
        given = json.loads(join(arguments))
    except (ValueError, RecursionError):  # such as an integer of 5,000 digits: the upstream is to judge
        return
    if wrong := entry.check(given):
        raise ToolError(f"The arguments do not fit tool {entry.name!r}: {wrong}. Correct them and call again.")


def _header_arguments(entry: Entry, arguments: Segments) -> dict[str, Any]:
    """The arguments that are mirrored into HTTP headers, parsed, each in its place."""
    picked: dict[str, Any] = {}
    text = join(arguments) if entry.headers else b""
    for location in entry.headers:
        if not isinstance(span := locate(text, location), Miss):
            with suppress(ValueError, RecursionError):  # such as an integer of 5,000 digits: no header holds it
                _place(picked, location, json.loads(text[span.start : span.stop]))
    return picked


def _place(tree: dict[str, Any], location: tuple[JsonToken, ...], value: object) -> None:
    *above, last = location
    for token in above:
        tree = tree.setdefault(str(token), {})
    tree[str(last)] = value
