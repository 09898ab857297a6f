"""A new value from an old one: JSON Patch (RFC 6902), merge patch (RFC 7386), exact replacement of text.

What is not changed stays the bytes it was. The answer is in pieces: spans of the old value, and new bytes.
"""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec

from mcp_mirror.errors import ToolError
from mcp_mirror.paths import unescape_token
from mcp_mirror.payload.json_spans import members, trim
from mcp_mirror.query.texts import IsOver, check_time, find_text, is_text
from mcp_mirror.query.trees import Array, Holder, Leaf, Node, Object, copy_of, leaf_of, opened, render, text_of
from mcp_mirror.security.sanitize import as_json_string
from mcp_mirror.types import Buffer, Span

Pieces = tuple[Span | bytes, ...]
"""A new value: spans of the old one, and what is new."""

_MOST: Final = 100_000
"""Places at which one text is replaced at once."""
_COMPARED: Final = 1 << 24
"""Bytes of a value that `test` compares."""
_NAMED: Final = 120


class _Operation(msgspec.Struct, frozen=True):
    op: str
    path: str
    value: msgspec.Raw = msgspec.Raw()
    from_: str | None = msgspec.field(default=None, name="from")


@dataclass(frozen=True, slots=True)
class Patch:
    """A JSON Patch to be applied."""

    operations: bytes
    """A JSON array."""

    def __call__(self, blob: Buffer, is_over: IsOver) -> Pieces:
        """The new value.

        Raises:
            ToolError: It is no patch, an operation cannot be done, or the time is over.
        """
        view = memoryview(blob)
        root = Holder(leaf_of(view))
        for number, operation in enumerate(_operations(self.operations)):
            check_time(is_over)
            step = _STEPS.get(operation.op)
            if step is None:
                raise ToolError(f"Operation {number} of `patch` wants `op` to be one of {', '.join(_STEPS)}.")
            try:
                step(root, operation)
            except _Impossible as error:
                place = as_json_string(operation.path, _NAMED)
                raise ToolError(
                    f"Operation {number} of `patch` ({operation.op} {place}): {error} Nothing was changed."
                ) from None
        return _pieces(view, root)


class _Impossible(Exception):  # noqa: N818  # not an error yet: it is told with the operation's number
    """Why an operation cannot be done."""


def _operations(raw: bytes) -> list[_Operation]:
    try:
        return msgspec.json.decode(raw, type=list[_Operation])
    except msgspec.MsgspecError as error:
        raise ToolError(
            f'`patch` is a list such as [{{"op": "replace", "path": "/rows/0/name", "value": "x"}}]: {error}.'
        ) from None


def _tokens(path: str) -> list[str]:
    if path and not path.startswith("/"):
        raise _Impossible('a path begins with "/" and names keys below the value, or is empty.')
    return [unescape_token(token) for token in path.split("/")[1:]]


def _container(holder: Holder) -> Array | Object:
    if (node := opened(holder)) is None:
        raise _Impossible("there is no object or array at the place above.")
    return node


def _at(root: Holder, tokens: Iterable[str]) -> Holder:
    holder = root
    for token in tokens:
        found = _container(holder).find(token)
        if found is None:
            raise _Impossible(f"there is no {as_json_string(token, _NAMED)}.")
        holder = found
    return holder


def _put(root: Holder, path: str, node: Node) -> None:
    tokens = _tokens(path)
    if not tokens:
        root.node = node
    elif not _container(_at(root, tokens[:-1])).add(tokens[-1], node):
        raise _Impossible(f"the array has no place {as_json_string(tokens[-1], _NAMED)}; `-` is its end.")


def _new(operation: _Operation) -> Leaf:
    if not bytes(operation.value):
        raise _Impossible("it has no `value`.")
    return leaf_of(bytes(operation.value))


def _source(operation: _Operation) -> list[str]:
    if operation.from_ is None:
        raise _Impossible("it has no `from`.")
    return _tokens(operation.from_)


def _add(root: Holder, operation: _Operation) -> None:
    _put(root, operation.path, _new(operation))


def _remove(root: Holder, operation: _Operation) -> None:
    _take_out(root, _tokens(operation.path))


def _take_out(root: Holder, tokens: list[str]) -> None:
    if not tokens:
        raise _Impossible("the whole value cannot be removed.")
    if not _container(_at(root, tokens[:-1])).remove(tokens[-1]):
        raise _Impossible(f"there is no {as_json_string(tokens[-1], _NAMED)}.")


def _replace(root: Holder, operation: _Operation) -> None:
    _at(root, _tokens(operation.path)).node = _new(operation)


def _move(root: Holder, operation: _Operation) -> None:
    source, target = _source(operation), _tokens(operation.path)
    if target[: len(source)] == source and len(target) > len(source):
        raise _Impossible("a value cannot be moved into itself.")
    node = _at(root, source).node
    if target != source:
        _take_out(root, source)
        _put(root, operation.path, node)


def _copy(root: Holder, operation: _Operation) -> None:
    _put(root, operation.path, copy_of(_at(root, _source(operation)).node))


def _test(root: Holder, operation: _Operation) -> None:
    there, wanted = text_of(_at(root, _tokens(operation.path)).node), text_of(_new(operation))
    if len(there) > _COMPARED:
        raise _Impossible(f"only values up to {_COMPARED:,} bytes are compared.")
    try:
        same = _compared(there) == _compared(wanted)
    except ArithmeticError:  # an exponent that no decimal has
        same = there == wanted
    if not same:
        raise _Impossible("another value stands there.")


def _compared(text: bytes) -> Any:
    """A value so that equal means the same: numbers by their amount, and never a truth value."""
    return json.loads(text, parse_int=_amount, parse_float=_amount)


def _amount(digits: str) -> tuple[str, Decimal]:
    return "number", Decimal(digits)


_STEPS: Final[Mapping[str, Callable[[Holder, _Operation], None]]] = {
    "add": _add,
    "remove": _remove,
    "replace": _replace,
    "move": _move,
    "copy": _copy,
    "test": _test,
}


@dataclass(frozen=True, slots=True)
class Merge:
    """A merge patch to be applied."""

    patch: bytes
    """A JSON value."""

    def __call__(self, blob: Buffer, is_over: IsOver) -> Pieces:
        """The new value.

        Raises:
            ToolError: The time is over.
        """
        view = memoryview(blob)
        root = Holder(leaf_of(view))
        pending = [(root, leaf_of(self.patch))]
        while pending:
            check_time(is_over)
            target, patch = pending.pop()
            if patch.kind != "object":
                target.node = patch
                continue
            node = opened(target)
            if not isinstance(node, Object):
                target.node = leaf_of(b"{}")
                node = opened(target)
            assert isinstance(node, Object)  # noqa: S101  # it is one now
            pending += _merged(node, patch, is_over)
        return _pieces(view, root)


def _merged(node: Object, patch: Leaf, is_over: IsOver) -> Iterator[tuple[Holder, Leaf]]:
    """The members of one object that are set: where, and what to."""
    for key, span in members(patch.blob, patch.span):
        check_time(is_over)
        value = Leaf(patch.blob, span)
        if value.kind == "null":
            node.remove(key)
            continue
        if node.find(key) is None:
            node.add(key, leaf_of(b"null"))
        holder = node.find(key)
        assert holder is not None  # noqa: S101  # it was just set
        yield holder, value


@dataclass(frozen=True, slots=True)
class Replace:
    """A text to be exchanged for another, to the letter."""

    old: str
    new: str
    everywhere: bool

    def __call__(self, blob: Buffer, is_over: IsOver) -> Pieces:
        """The new value: of a text, a text; of JSON, what its JSON text becomes.

        Raises:
            ToolError: The text is not there, or more often than it may be; what is left is no JSON; the time is over.
        """
        span = trim(blob)
        most = _MOST if self.everywhere else 2
        found = find_text(blob, span, self.old.encode(), most, is_over)
        self._check(len(found))
        is_string = is_text(blob, span)
        new = msgspec.json.encode(self.new)[1:-1] if is_string else self.new.encode()
        pieces: list[Span | bytes] = []
        position = span.start
        for place in found:
            pieces += (Span(position, place.start - position), new)
            position = place.stop
        pieces.append(Span(position, span.stop - position))
        if not is_string:
            _check_json(blob, pieces)
        return tuple(pieces)

    def _check(self, times: int) -> None:
        text = as_json_string(self.old, _NAMED)
        if not times:
            raise ToolError(f"{text} does not stand in the value. Read the place, and give `old_text` to the letter.")
        if self.everywhere and times == _MOST:
            raise ToolError(f"{text} stands there {_MOST:,} times or more, which is over the limit. Give more of it.")
        if not self.everywhere and times > 1:
            raise ToolError(f"{text} stands there more than once. Give more of what is around it, or set `all`.")


def _check_json(blob: Buffer, pieces: Iterable[Span | bytes]) -> None:
    try:
        msgspec.json.decode(b"".join(joined(blob, pieces)), type=msgspec.Raw)
    except msgspec.DecodeError as error:
        raise ToolError(
            f"That would be no JSON any more: {error}. Replace so that it stays JSON, or use `patch`."
        ) from None


def joined(blob: Buffer, pieces: Iterable[Span | bytes]) -> Iterator[Buffer]:
    """The bytes of the new value."""
    view = memoryview(blob)
    for piece in pieces:
        yield view[piece.start : piece.stop] if isinstance(piece, Span) else piece


def _pieces(view: memoryview, root: Holder) -> Pieces:
    return tuple(
        one if isinstance(one, bytes) else one.span if one.blob is view else text_of(one) for one in render(root.node)
    )
