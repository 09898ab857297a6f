"""YAML, edited by the marks of PyYAML's nodes."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, ClassVar, Final

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from mcp_mirror.cli.install.formats import document
from mcp_mirror.cli.install.formats.document import UNSAFE, Document, Edit, Location, splice
from mcp_mirror.errors import ConfigError
from mcp_mirror.system.patterns import lazy_pattern

_PLAIN: Final = lazy_pattern(r"[A-Za-z/][A-Za-z0-9_./-]*")
_UNPRINTABLE: Final = lazy_pattern("[\x7f-\x9f\u2028\u2029\ud800-\udfff\ufeff\ufffe\uffff]")
"""Characters that JSON may contain in strings and YAML must not."""
_MERGE: Final = "tag:yaml.org,2002:merge"

Splice = tuple[int, int, str]
"""Start and stop of the replaced characters, and the new text."""


class _Loader(yaml.SafeLoader):
    """Reads every key as its text, also `yes`, `1` and `~`, as clients do: keys are names."""

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        node = super().compose_mapping_node(anchor)
        for key, _ in node.value:
            if isinstance(key, ScalarNode) and key.tag != _MERGE:
                key.tag = self.DEFAULT_SCALAR_TAG
        return node


class YamlDocument(Document):
    """A YAML file of one document."""

    name: ClassVar[str] = "YAML"

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self._text = data[len(self._mark) :].decode()
        self._newline = "\r\n" if "\r\n" in self._text else "\n"
        try:
            self._root: Any = yaml.compose(self._text, Loader=_Loader)
            value = yaml.load(self._text, Loader=_Loader)  # noqa: S506  # a safe loader
        except yaml.YAMLError as error:
            raise ValueError(" ".join(str(error).split())) from None
        self.value: Any = {} if value is None else value

    def find_problem(self, at: Location) -> str | None:
        """Return whether a key appears twice, or the entry uses anchors, aliases, merge keys or tags."""
        node = self._root
        for step in at:
            if isinstance(node, MappingNode) and _keys(node).count(str(step)) > 1:
                return f"the key {step!r} appears twice"
            start = _child_key(node, step).end_mark.index if isinstance(node, MappingNode) else 0
            node = _child(node, step)
            if node.start_mark.index < start:
                return "it is a YAML alias"
        is_plain = self._is_plain(node)
        return None if is_plain else "it uses YAML anchors, aliases, merge keys, tags or a key twice"

    def _is_plain(self, node: Node) -> bool:
        """Whether a node and those below it have no anchors and tags, and are where the text names them."""
        start = node.start_mark.index
        children: list[tuple[int, Node]] = []
        if isinstance(node, SequenceNode):
            children = [(start, child) for child in node.value]
        elif isinstance(node, MappingNode):
            keys = _keys(node)
            if len(set(keys)) < len(keys) or "<<" in keys:
                return False
            children = [(key.end_mark.index, child) for key, child in node.value]
        is_marked = self._text[start : start + 1] in ("&", "!")
        return not is_marked and all(child.start_mark.index >= at and self._is_plain(child) for at, child in children)

    def _write(self, edits: Iterable[Edit]) -> bytes:
        return splice(self._text, map(self._splice, edits)).encode()

    def _splice(self, edit: Edit) -> Splice:  # noqa: PLR0911  # one case for each kind
        match edit:
            case document.Put(at, value):
                return self._put(at, value)
            case document.Restore(at, source, source_at):
                assert isinstance(source, YamlDocument)  # noqa: S101  # the same file, earlier
                return self._restore(self._find(at), *source.read_text(source_at))
            case document.Add(at, key, value, str(after)):
                return self._add(self._find(at), key, value, after)
            case document.Add(at, key, value):
                return self._add_first(self._find(at), key, value)
            case document.Remove(at):
                return self._remove(at)
            case document.Prepend(at, new):
                return self._prepend(self._find(at), new)
            case document.DropFirst(at, count):
                return self._drop(at, count)

    def _find(self, at: Location) -> Any:
        node = self._root
        for step in at:
            node = _child(node, step)
        return node

    def _end(self, node: Node) -> int:
        """Return the offset after a node: a block's own mark includes the comments after it."""
        if isinstance(node, SequenceNode | MappingNode) and not node.flow_style and node.value:
            last = node.value[-1]
            return self._end(last[1] if isinstance(last, tuple) else last)
        start, stop = node.start_mark.index, node.end_mark.index
        return start + len(self._text[start:stop].rstrip())

    def _put(self, at: Location, value: Any) -> Splice:
        node = self._find(at)
        if isinstance(value, dict) and isinstance(node, MappingNode) and not node.flow_style:
            return node.start_mark.index, self._end(node), self._render_block(value, node.start_mark.column)
        if isinstance(at[-1], int):
            return node.start_mark.index, self._end(node), _render(value)
        parent = self._find(at[:-1])
        colon = self._text.index(":", _child_key(parent, at[-1]).end_mark.index) + 1
        lead = " "
        if node.start_mark.line == _child_key(parent, at[-1]).end_mark.line and self._end(node) > colon:
            lead = self._text[colon : node.start_mark.index]
        return colon, max(self._end(node), colon), lead + _render(value)

    def read_text(self, at: Location) -> tuple[str, int]:
        """Return the text of a value and the column at which it starts."""
        node = self._find(at)
        return self._text[node.start_mark.index : self._block_end(node)], node.start_mark.column

    def _restore(self, node: Any, text: str, column: int) -> Splice:
        if node.start_mark.column != column:
            raise ConfigError(UNSAFE)
        return node.start_mark.index, self._block_end(node), text

    def _block_end(self, node: Any) -> int:
        """Return the offset after a node, with the comment on the last line of a block."""
        return self._end(node) if node.flow_style else self._line_end(self._end(node))

    def _line_end(self, position: int) -> int:
        found = self._text.find("\n", position)
        end = len(self._text) if found < 0 else found
        return end - self._text[position:end].endswith("\r")

    def _add(self, node: Any, key: str, value: Any, after: str) -> Splice:
        stop = self._end(_child(node, after))
        if node.flow_style:
            return stop, stop, f", {key}: {_render(value)}"
        stop = self._line_end(stop)
        return stop, stop, f"{self._newline}{' ' * node.start_mark.column}{key}: {_render(value)}"

    def _add_first(self, node: Any, name: str, value: Any) -> Splice:
        start, column = node.start_mark.index, node.start_mark.column
        if node.flow_style:
            entry = _render(value if isinstance(node, SequenceNode) else {name: value})
            inside = entry if isinstance(node, SequenceNode) else entry[1:-1]
            return start + 1, start + 1, f"{inside}, "
        inner = self._render_block(value, column + 2)
        end = self._newline + " " * column
        if isinstance(node, SequenceNode):
            return start, start, f"- {inner}{end}"
        return start, start, f"{name}:{self._newline}{' ' * (column + 2)}{inner}{end}"

    def _remove(self, at: Location) -> Splice:
        parent = self._find(at[:-1])
        starts = list(self._starts(parent))
        place = at[-1] if isinstance(at[-1], int) else _keys(parent).index(at[-1])
        if place + 1 < len(starts):
            return starts[place], starts[place + 1], ""
        if place:
            return self._end(_children(parent)[place - 1]), self._end(_children(parent)[place]), ""
        raise ConfigError(UNSAFE)

    def _prepend(self, node: Any, new: tuple[str, ...]) -> Splice:
        start = node.start_mark.index
        if not node.flow_style:
            lead = self._newline + " " * node.start_mark.column
            return start, start, "".join(f"- {_render(item)}{lead}" for item in new)
        if not node.value:
            return start + 1, start + 1, ", ".join(map(_render, new))
        inside = self._text[start + 1 : node.value[0].start_mark.index]
        lead = inside[: len(inside) - len(inside.lstrip(" \t\r\n"))]
        return start + 1, start + 1, "".join(f"{lead}{_render(item)},{'' if lead else ' '}" for item in new)

    def _drop(self, at: Location, count: int) -> Splice:
        node = self._find(at)
        if count >= len(node.value):
            return self._put(at, [])
        starts = list(self._starts(node))
        return starts[0], starts[count], ""

    def _starts(self, node: Any) -> Iterator[int]:
        """Yield the offset of each member's key, or of each item with its dash."""
        for child in node.value:
            if isinstance(node, MappingNode):
                yield child[0].start_mark.index
            elif node.flow_style:
                yield child.start_mark.index
            else:
                yield self._text.rindex("-", 0, child.start_mark.index)

    def _render_block(self, value: Any, column: int) -> str:
        lines = (f"{_render(key)}: {_render(member)}" for key, member in value.items())
        return (self._newline + " " * column).join(lines)


def _keys(node: Any) -> list[str]:
    return [str(key.value) for key, _ in node.value if isinstance(key, ScalarNode)]


def _children(node: Any) -> list[Node]:
    return [child[1] if isinstance(child, tuple) else child for child in node.value]


def _child_key(node: Any, step: str | int) -> Node:
    found: Node = next(key for key, _ in node.value if key.value == step)
    return found


def _child(node: Any, step: str | int) -> Node:
    if isinstance(step, int):
        item: Node = node.value[step]
        return item
    found: Node = next(child for key, child in reversed(node.value) if key.value == step)
    return found


def _render(value: Any) -> str:
    """Render a value on one line. JSON is YAML, except for a few plain words that need no quotes."""
    if isinstance(value, str) and _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return value
    return _UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(value, ensure_ascii=False))
