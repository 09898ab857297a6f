"""Reads a tree of nodes into the settings' frozen objects, and reports each problem at its location.

The reader does not know the keys. Values may be secrets, so messages contain none, except a word that resembles one of
the words that its key takes.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import msgspec

from mcp_mirror.config.clients import CLIENT_BLOCKS, RENAMED
from mcp_mirror.config.scalars import GROUPED, describe_expected, kind_name, list_options, read_scalar
from mcp_mirror.config.shape import Field, Value, find_places, list_fields, list_keys, sections_in
from mcp_mirror.config.source import Findings, Items, Node, Scalar, YamlLocation, YamlMapping
from mcp_mirror.settings.access import TOKEN_PREFIX
from mcp_mirror.settings.declarations import (
    FILE_ONLY,
    INLINE,
    NAME,
    OPTIONAL_LIST,
    SINGLE,
    AtLeast,
    Names,
    Without,
)
from mcp_mirror.settings.policies import Config
from mcp_mirror.system.patterns import lazy_pattern

_LONGEST_KEY: Final = 32
_MOST_NAMED: Final = 3
"""Keys of a section, or places of a key in other sections, that a message names."""
_ADDRESS: Final = "--http HOST:PORT"
_OPTIONS: Final[Mapping[str, str]] = {
    "host": _ADDRESS, "port": _ADDRESS, "listen": _ADDRESS, "http": _ADDRESS,
    "workers": "--workers N", "watch": "--watch", "log_level": "--verbose", "verbose": "--verbose",
}  # fmt: skip
"""Options of the command that users look for in the file."""
_COLON: Final = lazy_pattern(r"[\w-]+:[^/\s].*")
_BAD: Final = object()
"""Instead of a value that cannot be read; its problem is already reported."""


class Reader(msgspec.Struct, frozen=True):
    """Reads the sections of a file."""

    findings: Findings
    folder: Path
    """Relative paths start here."""
    is_strict: bool = True
    """Whether wrong values are problems, and not only unknown keys."""

    def read_config(self, root: YamlMapping) -> Config | None:
        """Return the configuration; None if it has problems."""
        found = self._read_section(Value(Config, ()), root, "")
        return found if isinstance(found, Config) else None

    def _read(self, value: Value, node: Node, name: str = "", *, is_entry: bool = False) -> Any:
        if entries := value.entries:
            return self._read_mapping(value, entries, node)
        if value.is_list:
            return self._read_list(value, node)
        if value.is_section:
            return self._read_section(value, node, name, is_entry=is_entry)
        found = read_scalar(value, node, self.folder) if isinstance(node, Scalar) else None
        return self._reject(node, describe_expected(value), list_options(value)) if found is None else found

    def _read_list(self, value: Value, node: Node) -> Any:
        least = value.mark(AtLeast)
        if isinstance(node, Scalar) and value.has(OPTIONAL_LIST) and node.kind == "nothing":
            return ()
        if isinstance(node, Scalar) and value.has(SINGLE) and node.kind != "nothing":
            node = Items(node.location, (node,))
        if not isinstance(node, Items) or (least and len(node.nodes) < least.count):
            return self._reject(node, least.expected if least else "a list")
        items = [self._read(value.items, item, is_entry=True) for item in node.nodes]
        return _BAD if _BAD in items else tuple(items)

    def _read_mapping(self, value: Value, entries: Value, node: Node) -> Any:
        """Read a mapping whose keys are the user's names, as a mapping, named sections, or pairs."""
        node, names = _replace_nothing(node), value.mark(Names)
        if not isinstance(node, YamlMapping):
            return self._reject(node, "a mapping from names to values")
        if names and not all(re.fullmatch(names.pattern, name) for name in node.members):
            return self._reject(node, names.expected)
        found = {name: self._read(entries, member, name, is_entry=True) for name, member in node.members.items()}
        if _BAD in found.values():
            return _BAD
        if not value.is_list:
            return found
        return tuple(found.items()) if value.items.is_list else tuple(found.values())

    def _read_section(self, value: Value, node: Node, name: str, *, is_entry: bool = False) -> Any:
        mapping = _convert_to_mapping(value, node if is_entry else _replace_nothing(node))
        keys = list_keys(value.kind, value.mark(Without))
        if mapping is None:
            short = value.shorthand
            list_key = f", or a list for {short.key!r}" if short and short.value.is_list else ""
            return self._reject(node, f"{_describe_mapping(field.path[0] for field in keys)}{list_key}")
        nodes = dict(self._find_nodes(mapping, keys))
        found = {field.path: self._read(field.value, nodes[field.path]) for field in keys if field.path in nodes}
        return self._assemble(value.kind, found, name, mapping)

    def _find_nodes(self, mapping: YamlMapping, keys: tuple[Field, ...]) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Yield the nodes of a section by path."""
        for name, node in self._select_known_members(mapping, tuple(dict.fromkeys(field.path[0] for field in keys))):
            members = {field.key: field.group for field in keys if field.group and field.group.name == name}
            if not members:
                yield (name,), node
                continue
            is_required = any(group.is_required for group in members.values())
            group = node if is_required else _replace_nothing(node)
            if not isinstance(group, YamlMapping):
                self._reject(group, _describe_mapping(members))
                continue
            for key, inner in self._select_known_members(group, tuple(members)):
                yield (name, key), inner
            for key in members.keys() - group.members.keys() if is_required else ():
                self._report_missing(group, key)

    def _select_known_members(self, mapping: YamlMapping, names: tuple[str, ...]) -> Iterator[tuple[str, Node]]:
        """Yield the members of a mapping that have one of the names, and report the others."""
        blocks = tuple(CLIENT_BLOCKS) if "upstreams" in names else ()
        for key, node in mapping.members.items():
            if key in names:
                yield key, node
                continue
            at = node.location
            # A long or unusual key may be a misplaced secret.
            if not (key.replace("-", "_").isidentifier() and len(key) <= _LONGEST_KEY):
                at = YamlLocation(at.line, at.path[:-1])
            self.findings.report(at, f"unknown key; {_advise(key, node, (*names, *blocks))}")

    def _assemble(self, section: type, found: Mapping[tuple[str, ...], Any], name: str, mapping: YamlMapping) -> Any:
        """Construct an object of the values that were read."""
        values: dict[str, Any] = {}
        for field in list_fields(section):
            if field.value.has(NAME):
                values[field.name] = name
            elif field.value.has(INLINE):
                chosen = _choose(sections_in(field.value), found)
                values[field.name] = self._assemble(chosen, found, name, mapping) if chosen else _BAD
            elif field.path in found and not field.value.has(FILE_ONLY):
                values[field.name] = found[field.path]
            elif field.is_required and field.path not in found:
                self._report_missing(mapping, field.key)
                values[field.name] = _BAD
        return _BAD if _BAD in values.values() or _BAD in found.values() else section(**values)

    def _report_missing(self, node: Node, key: str) -> None:
        if self.is_strict:
            self.findings.report(_hide_key(node), f"expected {key!r}, which is missing")

    def _reject(self, node: Node, expected: str, options: Sequence[str] = ()) -> Any:
        is_reported = isinstance(node, Scalar) and node.kind == "unusable"
        if self.is_strict and not is_reported:
            got = _suggest_option(node, options) or _describe_value(node, expected, has_options=bool(options))
            self.findings.report(_hide_key(node), f"expected {expected}, got {got}")
        return _BAD


def _choose(sections: tuple[type, ...], found: Mapping[tuple[str, ...], Any]) -> type | None:
    """Return the class of an inline section: of several, the first whose required keys are there."""
    if len(sections) == 1:
        return sections[0]
    for section in sections:
        required = [field.path for field in list_fields(section) if field.is_required]
        if required and all(path in found for path in required):
            return section
    return None


def _replace_nothing(node: Node) -> Node:
    return YamlMapping(node.location, {}) if isinstance(node, Scalar) and node.kind == "nothing" else node


def _convert_to_mapping(value: Value, node: Node) -> YamlMapping | None:
    """Return a section's mapping, made from its shorthand if necessary; None for anything else."""
    if isinstance(node, YamlMapping):
        return node
    short = value.shorthand
    if short is None or isinstance(node, Items) is not short.value.is_list:
        return None
    return YamlMapping(node.location, {short.key: node})


def _has_servers(node: Node) -> bool:
    """Whether a mapping is a server as clients write it, or one of servers, as in some clients' blocks."""
    if not isinstance(node, YamlMapping):
        return False
    inner = tuple(one for one in node.members.values() if isinstance(one, YamlMapping))
    return not {"command", "cmd", "url"}.isdisjoint(node.members) or any(map(_has_servers, inner))


def _advise(key: str, node: Node, names: Sequence[str]) -> str:
    """Return the next step for a key that its section does not have: a similar key, the same one in others, or all."""
    if key != key.strip():
        return "the line has a no-break space; replace it by an ordinary space"
    if key.isdecimal() and isinstance(node, Scalar) and node.kind == "nothing":
        return "a comma inside { } begins the next key; write numbers without it"
    same = RENAMED.get(key, "").split(".")[0]
    near = [same] if same in names else get_close_matches(key, names, 1)
    if not near and key in _OPTIONS:
        return f"it is an option of the command: mcp-mirror serve {_OPTIONS[key]}"
    if "upstreams" in names and _has_servers(node) and {"upstreams", *CLIENT_BLOCKS}.isdisjoint(near):
        return "servers belong below 'upstreams', each with a name"
    named = " or ".join(f"'{similar}'" for similar in near or _find_nearest_places(key, node)[:_MOST_NAMED])
    return f"did you mean {named}?" if named else f"expected one of {', '.join(names)}"


def _find_nearest_places(key: str, node: Node) -> list[str]:
    """Return where the file may have a key of this name: in a mapping of the same section, else anywhere."""
    path = node.location.path
    section = ".".join(("upstreams", "*", *path[2:-1]) if path[0] in ("upstreams", *CLIENT_BLOCKS) else path[:-1])
    places = find_places(key)
    return [place for place in places if re.fullmatch(rf"{re.escape(section)}\.\w+\.\w+", place)] or places


def _describe_mapping(keys: Iterable[str]) -> str:
    *first, last = tuple(dict.fromkeys(keys))[:_MOST_NAMED]
    return f"a mapping with keys such as {', '.join(first)} and {last}" if first else f"a mapping with the key {last}"


def _describe_value(node: Node, expected: str, *, has_options: bool) -> str:
    """Return what a node is, where a text was expected too how the text differs, and how to correct it."""
    name = kind_name(node)
    if not isinstance(node, Scalar):
        return name
    if name == "text" and expected.startswith("a secret of"):
        name = "a shorter one"
    elif name == "text" and has_options:
        name = "another word"
    elif name == "text" and expected.startswith("an address such as http") and not node.text.isascii():
        name = "text with a letter that host names do not have, which may be invisible"
    return f"{name}{_suggest_correction(node, expected)}"


def _suggest_correction(node: Scalar, expected: str) -> str:
    is_token = any(text.startswith(TOKEN_PREFIX) for text in (node.text, *node.location.path[-1:]))
    if expected.startswith("sha256:") and is_token:
        return "; this is a token itself, and it is not a secret any more: create another, and put its hash here"
    if expected.startswith("a whole number") and (node.kind in ("text", "expanded") or GROUPED.search(node.text)):
        return _suggest_digits(node.text)
    if expected.startswith("a mapping") and _COLON.fullmatch(node.text):
        return "; write a space after the colon"
    if node.kind == "nothing" and node.text == "~":
        return "; a bare ~ means nothing in YAML, so put it in quotes"
    if node.kind == "nothing":
        return "; there is always a limit" if "".join(node.location.path[-1:]).endswith("timeout") else ""
    return "; put it in quotes" if expected.startswith("text") and node.kind in ("number", "boolean") else ""


def _suggest_digits(text: str) -> str:
    if text.isdecimal():
        return "; remove the quotes"
    return "; write only digits, such as 1000" if text[:1].isdecimal() else ""


def _suggest_option(node: Node, options: Sequence[str]) -> str:
    """Return a word that resembles an option, and that option; empty for other values, which may be secrets."""
    if not isinstance(node, Scalar) or node.kind != "text" or not node.text.isprintable():
        return ""
    word = node.text.lower()
    near = get_close_matches(word, options, 1) or [option for option in options if word in option.split("-")]
    return f"'{node.text}'; did you mean '{near[0]}'?" if near else ""


def _hide_key(node: Node) -> YamlLocation:
    """Return a location for a message: in `env: {secret}` the secret is a key without a value."""
    line, keys = node.location.line, node.location.path
    if isinstance(node, Scalar) and node.kind == "nothing" and len(keys) > 1:
        is_secret = RENAMED.get(keys[-2], keys[-2]) in ("env", "headers")
        return YamlLocation(line, keys[:-1]) if is_secret else node.location
    return node.location
