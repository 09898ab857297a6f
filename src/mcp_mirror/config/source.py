"""Reads YAML into a tree of nodes with line, key path and kind, and replaces `${VAR}`.

The tree is made from PyYAML's node graph, not from constructed values: a scalar keeps the text that the user wrote, and
a file cannot create objects. This module does not know any key. No message contains a value, which may be a secret.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Final, Literal, NoReturn, TypeAlias

import msgspec
import yaml

from mcp_mirror.config.variables import Variables
from mcp_mirror.errors import ConfigError
from mcp_mirror.system.json_comments import blank_comments
from mcp_mirror.system.patterns import lazy_pattern

Kind = Literal["text", "number", "boolean", "nothing", "expanded", "unusable"]
"""`expanded`: text with variables, which may be any kind of scalar; `unusable`: its problem is already reported."""

MAX_NODES: Final = 20_000
"""Nodes after aliases and merges are resolved; a file with more is an alias bomb."""
MAX_DEPTH: Final = 32
_MAX_PROBLEMS: Final = 50
"""Lines of one error."""

DECIMAL: Final = lazy_pattern(r"[+-]?(\d[\d_]*(\.\d*)?|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_VARIABLE: Final = lazy_pattern(
    r"\$\$\{|\$\{(?:env:)?(?P<name>[A-Za-z_]\w*)(?::-(?P<default>(?:(?!\$\{)[^}])*))?\}|\$\{", re.ASCII
)
_ASKS: Final = "the gateway cannot ask a person for ${input:...}; set an environment variable and write ${VAR}"
_MALFORMED: Final = "expected ${VAR} or ${VAR:-default}, with nothing nested; write $${ for a literal ${"
_SHOWN_KEY: Final = lazy_pattern(r"[\w.*?\[\]!$ /@-]{1,64}")
_RANDOM_TEXT: Final = lazy_pattern(r"(?=.*[a-z])(?=.*[A-Z])(?=.*\d).{32,}")
_LITERAL_VARIABLE: Final = lazy_pattern(r"(?:Bearer )?(?:\$[A-Z_][A-Z0-9_]*|%[A-Z_][A-Z0-9_]*%)(?:[/\\].*)?", re.ASCII)
_TOML_TABLE: Final = lazy_pattern(r"\s*\[[A-Za-z_][\w.\"-]*\][ \t]*\r?\n", re.ASCII)
_SURROGATE: Final = lazy_pattern(r"[\ud800-\udfff]")

_LITERAL: Final = "read as text, not as a variable; write ${VAR} for the environment variable"
_OF_CLIENTS: Final = frozenset({"userHome", "workspaceFolder", "workspaceFolderBasename", "workspaceRoot"})
"""Variables that only VS Code and Cursor replace."""
_TOML: Final = "this is TOML; write the servers in YAML, below 'upstreams:'"

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
_ALIAS: Final = "text that starts with * is read as an alias; put it in quotes, or define its anchor"
# PyYAML's messages quote the file, which may be a secret, and use terms of its parser.
_SYNTAX: Final = (
    (r"'\t'", "YAML does not allow a tab here; use spaces"),
    ("undefined alias", _ALIAS),
    ("scanning an alias", _ALIAS),
    ("scanning an anchor", "text that starts with & is read as an anchor; put it in quotes"),
    (
        "mapping values are not allowed",
        "YAML does not allow a colon here; put the text in quotes or fix the indentation",
    ),
    ("could not find expected ':'", "a key without a colon; write 'key: value', or put the text in quotes"),
    ("end of stream", "a quote or bracket is not closed"),
    ("but got '{'", "a comma is missing inside { } or [ ], or quotes around text with ${VAR}"),
    ("or ']'", "a list in [ ] lacks a comma or the closing bracket"),
    ("or '}'", "a mapping in { } lacks a comma or the closing brace"),
    ("<stream end>", "a bracket is not closed"),
    ("<block end>", "the indentation does not match the lines above, or a line lacks a colon"),
    ("cannot start any token", "text that starts with %, @ or a backtick must be in quotes"),
    ("unknown escape", "a backslash in double quotes starts an escape; use single quotes"),
    ("escape sequence", "a backslash in double quotes starts an escape; use single quotes"),
    ("sequence entries", "a list starts on the line after its key, or write it in [ ]"),
    ("single document", "a second document starts here; keep one and remove '---'"),
)


class YamlLocation(msgspec.Struct, frozen=True):
    """The line of a node (from 1), and the keys that lead to it, as the user wrote them."""

    line: int
    path: tuple[str, ...] = ()

    def child(self, key: str, line: int) -> "YamlLocation":
        """Return the location of a key or item below this one."""
        return YamlLocation(line, (*self.path, key))


@dataclass(frozen=True, slots=True)
class Scalar:
    """Text, a number, a boolean or nothing, as the user wrote it."""

    location: YamlLocation
    text: str = field(repr=False)
    kind: Kind
    is_inverted: bool = False
    """Whether the boolean means its opposite: a client's `disabled` is `enabled` here."""


class Items(msgspec.Struct, frozen=True):
    """A list."""

    location: YamlLocation
    nodes: tuple["Node", ...]


class YamlMapping(msgspec.Struct, frozen=True):
    """A mapping. The location of a member is that of its key."""

    location: YamlLocation
    members: Mapping[str, "Node"]


Node: TypeAlias = Scalar | Items | YamlMapping


class Findings(msgspec.Struct):
    """The problems and warnings of one file, collected so that one error reports all of them."""

    file: str
    name_origin: Callable[[Sequence[str]], str] | None = None
    """Names the option of the command line that has the value at these keys; None for a file."""
    _problems: list[tuple[int, str]] = msgspec.field(default_factory=list)
    _warnings: list[tuple[int, str]] = msgspec.field(default_factory=list)
    exposures: list[str] = msgspec.field(default_factory=list)
    """The warnings about secrets that other users can read."""

    def report(self, location: YamlLocation, message: str) -> None:
        """Add a problem, which makes the file unusable."""
        self._problems.append((location.line, self._format_line(location, message)))

    def warn(self, location: YamlLocation, message: str, *, is_exposure: bool = False) -> None:
        """Add a warning."""
        line = self._format_line(location, message)
        self._warnings.append((location.line, line))
        if is_exposure:
            self.exposures.append(line)

    def fail(self, location: YamlLocation, message: str) -> NoReturn:
        """Stop reading because of a problem: raise a ConfigError with all problems so far."""
        self.report(location, message)
        raise ConfigError("\n".join(self._format_lines()))

    def raise_problems(self) -> None:
        """Stop if there are problems, with a ConfigError: a line for each, in the order of the file."""
        if self._problems:
            raise ConfigError("\n".join(self._format_lines()))

    @property
    def warnings(self) -> tuple[str, ...]:
        """The warnings in the order of the file."""
        return tuple(text for _, text in sorted(self._warnings, key=lambda found: found[0]))

    def _format_line(self, location: YamlLocation, message: str) -> str:
        shown = [format_key(key) for key in location.path]
        if self.name_origin:
            return f"{self.name_origin(shown)}: {message}"
        keys = ".".join(shown)
        return f"{self.file}:{location.line}: {keys}: {message}" if keys else f"{self.file}:{location.line}: {message}"

    def _format_lines(self) -> list[str]:
        lines = list(dict.fromkeys(text for _, text in sorted(self._problems, key=lambda found: found[0])))
        more = len(lines) - _MAX_PROBLEMS
        return lines if more <= 0 else [*lines[:_MAX_PROBLEMS], f"{self.file}: and {more} more problems"]


def format_key(key: str) -> str:
    """Return a key for a message, without text that does not look like a name: it may be a misplaced secret."""
    return key if _SHOWN_KEY.fullmatch(key) and not _RANDOM_TEXT.fullmatch(key) else "<key>"


def read_yaml(text: str, findings: Findings) -> Node:
    """Return the tree of the document in `text`; `findings` gets duplicate keys, tags and unusual keys.

    Raises:
        ConfigError: The text is not YAML, is empty, or has more than `MAX_NODES` nodes.
    """
    location, message = YamlLocation(1), "the file is empty; begin with 'upstreams:'"
    try:
        root = yaml.compose(_convert_json(text), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        root, location = None, YamlLocation(mark.line + 1 if mark else 1)
        known = (advice for words, advice in _SYNTAX if words in f"{error.context} {error.problem}")
        message = next(known, "not valid YAML; check the indentation, quotes and colons here")
        message = _TOML if _TOML_TABLE.match(text) else message
    except yaml.reader.ReaderError as error:
        root, location = None, YamlLocation(text.count("\n", 0, error.position) + 1)
        message = "there is a control character here; remove it"
    except (ValueError, OverflowError):
        root, message = None, 'an escape such as "\\U..." in quotes is not a character'
    except RecursionError:
        root, message = None, f"nested deeper than {MAX_DEPTH} levels; a configuration needs fewer"
    if root is None:
        findings.fail(location, message)
    return _NodeReader(findings).read(root, YamlLocation(_line_number(root)), MAX_DEPTH)


def _convert_json(text: str) -> str:
    """Return JSON, which may have comments and trailing commas, as YAML; other text as it is.

    YAML allows no tabs as indentation, and JSON strings do not contain tabs. Lines and columns stay.
    """
    if not text.lstrip().startswith("{"):
        return text
    with suppress(ValueError, RecursionError):
        json.loads(text)
        return text.replace("\t", " ")
    with suppress(ValueError, RecursionError):
        blanked = blank_comments(text.encode(errors="surrogatepass")).decode(errors="surrogatepass")
        json.loads(blanked)
        return blanked.replace("\t", " ")
    return text


def _line_number(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


class _NodeReader(msgspec.Struct):
    """One walk over PyYAML's graph, which may share nodes and contain itself."""

    findings: Findings
    nodes: int = 0

    def read(self, node: yaml.Node, location: YamlLocation, depth: int) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES:
            self.findings.fail(location, f"aliases repeat this file into more than {MAX_NODES} values; use fewer")
        if depth == 0:
            return self._reject_node(location, f"nested deeper than {MAX_DEPTH} levels; a configuration needs fewer")
        if isinstance(node, yaml.ScalarNode):
            return self._read_scalar(node, location)
        if node.tag not in (_TAG + "map", _TAG + "seq"):
            return self._reject_node(location, "YAML tags (such as !name) are not used here; remove it")
        if isinstance(node, yaml.MappingNode):
            return YamlMapping(location, self._read_members(node, location, depth))
        places = ((item, location.child(str(index), _line_number(item))) for index, item in enumerate(node.value))
        return Items(location, tuple(self.read(item, place, depth - 1) for item, place in places))

    def _reject_node(self, location: YamlLocation, message: str) -> Scalar:
        self.findings.report(location, message)
        return Scalar(location, "", "unusable")

    def _read_scalar(self, node: yaml.ScalarNode, location: YamlLocation) -> Scalar:
        kind = _KINDS.get(node.tag)
        text = node.value
        if _SURROGATE.search(text):  # JSON escapes a character above U+FFFF as two, which PyYAML does not join
            text = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")
        if kind is None:
            return self._reject_node(location, "YAML tags (such as !name) are not used here; remove it")
        if "\0" in text or _SURROGATE.search(text):
            return self._reject_node(location, "the text contains NUL or half of a surrogate pair; remove it")
        # 1e3 is text in YAML 1.1, and a number in YAML 1.2 and for readers.
        if kind == "text" and node.style is None and DECIMAL.fullmatch(text):
            kind = "number"
        return Scalar(location, text, kind)

    def _read_members(self, node: yaml.MappingNode, location: YamlLocation, depth: int) -> dict[str, Node]:
        members: dict[str, Node] = {}
        merged: list[yaml.Node] = []
        for key, value in node.value:
            name = self._read_key(key, location)
            if key.tag == _TAG + "merge":
                merged += value.value if isinstance(value, yaml.SequenceNode) else [value]
            elif name in members:
                first = members[name].location.line
                self.findings.report(
                    location.child(name, _line_number(key)), f"the same key as on line {first}; keep one"
                )
            elif name is not None:
                members[name] = self.read(value, location.child(name, _line_number(key)), depth - 1)
        for base in merged:
            members = {**self._merge(base, location, depth), **members}
        return members

    def _read_key(self, key: yaml.Node, location: YamlLocation) -> str | None:
        at = YamlLocation(_line_number(key), location.path)
        scalar = self._read_scalar(key, at) if isinstance(key, yaml.ScalarNode) else None
        if scalar is None:
            self.findings.report(
                at, "expected text as a key, got a list or a mapping; quote text that starts with [ or {"
            )
        return scalar.text if scalar and scalar.kind != "unusable" else None

    def _merge(self, base: yaml.Node, location: YamlLocation, depth: int) -> Mapping[str, Node]:
        self.nodes += 1
        if isinstance(base, yaml.MappingNode) and depth > 1:
            mapping = self.read(base, location, depth - 1)
            return mapping.members if isinstance(mapping, YamlMapping) else {}
        self.findings.report(YamlLocation(_line_number(base), location.path), "expected a mapping to merge after '<<'")
        return {}


def expand(node: Node, variables: Variables, findings: Findings) -> Node:
    """Return a tree with `${VAR}`, `${env:VAR}` and `${VAR:-default}` replaced; `$${` is a literal `${`.

    As in a shell, the default replaces a variable that is unset or empty. The value of a variable is text: it is not
    read as YAML and not searched for further variables. `findings` gets variables that cannot be replaced.
    """
    match node:
        case Scalar():
            return _expand_scalar(node, variables, findings)
        case Items():
            return Items(node.location, tuple(expand(item, variables, findings) for item in node.nodes))
        case YamlMapping():
            members = {key: expand(member, variables, findings) for key, member in node.members.items()}
            return YamlMapping(node.location, members)


def _expand_scalar(scalar: Scalar, variables: Variables, findings: Findings) -> Scalar:
    if "${" not in scalar.text:
        if _LITERAL_VARIABLE.fullmatch(scalar.text):
            findings.warn(scalar.location, _LITERAL)
        return scalar
    problems: list[str] = []

    def replace_variable(match: re.Match[str]) -> str:
        if _MALFORMED in problems:  # this may be a part of it
            return ""
        try:
            return _look_up_variable(match, variables)
        except ConfigError as error:
            problems.append(str(error))
            return ""

    text = _VARIABLE.sub(replace_variable, scalar.text)
    for problem in problems:
        findings.report(scalar.location, problem)
    return replace(scalar, text="", kind="unusable") if problems else replace(scalar, text=text, kind="expanded")


def _look_up_variable(match: re.Match[str], variables: Variables) -> str:
    """Return the text in place of a match of `_VARIABLE`; a ConfigError says why it has none."""
    name, default = match["name"], match["default"]
    if match.group() == "$${":
        return "${"
    if name is None:
        raise ConfigError(_ASKS if match.string.startswith("${input:", match.start()) else _MALFORMED)
    try:
        value = variables.get(name)
    except ConfigError as error:
        raise ConfigError(f"{error}; check its path and its permissions") from None
    if value is None and default is None:
        if name in _OF_CLIENTS:
            raise ConfigError(f"the gateway does not know the client's variable {name}; write the path of the folder")
        raise ConfigError(
            f"the environment variable {name} is not set; set it, or {name}_FILE to a file with its value, or write a "
            f"default: ${{{name}:-...}}"
        )
    return value or default or ""
