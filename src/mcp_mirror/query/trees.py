"""A tree over a JSON text for edits that keep the bytes of unchanged parts.

Only containers that change are parsed. The rendered text consists of unchanged pieces of the old text, with its white
space, and of new pieces between them. The module `edits` defines the edits.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Final

import msgspec

from mcp_mirror.payload.json_spans import INDEX, item, items, kind_at, members_with_offsets, skip_space, trim
from mcp_mirror.query.indexes import find_item
from mcp_mirror.types import Buffer, Kind, Span

_SPACE: Final = b" \t\r\n"


class Leaf(msgspec.Struct, frozen=True, gc=False):
    """A part of the old text: an unparsed value, or the text before it."""

    blob: Buffer
    span: Span

    @property
    def kind(self) -> Kind:
        """The JSON type of the value."""
        return kind_at(self.blob, self.span.start)

    def read(self) -> bytes:
        """The text of the value."""
        return bytes(self.blob[self.span.start : self.span.stop])


class NodeRef(msgspec.Struct, gc=False):
    """A reference to a value: the root, an item of an array or a member of an object."""

    node: "Node"
    lead: Leaf | bytes | None = None
    """The comma and white space before it; None: as between the other parts of the container."""
    key: str = ""
    name: Leaf | bytes = b""
    """In an object, the key as written, with the colon."""


class _Run(msgspec.Struct):
    """Consecutive unparsed items."""

    leaf: Leaf
    count: int | None
    """None: all items up to the end of the array."""
    lead: bytes | None = None


class Array(msgspec.Struct):
    """A parsed array."""

    head: bytes
    tail: bytes
    between: bytes
    parts: "list[NodeRef | _Run]" = msgspec.field(default_factory=list)
    _place: tuple[int, int] = (0, 0)
    """The position in `parts` of the last item that was searched, and its index: further searches begin there."""

    def find(self, token: str) -> NodeRef | None:
        """The item at an index; None if it does not exist."""
        if not INDEX.fullmatch(token):
            return None
        at = self._separate_part(int(token))
        part = self.parts[at] if at is not None and at < len(self.parts) else None
        return part if isinstance(part, NodeRef) else None

    def add(self, token: str, node: "Node") -> bool:
        """Insert before the item at an index, or append for `-`. Returns False for any other index."""
        if token == "-":  # noqa: S105  # of a JSON Pointer
            self.parts.append(NodeRef(node))
            return True
        at = self._separate_part(int(token)) if INDEX.fullmatch(token) else None
        if at is None:
            return False
        self.parts.insert(at, NodeRef(node))
        return True

    def remove(self, token: str) -> bool:
        """Remove an item. Returns False if it does not exist."""
        if self.find(token) is None:
            return False
        del self.parts[self._place[0]]
        return True

    def _separate_part(self, index: int) -> int | None:
        """Separate the item from its run and return its position in `parts`; the end of `parts` for the next index."""
        at, first = self._place if index >= self._place[1] else (0, 0)
        while at < len(self.parts):
            part = self.parts[at]
            if isinstance(part, _Run) and (part.count is None or index - first < part.count):
                span = part.leaf.span
                found = find_item(part.leaf.blob, Span(span.start - 1, span.length + 1), index - first)
                if isinstance(found, Span):
                    self.parts[at : at + 1] = _split_run(part, index - first, found)
                    at, first = at + (index > first), index
                    break
                part.count = found
            elif first == index:
                break
            at, first = at + 1, first + (1 if isinstance(part, NodeRef) else part.count or 0)
        if first != index:
            return None
        self._place = at, index
        return at


def _split_run(run: _Run, index: int, found: Span) -> "list[NodeRef | _Run]":
    """Split a run into the items before an item, the item, and the items after it."""
    blob, span = run.leaf.blob, run.leaf.span
    stop = found.start
    parts: list[NodeRef | _Run] = []
    lead = run.lead
    if index:
        while blob[stop - 1] in b" \t\r\n,":
            stop -= 1
        parts.append(_Run(Leaf(blob, Span(span.start, stop - span.start)), index, run.lead))
        lead = bytes(blob[stop : found.start])
    parts.append(NodeRef(Leaf(blob, found), lead))
    if found.stop < span.stop:
        start = found.stop
        while blob[start] in b" \t\r\n,":
            start += 1
        count = None if run.count is None else run.count - index - 1
        parts.append(_Run(Leaf(blob, Span(start, span.stop - start)), count, bytes(blob[found.stop : start])))
    return parts


class Object(msgspec.Struct):
    """A parsed object."""

    head: bytes
    tail: bytes
    between: bytes
    colon: bytes
    parts: dict[int, NodeRef] = msgspec.field(default_factory=dict)
    """The members by number, in their order: one is removed without a look at the others."""
    _numbers: dict[str, list[int]] | None = None
    """The numbers of the members of each key; None until the first search."""

    def find(self, token: str) -> NodeRef | None:
        """The member of a key, the last one of equal keys; None if it does not exist."""
        numbers = self._index().get(token)
        return self.parts[numbers[-1]] if numbers else None

    def add(self, token: str, node: "Node") -> bool:
        """Set a key. Returns True, as every key can be set."""
        if ref := self.find(token):
            ref.node = node
            return True
        number = next(reversed(self.parts), -1) + 1
        self.parts[number] = NodeRef(node, None, token, msgspec.json.encode(token) + self.colon)
        self._index()[token] = [number]
        return True

    def remove(self, token: str) -> bool:
        """Remove a key. Returns False if it does not exist."""
        numbers = self._index().pop(token, ())
        for number in numbers:
            del self.parts[number]
        return bool(numbers)

    def _index(self) -> dict[str, list[int]]:
        if self._numbers is None:
            self._numbers = {}
            for number, part in self.parts.items():
                self._numbers.setdefault(part.key, []).append(number)
        return self._numbers


Node = Leaf | Array | Object


def parse_leaf(blob: Buffer) -> Leaf:
    """A leaf for a whole JSON text."""
    return Leaf(blob, trim(blob))


def open_container(ref: NodeRef) -> Array | Object | None:
    """Parse the container at a reference, if it is not parsed yet; None for a scalar."""
    if isinstance(ref.node, Leaf):
        parse = _PARSERS.get(ref.node.kind)
        if parse is None:
            return None
        ref.node = node = parse(ref.node)
        return node
    return ref.node


def _parse_array(leaf: Leaf) -> Array:
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


def _parse_object(leaf: Leaf) -> Object:
    blob, span = leaf.blob, leaf.span
    parts: dict[int, NodeRef] = {}
    end = span.start + 1
    for start, (key, value) in members_with_offsets(blob, span):
        lead, name = (Leaf(blob, Span(at, stop - at)) for at, stop in ((end, start), (start, value.start)))
        parts[len(parts)] = NodeRef(Leaf(blob, value), lead, key, name)
        end = value.stop
    if not parts:
        return Object(b"{", b"}", b",", b":")
    head = bytes(blob[span.start : skip_space(blob, span.start + 1)])
    between = lead.read() if len(parts) > 1 else b"," + head[1:]
    colon = name.read().rpartition(b'"')[2]
    return Object(head, bytes(blob[end : span.stop]), between, colon, parts)


_PARSERS: Final[Mapping[str, Callable[[Leaf], Array | Object]]] = {"array": _parse_array, "object": _parse_object}


def measure_node(node: Node) -> int:
    """The bytes of the text of a node."""
    return sum(piece.span.length if isinstance(piece, Leaf) else len(piece) for piece in render(node))


def serialize_node(node: Node) -> bytes:
    """The text of a node."""
    return b"".join(piece.read() if isinstance(piece, Leaf) else piece for piece in render(node))


def render(node: Node) -> Iterator[Leaf | bytes]:
    """The text of a node in pieces: parts of the old text, and new text."""
    if isinstance(node, Leaf):
        yield node
        return
    if not node.parts:
        yield b"{}" if isinstance(node, Object) else b"[]"
        return
    yield node.head
    for at, part in enumerate(node.parts if isinstance(node, Array) else node.parts.values()):
        if at:
            yield node.between if part.lead is None else part.lead
        if isinstance(part, _Run):
            yield part.leaf
        else:
            yield part.name
            yield from render(part.node)
    yield node.tail
