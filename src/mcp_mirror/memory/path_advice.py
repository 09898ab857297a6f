"""Finds the path that a model most probably meant, for errors about arguments that do not fit."""

from collections.abc import Awaitable, Callable
from itertools import islice
from typing import Final

import msgspec

from mcp_mirror.core.conversion import Resolved, coerce, fits
from mcp_mirror.core.texts.embedded_json import find_embedded_json
from mcp_mirror.core.texts.formats import find_format, has_columns, read_edges
from mcp_mirror.errors import ToolError
from mcp_mirror.memory.value_lookup import FoundValue, look_up
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.paths import MemoryPath, parse_path, strip_wrapping
from mcp_mirror.payload.json_spans import items, kind_at, members, spans_by_key, trim
from mcp_mirror.query.texts import is_text, locate_text
from mcp_mirror.security.flows import Flows
from mcp_mirror.security.sanitize import as_expression_key
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Descriptor, Kind, Segments, Span
from mcp_mirror.workers.frames import FrameScanner

_MAX_PARTS: Final = 12
"""Members or items of a value that are compared with an argument."""
_MAX_SCANNED_BYTES: Final = 1 << 20
"""Bytes of a container whose parts are compared with an argument, unless its keys are indexed."""
_MAX_NESTING: Final = 4
"""Levels of objects whose parts are compared with an argument."""
_MAX_PARSED_BYTES: Final = 1 << 20
"""Bytes of a text that may contain a value that fits."""
_SQL_ADVICE: Final = (
    "It has rows ({form}): pass the result of memory_query with the `sql` SELECT * FROM t and "
    '`inputs` {{"t": "{path}"}}.'
)
_MAX_KEY: Final = 120
"""Bytes of a key that an error names."""
_CONTAINERS: Final = frozenset({"array", "null", "object"})
"""JSON types of arguments for which no model writes a text on purpose."""
_PART: Final = lazy_pattern(r"(?:path)?(/[^\n]{1,200})")
"""A path without its base, as models copy it from the words of a notice."""

Accepts = Callable[[Segments], Awaitable[bool]]
"""Whether the argument's schema accepts a value of one of its types, JSON text."""


class PathAdvice(msgspec.Struct, frozen=True):
    """Looks for a value of one namespace that fits an argument, and that the model may see.

    Methods raise `StoreError` if the store fails.
    """

    writer: ValueWriter
    scanner: FrameScanner
    flows: Flows
    namespace: str
    wanted: frozenset[str]
    """The JSON types that the argument accepts."""
    accepts: Accepts
    is_named: Callable[[str], bool] = lambda _: False
    """Whether the argument's schema names a member."""

    async def find_near(self, path: MemoryPath) -> MemoryPath | None:
        """Find a value that fits near a path that does not: below it, else beside it, else the value around it.

        If the value around it fits as well as a part below it, it is the part only if the argument's schema names one
        of the part's members: notices name the paths of rows, and models pass these where the whole object is wanted.
        Of a few parts it is the largest, of many the first. Parts of values in no-preview mode are not named.
        For a path of the texts and pictures beside the newest value, it is a part of that value, or the value.
        """
        newest = await self._find_newest()
        described = await self.writer.store.describe(self.namespace, newest.base) if newest else None
        if isinstance(described, Descriptor) and described.companion == path.base:
            value = MemoryPath(described.base)
            return await self._find(value, self._find_part) or await self._find(value, self._find_whole)
        part = await self._find(path, self._find_part)
        if not path.tokens or (part and await self._find(part, self._find_described)):
            return part
        above = MemoryPath(path.base, path.tokens[:-1])
        beside = None if part else await self._find(above, self._find_part)
        near = beside or await self._find(above, self._find_whole)
        return near if near and await self._is_accepted(near) else part

    async def find_meant(self, text: str, *, may_be_any: bool) -> MemoryPath | None:
        """Find a value that fits and that a text may mean: a part of the newest value that the text names.

        `may_be_any`: where only objects or arrays fit, any text may mean the newest value, or one near it, if the
        argument's schema accepts the value.
        """
        if (value := await self._find_newest()) is None:
            return None
        if part := _PART.fullmatch(strip_wrapping(text)):
            for above in (value, value.base):
                path = parse_path(f"{above}{part[1]}")
                if path and (meant := await self._find(path, self._find_whole)):
                    return meant
        if not may_be_any or not self.wanted <= _CONTAINERS:
            return None
        near = await self._find(value, self._find_whole) or await self.find_near(value)
        return near if near and await self._is_accepted(near) else None

    async def _is_accepted(self, path: MemoryPath) -> bool:
        found = await look_up(self.writer.store, self.scanner, self.namespace, path)
        value = found and Resolved(found.path, found.blob, found.kind)
        return value is not None and await self.accepts(coerce(value, self.wanted, ()))

    async def _find_newest(self) -> MemoryPath | None:
        """The path of the newest notice, or of the newest value."""
        newest = self.writer.notices.newest(self.namespace)
        if newest is None and (listed := await self.writer.store.list(self.namespace, limit=1)):
            newest = listed[0].base
        return parse_path(newest) if newest else None

    async def _find(self, path: MemoryPath, select: Callable[[FoundValue], MemoryPath | None]) -> MemoryPath | None:
        try:
            found = await look_up(self.writer.store, self.scanner, self.namespace, path)
        except ToolError:  # it has no such part, or has expired
            return None
        if found is None or not self.flows.may_show(self.flows.read_labels(found.descriptor)):
            return None
        return await run_fairly(self.namespace, select, found)

    def _find_whole(self, found: FoundValue) -> MemoryPath | None:
        return found.path if self._fits(found.path, found.blob, found.kind) else None

    def _find_described(self, found: FoundValue) -> MemoryPath | None:
        keys = islice(_list_parts(found), _MAX_PARTS) if found.kind == "object" else ()
        return found.path if any(map(self.is_named, keys)) else None

    def _find_part(self, found: FoundValue) -> MemoryPath | None:
        """Find a part of an object or array that fits, else a part of the largest object in an object, at any depth."""
        parts = _list_parts(found) if found.preview else {}
        path, blob = found.path, found.blob
        for _ in range(_MAX_NESTING if found.kind == "object" else 1):
            if len(parts) <= _MAX_PARTS:
                parts = dict(sorted(parts.items(), key=lambda member: -member[1].length))
            for key, part in islice(parts.items(), _MAX_PARTS):
                below = path.child(key)
                if self._fits(below, memoryview(blob)[part.start : part.stop], kind_at(blob, part.start)):
                    return below
            objects = [key for key in parts if kind_at(blob, parts[key].start) == "object"]
            largest = max(objects, key=lambda key: parts[key].length, default=None)
            if largest is None or parts[largest].length > _MAX_SCANNED_BYTES:
                break
            path, parts = path.child(largest), spans_by_key(members(blob, parts[largest]))
        return None

    def _fits(self, path: MemoryPath, blob: Buffer, kind: Kind) -> bool:
        is_long = kind == "text" and len(blob) > _MAX_PARSED_BYTES
        return not is_long and fits(Resolved(path, blob, kind), self.wanted)


def advise_query(blob: Buffer, path: MemoryPath, wanted: frozenset[str], *, has_sql: bool) -> str | None:
    """Return a sentence about the query that makes an array of a text that an argument does not accept, if one does.

    Of an embedded resource, the text counts. `wanted` has the JSON types that the argument accepts. `has_sql`: the
    queries accept SQL.
    """
    span = locate_text(blob)
    if "array" not in wanted or not is_text(blob, span):
        return None
    blob = memoryview(blob)[span.start : span.stop]
    if has_sql and has_columns(form := find_format(read_edges(blob, trim(blob)))):
        return _SQL_ADVICE.format(form=form, path=path)
    found = find_embedded_json(blob) if len(blob) <= _MAX_PARSED_BYTES else None
    if not found or not found.startswith(b"{"):
        return None
    arrays = [member for member in members(found, trim(found)) if kind_at(found, member.span.start) == "array"]
    if not arrays:
        return None
    key = max(arrays, key=lambda member: member.span.length).key
    expression = as_expression_key(key, _MAX_KEY)
    return f"It contains JSON: pass the result of memory_query with the `expression` {expression}."


def _list_parts(found: FoundValue) -> dict[str, Span]:
    """The members of an object, or the first items of an array; none of a large container without an index."""
    blob, span = found.blob, trim(found.blob)
    if found.kind == "object" and not found.path.tokens:
        return spans_by_key(found.descriptor.members)
    if len(blob) > _MAX_SCANNED_BYTES:
        return {}
    if found.kind == "array":
        return {str(at): item for at, item in enumerate(islice(items(blob, span), _MAX_PARTS + 1))}
    return spans_by_key(members(blob, span)) if found.kind == "object" else {}
