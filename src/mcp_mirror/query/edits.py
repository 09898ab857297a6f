"""Edits of a value: JSON Patch (RFC 6902), merge patch (RFC 7386), exact replacement of text.

Unchanged parts keep their bytes. The result is a sequence of pieces: spans of the old value, and new bytes.
"""

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.core.results.content_comparison import parse_exact
from mcp_mirror.errors import ToolError
from mcp_mirror.paths import unescape_token
from mcp_mirror.payload.json_spans import members, trim
from mcp_mirror.query.texts import IsOver, check_time, decode_string, find_text, is_text, open_text, split_text
from mcp_mirror.query.trees import (
    Array,
    Leaf,
    Node,
    NodeRef,
    Object,
    measure_node,
    open_container,
    parse_leaf,
    render,
    serialize_node,
)
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.types import Buffer, Span


class Pieces(msgspec.Struct, frozen=True):
    """A new value: spans of the old value, and new bytes, without an object for each of 200,000 pieces."""

    places: "array[int]"
    """Two numbers for each piece: the start of a span and its length, or ~ the offset in `new` and the length."""
    new: bytes
    """The new bytes, each once."""
    size: int
    """Bytes of the new value."""

    def __len__(self) -> int:
        return len(self.places) // 2


def _pack(pieces: Iterable[Span | bytes]) -> Pieces:
    places, offsets, size, used = array("q"), dict[bytes, int](), 0, 0
    stop = -1  # of the span before
    for piece in pieces:
        if isinstance(piece, Span):
            if piece.start == stop:
                places[-1] += piece.length
            else:
                places.extend(piece)
            stop = piece.stop
            size += piece.length
            continue
        stop = -1
        if piece not in offsets:
            offsets[piece], used = used, used + len(piece)
        places.extend((~offsets[piece], len(piece)))
        size += len(piece)
    return Pieces(places, b"".join(offsets), size)


_MAX_REPLACED: Final = 100_000
"""Occurrences of a text that one edit replaces."""
_LONGEST_ESCAPE: Final = 6
"""Bytes of the longest escape of one character."""
_MAX_COMPARED: Final = 1 << 24
"""Bytes of a value that `test` compares."""
_MIN_ROOM: Final = 1 << 20
"""Bytes of changed containers that a patch may copy, in any value."""
_ROOM: Final = 16
"""The same for a large value, as a multiple of its bytes. Copies of copies would grow exponentially."""
_MAX_NAME: Final = 120
"""Bytes of a name in an error message."""


class _Operation(msgspec.Struct, frozen=True):
    op: str
    path: str
    value: msgspec.Raw = msgspec.Raw()
    from_: str | None = msgspec.field(default=None, name="from")


class Patch(msgspec.Struct, frozen=True):
    """A JSON Patch."""

    operations: bytes
    """A JSON array."""

    def __call__(self, blob: Buffer, is_over: IsOver) -> Pieces:
        """Apply the patch and return the new value."""
        try:
            operations = msgspec.json.decode(self.operations, type=list[_Operation])
        except msgspec.MsgspecError as error:
            raise ToolError(
                f'`patch` must be a list such as [{{"op": "replace", "path": "/rows/0/name", "value": "x"}}]: {error}.'
            ) from None
        view = memoryview(blob)
        document = _Document(NodeRef(parse_leaf(view)), max(_MIN_ROOM, _ROOM * len(view)))
        for number, operation in enumerate(operations):
            check_time(is_over)
            step = _STEPS.get(operation.op)
            if step is None:
                raise ToolError(f"Operation {number} of `patch` has an unknown `op`. Use one of {', '.join(_STEPS)}.")
            try:
                step(document, operation)
            except _OperationError as error:
                path = as_json_string(operation.path, _MAX_NAME)
                raise ToolError(
                    f"Operation {number} of `patch` ({operation.op} {path}): {error} Nothing was changed."
                ) from None
        return _collect_pieces(view, document.root)


class _Document(msgspec.Struct):
    """The value while a patch is applied."""

    root: NodeRef
    room: int
    """Bytes of changed containers that further operations may copy."""


class _OperationError(Exception):
    """Why an operation cannot be applied. `Patch` adds the number of the operation."""


def _parse_pointer(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise _OperationError('a path must be empty or begin with "/".')
    return [unescape_token(token) for token in path.split("/")[1:]]


def _require_container(ref: NodeRef) -> Array | Object:
    if (node := open_container(ref)) is None:
        if isinstance(ref.node, Leaf) and ref.node.kind == "text":
            raise _OperationError("the parent is text, which has no parts. Change it with `old_text` and `new_text`.")
        raise _OperationError("the parent is not an object or an array.")
    return node


def _find(root: NodeRef, tokens: Iterable[str]) -> NodeRef:
    ref = root
    for token in tokens:
        found = _require_container(ref).find(token)
        if found is None:
            raise _OperationError(f"{as_json_string(token, _MAX_NAME)} does not exist.")
        ref = found
    return ref


def _add_node(root: NodeRef, path: str, node: Node) -> None:
    tokens = _parse_pointer(path)
    if not tokens:
        root.node = node
    elif not _require_container(_find(root, tokens[:-1])).add(tokens[-1], node):
        index = as_json_string(tokens[-1], _MAX_NAME)
        raise _OperationError(f"index {index} is not valid or out of range; use `-` to append.")


def _read_new_value(operation: _Operation) -> Leaf:
    if not bytes(operation.value):
        raise _OperationError("`value` is missing.")
    return parse_leaf(bytes(operation.value))


def _read_source(operation: _Operation) -> list[str]:
    if operation.from_ is None:
        raise _OperationError("`from` is missing.")
    return _parse_pointer(operation.from_)


def _remove_node(root: NodeRef, tokens: list[str]) -> None:
    if not tokens:
        raise _OperationError("the whole value cannot be removed.")
    if not _require_container(_find(root, tokens[:-1])).remove(tokens[-1]):
        raise _OperationError(f"{as_json_string(tokens[-1], _MAX_NAME)} does not exist.")


def _replace(document: _Document, operation: _Operation) -> None:
    _find(document.root, _parse_pointer(operation.path)).node = _read_new_value(operation)


def _copy(document: _Document, operation: _Operation) -> None:
    node = _find(document.root, _read_source(operation)).node
    if not isinstance(node, Leaf):
        document.room -= measure_node(node)
        if document.room < 0:
            raise _OperationError(
                "copies of changed objects and arrays may have 1 MiB, or 16 times the value. Use several edits."
            )
        node = parse_leaf(serialize_node(node))
    _add_node(document.root, operation.path, node)


def _move(document: _Document, operation: _Operation) -> None:
    root = document.root
    source, target = _read_source(operation), _parse_pointer(operation.path)
    if target[: len(source)] == source and len(target) > len(source):
        raise _OperationError("a value cannot be moved into itself.")
    node = _find(root, source).node
    if target != source:
        _remove_node(root, source)
        _add_node(root, operation.path, node)


def _test(document: _Document, operation: _Operation) -> None:
    node = _find(document.root, _parse_pointer(operation.path)).node
    if measure_node(node) > _MAX_COMPARED:
        raise _OperationError(f"values over {_MAX_COMPARED:,} bytes cannot be compared.")
    present, expected = serialize_node(node), serialize_node(_read_new_value(operation))
    try:
        is_equal = parse_exact(present) == parse_exact(expected)
    except ArithmeticError:  # an exponent that Decimal does not support
        is_equal = present == expected
    if not is_equal:
        raise _OperationError("the value is different.")


_STEPS: Final[Mapping[str, Callable[[_Document, _Operation], None]]] = {
    "add": lambda document, operation: _add_node(document.root, operation.path, _read_new_value(operation)),
    "remove": lambda document, operation: _remove_node(document.root, _parse_pointer(operation.path)),
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


class Merge(msgspec.Struct, frozen=True):
    """A merge patch."""

    patch: bytes
    """A JSON value."""

    def __call__(self, blob: Buffer, is_over: IsOver) -> Pieces:
        """Apply the patch and return the new value."""
        view = memoryview(blob)
        root = NodeRef(parse_leaf(view))
        pending = [(root, parse_leaf(self.patch))]
        while pending:
            check_time(is_over)
            target, patch = pending.pop()
            if patch.kind != "object":
                target.node = patch
                continue
            node = open_container(target)
            if not isinstance(node, Object):
                target.node = parse_leaf(b"{}")
                node = open_container(target)
            assert isinstance(node, Object)  # noqa: S101  # replaced above
            pending += _merge_members(node, patch, is_over)
        return _collect_pieces(view, root)


def _merge_members(node: Object, patch: Leaf, is_over: IsOver) -> Iterator[tuple[NodeRef, Leaf]]:
    """Remove the members that the patch sets to null, and yield the reference and new value of each other member."""
    known = [(key, Leaf(patch.blob, span)) for key, span in members(patch.blob, patch.span)]
    for key, value in known:
        if value.kind == "null":
            node.remove(key)
    for key, value in known:
        check_time(is_over)
        if value.kind == "null":
            continue
        if node.find(key) is None:
            node.add(key, parse_leaf(b"null"))
        ref = node.find(key)
        assert ref is not None  # noqa: S101  # added above
        yield ref, value


class Replace(msgspec.Struct, frozen=True):
    """An exact replacement of a text by another, in a string or in the JSON text of any other value.

    If the old text has line breaks and does not occur, it is also searched with Windows line ends, which the new text
    then gets too. Of an embedded resource with a text, the text is edited, and the new value is this text. A text in a
    JSON string is edited as a model reads it, and the new value is again in a JSON string.
    """

    old: str
    new: bytes
    """The new text, as a JSON string; any other JSON text is itself the new text."""
    replaces_all: bool
    """Replace all occurrences. Otherwise the old text must occur once."""

    def bound_occurrences(self, length: int) -> int:
        """Return the most occurrences that a value of `length` bytes can have replaced."""
        shortest = len(self.old.encode("utf-8", "replace")) // (_LONGEST_ESCAPE if "\\" in self.old else 1)
        return min(_MAX_REPLACED, length // max(shortest, 1)) if self.replaces_all else 1

    def __call__(self, blob: Buffer, is_over: IsOver) -> Pieces:
        """Replace the text and return the new value."""
        opened, span = open_text(blob)
        if opened is not blob:  # a text in a JSON string
            inner = b"".join(join_pieces(opened, self(opened, is_over)))
            return _pack((msgspec.json.encode(inner.decode()),))
        most = _MAX_REPLACED if self.replaces_all else 2
        new = decode_string(self.new) if is_text(self.new, trim(self.new)) else self.new.decode()
        found = find_text(blob, span, self.old.encode(), most, is_over)
        if not found and "\n" in self.old:  # models do not see carriage returns
            found = find_text(blob, span, _use_windows_ends(self.old).encode(), most, is_over)
            new = _use_windows_ends(new)
        is_string = is_text(blob, span)
        self._check_count(len(found))
        if not self.replaces_all and len(found) > 1:
            where = _name_lines(blob, span, found, is_over) if is_string else ""
            text = as_json_string(self.old, _MAX_NAME)
            raise ToolError(f"{text} occurs more than once{where}. Use a longer `old_text`, or set `all`.")
        replacement = msgspec.json.encode(new)[1:-1] if is_string else new.encode()
        pieces = _pack(_replace_spans(span, found, replacement))
        if is_string:
            return pieces
        try:
            msgspec.json.decode(b"".join(join_pieces(blob, pieces)), type=msgspec.Raw)
        except msgspec.DecodeError as error:
            raise ToolError(
                f"The result is not valid JSON: {error}. Correct `old_text` and `new_text`, or use `patch`."
            ) from None
        except MemoryError:
            raise ToolError(
                f"The result would have {format_bytes(pieces.size)}, too much to check that it is JSON. Use a shorter "
                "`new_text`, or `patch`."
            ) from None
        return pieces

    def _check_count(self, times: int) -> None:
        text = as_json_string(self.old, _MAX_NAME)
        if not times:
            raise ToolError(f"{text} is not in the value. Read the value, and copy `old_text` from it exactly.")
        if times == _MAX_REPLACED:
            raise ToolError(
                f"{text} occurs {_MAX_REPLACED:,} times or more, which is over the limit. Use a longer `old_text`."
            )


def _name_lines(blob: Buffer, span: Span, found: Iterable[Span], is_over: IsOver) -> str:
    """The numbers of the lines of spans in the text at `span`, from 0 as `memory_read` counts."""
    numbers: list[int] = []
    for place in found:
        before = Span(span.start, place.start + 1 - span.start)  # it ends with one byte in place of the quote
        numbers.append(sum(piece.data.count(b"\n") for piece in split_text(blob, before, is_over)))
    return f" (lines {' and '.join(map(str, numbers))})"


def _use_windows_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\n", "\r\n")


def _replace_spans(span: Span, found: Iterable[Span], new: bytes) -> Iterator[Span | bytes]:
    """The parts of a span with new bytes in place of other spans in it."""
    position = span.start
    for occurrence in found:
        yield Span(position, occurrence.start - position)
        yield new
        position = occurrence.stop
    yield Span(position, span.stop - position)


def join_pieces(blob: Buffer, pieces: Pieces) -> Iterator[Buffer]:
    """The bytes of the new value, piece by piece."""
    old, new = memoryview(blob), memoryview(pieces.new)
    numbers = iter(pieces.places)
    for start, length in zip(numbers, numbers, strict=True):
        yield old[start : start + length] if start >= 0 else new[~start : ~start + length]


def _collect_pieces(view: memoryview, root: NodeRef) -> Pieces:
    def list_pieces() -> Iterator[Span | bytes]:
        for piece in render(root.node):
            if isinstance(piece, Leaf):
                yield piece.span if piece.blob is view else serialize_node(piece)
            else:
                yield piece

    return _pack(list_pieces())
