"""YAML text as a tree whose every node knows its line, key path and kind, with `${VAR}` put in.

The tree is made from PyYAML's node graph, never from constructed values, so a scalar keeps the text that the
user wrote and nothing in a file can build an object. This module must not know what any key means, and no
message of its may hold a value: a value may be a secret.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NoReturn, TypeAlias

import yaml

from mcp_mirror.errors import ConfigError

Kind = Literal["text", "number", "boolean", "nothing", "expanded", "unusable"]
"""`expanded`: text that a variable gave, which any scalar field may read; `unusable`: already complained of."""

MAX_NODES: Final = 20_000
"""Nodes after aliases and merges are followed; a file that means more is an alias bomb."""
MAX_DEPTH: Final = 32
MAX_PROBLEMS: Final = 50
"""Lines that one error shows."""

DECIMAL: Final = re.compile(r"[+-]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_VARIABLE: Final = re.compile(
    r"\$\$\{|\$\{(?:env:)?(?P<name>[A-Za-z_]\w*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}|\$\{", re.ASCII
)
_SHOWN_KEY: Final = re.compile(r"[\w.*?\[\]!$ /@-]{1,64}")
_SURROGATE: Final = re.compile(r"[\ud800-\udfff]")

_TAG: Final = "tag:yaml.org,2002:"
_KINDS: Final[Mapping[str, Kind]] = {
    _TAG + "str": "text",
    _TAG + "timestamp": "text",
    _TAG + "merge": "text",
    _TAG + "value": "text",
    _TAG + "null": "nothing",
    _TAG + "bool": "boolean",
    _TAG + "int": "number",
    _TAG + "float": "number",
}
# PyYAML's own words quote the file, which may be a secret, and name tokens that no operator knows.
_SYNTAX: Final = (
    (r"'\t'", "a tab stands where only spaces can; use spaces"),
    ("undefined alias", "text that starts with * is read as an alias; put it in quotes, or define its anchor"),
    (
        "mapping values are not allowed",
        "a colon stands where none can; put that text in quotes or mend the indentation",
    ),
    ("could not find expected ':'", "a key without its colon; write 'key: value', or put the text in quotes"),
    ("end of stream", "a quote or bracket is never closed"),
    ("or ']'", "a list in [ ] lacks a comma or its closing bracket"),
    ("or '}'", "a mapping in { } lacks a comma or its closing brace"),
    ("<stream end>", "a bracket is never closed"),
    ("<block end>", "the indentation does not match the lines above, or a line lacks its colon"),
    ("cannot start any token", "text that starts with %, @ or a backtick must be in quotes"),
    ("single document", "a second document starts; keep one and remove '---'"),
)


@dataclass(frozen=True, slots=True)
class YamlLocation:
    """Where in the file something is: its line (from 1) and the keys that lead to it, as the user wrote them."""

    line: int
    path: tuple[str, ...] = ()

    def child(self, key: str, line: int) -> "YamlLocation":
        """The place of a key or item below this one."""
        return YamlLocation(line, (*self.path, key))


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text, a number, a boolean or nothing, as it was written."""

    place: YamlLocation
    text: str = field(repr=False)
    kind: Kind = "text"
    flipped: bool = False
    """A boolean that means its opposite here (a client's `disabled` is our `enabled`)."""


@dataclass(frozen=True, slots=True)
class Items:
    """A list."""

    place: YamlLocation
    nodes: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Table:
    """A mapping. A member's place is that of its key."""

    place: YamlLocation
    members: Mapping[str, "Node"]


Node: TypeAlias = Scalar | Items | Table


@dataclass(slots=True)
class Findings:
    """What is wrong in one file, and what has no effect: collected, so that one run shows all of it."""

    file: str
    _problems: list[tuple[int, str]] = field(default_factory=list)
    _warnings: list[tuple[int, str]] = field(default_factory=list)

    def problem(self, place: YamlLocation, message: str) -> None:
        """Note what must be mended at `place`."""
        self._problems.append((place.line, self._line(place, message)))

    def warn(self, place: YamlLocation, message: str) -> None:
        """Note what is read without effect at `place`."""
        self._warnings.append((place.line, self._line(place, message)))

    def fail(self, place: YamlLocation, message: str) -> NoReturn:
        """Stop reading here.

        Raises:
            ConfigError: always, with every problem so far.
        """
        self.problem(place, message)
        raise ConfigError("\n".join(self._lines()))

    def raise_problems(self) -> None:
        """Stop if anything must be mended.

        Raises:
            ConfigError: one line for each problem, in the order of the file.
        """
        if self._problems:
            raise ConfigError("\n".join(self._lines()))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings in the order of the file."""
        return tuple(text for _, text in sorted(self._warnings, key=lambda found: found[0]))

    def _line(self, place: YamlLocation, message: str) -> str:
        keys = ".".join(shown_key(key) for key in place.path)
        return f"{self.file}:{place.line}: {keys}: {message}" if keys else f"{self.file}:{place.line}: {message}"

    def _lines(self) -> list[str]:
        lines = list(dict.fromkeys(text for _, text in sorted(self._problems, key=lambda found: found[0])))
        more = len(lines) - MAX_PROBLEMS
        return lines if more <= 0 else [*lines[:MAX_PROBLEMS], f"{self.file}: and {more} more problems"]


def shown_key(key: str) -> str:
    """A key as a message may show it: one that does not look like a name may be a misplaced secret."""
    return key if _SHOWN_KEY.fullmatch(key) else "<key>"


def read_yaml(text: str, findings: Findings) -> Node:
    """The tree of the one document in `text`; duplicate keys, tags and odd keys are noted in `findings`.

    Raises:
        ConfigError: the text is not YAML, is empty, or means more than `MAX_NODES` nodes.
    """
    place, message = YamlLocation(1), "the file is empty; begin with 'upstreams:'"
    try:
        root = yaml.compose(_without_json_tabs(text), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        root, place, message = None, _marked_place(error), _explain(error)
    except yaml.reader.ReaderError as error:
        root, place = None, YamlLocation(text.count("\n", 0, error.position) + 1)
        message = "a control character stands here; remove it"
    except (ValueError, OverflowError):
        root, message = None, 'an escape such as "\\U..." in quotes names no character'
    except RecursionError:
        root, message = None, f"nested deeper than {MAX_DEPTH} levels; a configuration needs fewer"
    if root is None:
        findings.fail(place, message)
    return _Reader(findings).read(root, YamlLocation(_line_of(root)), MAX_DEPTH)


def _without_json_tabs(text: str) -> str:
    """JSON may be indented with tabs and YAML may not; within JSON's strings there are none."""
    if "\t" not in text:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text
    return text.replace("\t", " ")


def _marked_place(error: yaml.MarkedYAMLError) -> YamlLocation:
    mark = error.problem_mark or error.context_mark
    return YamlLocation(mark.line + 1 if mark else 1)


def _explain(error: yaml.MarkedYAMLError) -> str:
    said = f"{error.context} {error.problem}"
    return next(
        (meaning for words, meaning in _SYNTAX if words in said),
        "not valid YAML; check the indentation, quotes and colons here",
    )


def _line_of(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


@dataclass(slots=True)
class _Reader:
    """One walk over PyYAML's graph, which may share nodes and even hold itself."""

    findings: Findings
    nodes: int = 0

    def read(self, node: yaml.Node, place: YamlLocation, depth: int) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self.findings.fail(place, f"aliases repeat this file into more than {MAX_NODES} values; use fewer")
        if depth == 0:
            return self._unusable(place, f"nested deeper than {MAX_DEPTH} levels; a configuration needs fewer")
        if isinstance(node, yaml.ScalarNode):
            return self._scalar(node, place)
        if node.tag not in (_TAG + "map", _TAG + "seq"):
            return self._unusable(place, "YAML tags (such as !name) are not used here; remove it")
        if isinstance(node, yaml.MappingNode):
            return Table(place, self._members(node, place, depth))
        return Items(place, tuple(self._items(node, place, depth)))

    def _unusable(self, place: YamlLocation, message: str) -> Scalar:
        self.findings.problem(place, message)
        return Scalar(place, "", "unusable")

    def _scalar(self, node: yaml.ScalarNode, place: YamlLocation) -> Scalar:
        kind = _KINDS.get(node.tag)
        text = _joined_surrogates(node.value)
        if kind is None:
            return self._unusable(place, "YAML tags (such as !name) are not used here; remove it")
        if "\0" in text or _SURROGATE.search(text):
            return self._unusable(place, "the text holds a character that cannot be passed on (NUL or half a pair)")
        # YAML 1.1 takes 1e3 for text, YAML 1.2 and every reader for a number.
        if kind == "text" and node.style is None and DECIMAL.fullmatch(text):
            kind = "number"
        return Scalar(place, text, kind)

    def _items(self, node: yaml.Node, place: YamlLocation, depth: int) -> Iterator[Node]:
        for index, item in enumerate(node.value):
            yield self.read(item, place.child(str(index), _line_of(item)), depth - 1)

    def _members(self, node: yaml.MappingNode, place: YamlLocation, depth: int) -> dict[str, Node]:
        members: dict[str, Node] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            name = self._key(key, place)
            if key.tag == _TAG + "merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
            elif name in members:
                first = members[name].place.line
                self.findings.problem(place.child(name, _line_of(key)), f"the same key as on line {first}; keep one")
            elif name is not None:
                members[name] = self.read(value, place.child(name, _line_of(key)), depth - 1)
        for base in merged:
            members = {**self._merge(base, place, depth), **members}
        return members

    def _key(self, key: yaml.Node, place: YamlLocation) -> str | None:
        at = YamlLocation(_line_of(key), place.path)
        scalar = self._scalar(key, at) if isinstance(key, yaml.ScalarNode) else None
        if scalar is None:
            self.findings.problem(
                at, "wanted text as a key, got a list or a mapping; quote text that starts with [ or {"
            )
        return scalar.text if scalar and scalar.kind != "unusable" else None

    def _merge(self, base: yaml.Node, place: YamlLocation, depth: int) -> Mapping[str, Node]:
        self.nodes += 1
        if isinstance(base, yaml.MappingNode) and depth > 1:
            table = self.read(base, place, depth - 1)
            return table.members if isinstance(table, Table) else {}
        self.findings.problem(YamlLocation(_line_of(base), place.path), "wanted a mapping to merge after '<<'")
        return {}


def _joined_surrogates(text: str) -> str:
    """JSON writes an astral character as two escapes, which PyYAML reads as two halves."""
    if not _SURROGATE.search(text):
        return text
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def each_scalar(node: Node, change: Callable[[Scalar], Scalar]) -> Node:
    """The same tree with every scalar changed."""
    match node:
        case Scalar():
            return change(node)
        case Items():
            return replace(node, nodes=tuple(each_scalar(item, change) for item in node.nodes))
        case Table():
            return replace(node, members={key: each_scalar(value, change) for key, value in node.members.items()})


def expand(node: Node, variables: Mapping[str, str], findings: Findings) -> Node:
    """The same tree with `${VAR}`, `${env:VAR}` and `${VAR:-default}` replaced, `$${` being a literal `${`.

    As in a shell, a default stands in for a variable that is unset or empty. What a variable gives is text: it is
    never read as YAML nor searched for further variables. A variable that cannot be replaced is noted.
    """
    return each_scalar(node, lambda scalar: _expand_scalar(scalar, variables, findings))


def _expand_scalar(scalar: Scalar, variables: Mapping[str, str], findings: Findings) -> Scalar:
    if "${" not in scalar.text:
        return scalar
    found = list(_VARIABLE.finditer(scalar.text))
    problems = list(_variable_problems(found, variables))
    for problem in problems:
        findings.problem(scalar.place, problem)
    if problems:
        return replace(scalar, text="", kind="unusable")
    text = _VARIABLE.sub(lambda match: _value_of(match, variables), scalar.text)
    return replace(scalar, text=text, kind="expanded")


def _value_of(match: re.Match[str], variables: Mapping[str, str]) -> str:
    if match["name"] is None:
        return "${"
    if match["default"] is None:
        return variables[match["name"]]
    return variables.get(match["name"]) or match["default"]


def _variable_problems(found: Iterable[re.Match[str]], variables: Mapping[str, str]) -> Iterator[str]:
    for match in found:
        name = match["name"]
        if match.group() == "${" and match.string.startswith("${input:", match.start()):
            yield "${input:...} asks a person, and a gateway cannot; set an environment variable and write ${VAR}"
        elif match.group() == "${":
            yield "wanted ${VAR} or ${VAR:-default}, with nothing nested; write $${ for a literal ${"
            return  # what follows may be a part of it
        elif name is not None and match["default"] is None and name not in variables:
            yield f"the environment variable {name} is not set; set it, or write a default: ${{{name}:-...}}"
