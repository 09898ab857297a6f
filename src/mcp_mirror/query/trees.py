"""A JSON text that is being changed: only what must be is opened, all the rest stays the bytes it is.

A container is opened where something in it changes. What is rendered in the end are the pieces of the old text, in
their white space, with the new ones between them. Which changes there are is not known here.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mcp_mirror.payload.json_spans import item, items, kind_at, members_with_offsets, trim
from mcp_mirror.types import Buffer, Kind, Span

_SPACE: Final = b" \t\r\n"


@dataclass(frozen=True, slots=True)
class Leaf:
    """A value that is not opened."""

    blob: Buffer
    span: Span

    @property
    def kind(self) -> Kind:
        """What it is."""
        return kind_at(self.blob, self.span.start)


@dataclass(slots=True)
class Holder:
    """A place in which a value stands."""

    node: "Node"
    lead: bytes | None = None
    """What stands before it and parts it from the one before; None: what the container has elsewhere."""
    key: str = ""
    name: bytes = b""
    """In an object, the key as it is written, with the colon."""


@dataclass(slots=True)
class _Run:
    """Items that stand one after another, not looked at one by one."""

    leaf: Leaf
    count: int | None
    """None: as many as there are up to the end of the array."""
    lead: bytes | None = None


@dataclass(slots=True)
class Array:
    """An opened array."""

    head: bytes
    tail: bytes
    between: bytes
    parts: "list[Holder | _Run]" = field(default_factory=list)

    def find(self, token: str) -> Holder | None:
        """The item at an index, if there is one."""
        if not _is_index(token):
            return None
        place = self._seek(int(token))
        part = self.parts[place] if place is not None and place < len(self.parts) else None
        return part if isinstance(part, Holder) else None

    def add(self, token: str, node: "Node") -> bool:
        """Insert before the item at an index, or at the end (`-`); False where there is no such place."""
        if token == "-":  # noqa: S105  # a JSON Pointer's
            self.parts.append(Holder(node))
            return True
        place = self._seek(int(token)) if _is_index(token) else None
        if place is None:
            return False
        self.parts.insert(place, Holder(node))
        return True

    def remove(self, token: str) -> bool:
        """Take an item out; False where there is none."""
        if (holder := self.find(token)) is None:
            return False
        place = next(place for place, part in enumerate(self.parts) if part is holder)
        del self.parts[place]
        return True

    def _seek(self, index: int) -> int | None:
        """Where among the parts the item stands, cut off from its neighbours, or would stand at the end."""
        at = 0
        for place, part in enumerate(self.parts):
            if isinstance(part, Holder):
                if at == index:
                    return place
                at += 1
                continue
            found = _item_of(part, index - at)
            if isinstance(found, Span):
                cut = _cut(part, index - at, found)
                self.parts[place : place + 1] = cut
                return place + (isinstance(cut[0], _Run) and index > at)
            at += found
        return len(self.parts) if at == index else None


def _is_index(token: str) -> bool:
    return token.isascii() and token.isdigit() and len(token) < 19 and (token == "0" or token[0] != "0")  # noqa: PLR2004, S105  # RFC 6901


def _item_of(run: _Run, index: int) -> Span | int:
    """An item of a run; where it has none, how many it has."""
    if run.count is not None and index >= run.count:
        return run.count
    span = run.leaf.span
    return item(run.leaf.blob, Span(span.start - 1, span.length + 1), index)


def _cut(run: _Run, index: int, found: Span) -> "list[Holder | _Run]":
    """A run as what stands before an item, the item, and what stands behind it."""
    blob, span = run.leaf.blob, run.leaf.span
    stop = found.start
    parts: list[Holder | _Run] = []
    lead = run.lead
    if index:
        while blob[stop - 1] in b" \t\r\n,":
            stop -= 1
        parts.append(_Run(Leaf(blob, Span(span.start, stop - span.start)), index, run.lead))
        lead = bytes(blob[stop : found.start])
    parts.append(Holder(Leaf(blob, found), lead))
    if found.stop < span.stop:
        start = found.stop
        while blob[start] in b" \t\r\n,":
            start += 1
        count = None if run.count is None else run.count - index - 1
        parts.append(_Run(Leaf(blob, Span(start, span.stop - start)), count, bytes(blob[found.stop : start])))
    return parts


@dataclass(slots=True)
class Object:
    """An opened object."""

    head: bytes
    tail: bytes
    between: bytes
    colon: bytes
    parts: list[Holder] = field(default_factory=list)
    _by_key: dict[str | None, Holder] | None = field(default=None, repr=False)
    """The last of each key, once it was asked for."""

    def find(self, token: str) -> Holder | None:
        """The value of a key; the last, where it was given twice."""
        if self._by_key is None:
            self._by_key = {part.key: part for part in self.parts}
        return self._by_key.get(token)

    def add(self, token: str, node: "Node") -> bool:
        """Set a key."""
        if holder := self.find(token):
            holder.node = node
            return True
        holder = Holder(node, None, token, msgspec.json.encode(token) + self.colon)
        self.parts.append(holder)
        assert self._by_key is not None  # noqa: S101  # `find` has made it
        self._by_key[token] = holder
        return True

    def remove(self, token: str) -> bool:
        """Take a key out; False where there is none."""
        if self.find(token) is None:
            return False
        self.parts = [part for part in self.parts if part.key != token]
        self._by_key = None
        return True


Node = Leaf | Array | Object


def leaf_of(blob: Buffer) -> Leaf:
    """A whole JSON text."""
    return Leaf(blob, trim(blob))


def opened(holder: Holder) -> Array | Object | None:
    """The container that stands in a place; None where a scalar does."""
    if isinstance(holder.node, Leaf):
        open_ = _OPEN.get(holder.node.kind)
        if open_ is None:
            return None
        holder.node = node = open_(holder.node)
        return node
    return holder.node


def _open_array(leaf: Leaf) -> Array:
    blob, span = leaf.blob, leaf.span
    first = next(items(blob, span), None)
    if first is None:
        return Array(b"[", b"]", b",")
    stop = span.stop - 1
    while blob[stop - 1] in _SPACE:
        stop -= 1
    head = bytes(blob[span.start : first.start])
    second = item(blob, span, 1)
    between = bytes(blob[first.stop : second.start]) if isinstance(second, Span) else b"," + head[1:]
    run = _Run(Leaf(blob, Span(first.start, stop - first.start)), None)
    return Array(head, bytes(blob[stop : span.stop]), between, [run])


def _open_object(leaf: Leaf) -> Object:
    blob, span = leaf.blob, leaf.span
    parts: list[Holder] = []
    end = span.start + 1
    for start, (key, value) in members_with_offsets(blob, span):
        lead = bytes(blob[end:start]) if parts else None
        parts.append(Holder(Leaf(blob, value), lead, key, bytes(blob[start : value.start])))
        end = value.stop
    if not parts:
        return Object(b"{", b"}", b",", b":")
    head, name = b"{" + _spaces(blob, span.start + 1), parts[0].name
    between = (parts[1].lead if len(parts) > 1 else None) or b"," + head[1:]
    return Object(head, bytes(blob[end : span.stop]), between, name[name.rindex(b'"') + 1 :], parts)


def _spaces(blob: Buffer, start: int) -> bytes:
    stop = start
    while blob[stop] in _SPACE:
        stop += 1
    return bytes(blob[start:stop])


_OPEN: Final[Mapping[str, Callable[[Leaf], Array | Object]]] = {"array": _open_array, "object": _open_object}


def copy_of(node: Node) -> Node:
    """A node that can be changed without the other."""
    return node if isinstance(node, Leaf) else leaf_of(text_of(node))


def text_of(node: Node) -> bytes:
    """The whole text of a node."""
    return b"".join(
        bytes(one.blob[one.span.start : one.span.stop]) if isinstance(one, Leaf) else one for one in render(node)
    )


def render(node: Node) -> Iterator[Leaf | bytes]:
    """The text of a node, in pieces: what was not opened, and what stands between."""
    if isinstance(node, Leaf):
        yield node
        return
    if not node.parts:
        yield b"{}" if isinstance(node, Object) else b"[]"
        return
    yield node.head
    for place, part in enumerate(node.parts):
        if place:
            yield node.between if part.lead is None else part.lead
        if isinstance(part, _Run):
            yield part.leaf
        else:
            yield part.name
            yield from render(part.node)
    yield node.tail
