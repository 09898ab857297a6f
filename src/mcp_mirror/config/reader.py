"""Reads a tree of nodes into the settings' frozen objects, and reports each problem at its place.

A reader knows the classes only by their shape. No message contains a value: a value may be a secret.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, dataclass, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, get_origin

from mcp_mirror.config.clients import CLIENT_BLOCKS, RENAMED
from mcp_mirror.config.scalars import describe_wanted, kind_name, read_scalar
from mcp_mirror.config.shape import (
    Field,
    Value,
    fields_of,
    is_shorthand_list,
    keys_of,
    sections_in,
)
from mcp_mirror.config.source import Findings, Items, Node, Scalar, Table, YamlLocation
from mcp_mirror.settings.access import TOKEN_PREFIX
from mcp_mirror.settings.declarations import (
    FILE_ONLY,
    INLINE,
    NAME,
    OPTIONAL_LIST,
    SINGLE,
    AtLeast,
    Names,
    Shorthand,
    Without,
)
from mcp_mirror.settings.policies import Config

LONGEST_KEY: Final = 32
_BAD: Final = object()
"""In place of a value that cannot be read; its problem is reported already."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Reads sections."""

    findings: Findings
    folder: Path
    """Relative paths start here."""
    checks_values: bool = True
    """Whether wrong values are problems, not only unknown keys."""

    def read_config(self, root: Table) -> Config | None:
        """Return the configuration; None if it has problems."""
        found = self._section(Value(Config, ()), root, "")
        return found if isinstance(found, Config) else None

    def _read(self, value: Value, node: Node, name: str = "", *, is_entry: bool = False) -> Any:
        if value.entries is not None:
            return self._mapping(value, node)
        if get_origin(value.kind) is tuple:
            return self._list(value, node)
        if is_dataclass(value.kind):
            return self._section(value, node, name, is_entry=is_entry)
        found = read_scalar(value, node, self.folder) if isinstance(node, Scalar) else None
        return self._reject(node, describe_wanted(value)) if found is None else found

    def _list(self, value: Value, node: Node) -> Any:
        least = value.mark(AtLeast)
        wanted = least.wanted if least else "a list"
        if isinstance(node, Scalar) and value.has(OPTIONAL_LIST) and node.kind == "nothing":
            return ()
        if isinstance(node, Scalar) and value.has(SINGLE) and node.kind != "nothing":
            node = Items(node.place, (node,))
        if not isinstance(node, Items):
            return self._reject(node, wanted)
        if least and len(node.nodes) < least.count:
            return self._reject(node, wanted)
        items = [self._read(value.items, item, is_entry=True) for item in node.nodes]
        return _BAD if _BAD in items else tuple(items)

    def _mapping(self, value: Value, node: Node) -> Any:
        """Read a mapping whose keys are the user's names, as a mapping, named sections, or pairs."""
        node = _empty_if_nothing(node)
        entries, names = value.entries, value.mark(Names)
        assert entries is not None  # noqa: S101  # the caller's condition
        if not isinstance(node, Table):
            return self._reject(node, "a mapping")
        if names and not all(re.fullmatch(names.pattern, name) for name in node.members):
            return self._reject(node, names.wanted)
        found = {name: self._read(entries, member, name, is_entry=True) for name, member in node.members.items()}
        if _BAD in found.values():
            return _BAD
        if get_origin(value.kind) is not tuple:
            return MappingProxyType(found)
        return tuple(found.items()) if get_origin(value.items.kind) is tuple else tuple(found.values())

    def _section(self, value: Value, node: Node, name: str, *, is_entry: bool = False) -> Any:
        table = _as_table(value, node if is_entry else _empty_if_nothing(node))
        if table is None:
            return self._reject(node, "a mapping")
        keys = keys_of(value.kind, value.mark(Without))
        nodes = dict(self._members(table, keys))
        found = {one.path: self._read(one.value, nodes[one.path]) for one in keys if one.path in nodes}
        lacking = [least for one in keys if (least := _least_of_missing(one, nodes))]
        for least in lacking:
            self._reject(node, least.wanted)
        result = self._assemble(value.kind, found, name, table)
        return _BAD if lacking else result

    def _members(self, table: Table, keys: tuple[Field, ...]) -> Iterator[tuple[tuple[str, ...], Node]]:
        """Yield the nodes of a section by path, and report unknown keys."""
        groups = {one.group.name: one.group for one in keys if one.group}
        names = tuple(dict.fromkeys(one.path[0] for one in keys))
        for key, node in table.members.items():
            if key not in names:
                self._reject_key(node, key, names)
            elif key not in groups:
                yield (key,), node
            elif not isinstance(inner := node if groups[key].is_required else _empty_if_nothing(node), Table):
                self._reject(node, "a mapping")
            else:
                inner_names = tuple(one.key for one in keys if one.group == groups[key])
                for name, member in inner.members.items():
                    if name in inner_names:
                        yield (key, name), member
                    else:
                        self._reject_key(member, name, inner_names)
                for missing in set(inner_names) - inner.members.keys() if groups[key].is_required else ():
                    self._report_missing(node, missing)

    def _assemble(self, section: type, found: Mapping[tuple[str, ...], Any], name: str, table: Table) -> Any:
        """Construct an object of the values that were read."""
        values: dict[str, Any] = {}
        for one in fields_of(section):
            if one.value.has(NAME):
                values[one.name] = name
            elif one.value.has(INLINE):
                chosen = _choose(sections_in(one.value), found)
                values[one.name] = self._assemble(chosen, found, name, table) if chosen else _BAD
            elif one.path in found and not one.value.has(FILE_ONLY):
                values[one.name] = found[one.path]
            elif one.is_required and one.path not in found:
                self._report_missing(table, one.key)
                values[one.name] = _BAD
        return _BAD if _BAD in values.values() or _BAD in found.values() else section(**values)

    def _report_missing(self, node: Node, key: str) -> None:
        if self.checks_values:
            self.findings.problem(_safe_place(node), f"wanted {key!r}, which is missing")

    def _reject(self, node: Node, wanted: str) -> Any:
        is_reported = isinstance(node, Scalar) and node.kind == "unusable"
        if self.checks_values and not is_reported:
            message = f"wanted {wanted}, got {kind_name(node)}{_hint(node, wanted)}"
            self.findings.problem(_safe_place(node), message)
        return _BAD

    def _reject_key(self, node: Node, key: str, names: tuple[str, ...]) -> None:
        blocks = tuple(CLIENT_BLOCKS) if "upstreams" in names else ()
        same = RENAMED.get(key, "").split(".")[0]
        near = [same] if same in names else get_close_matches(key, (*names, *blocks), 1)
        advice = f"did you mean '{near[0]}'?" if near else f"wanted one of {', '.join(names)}"
        self.findings.problem(_key_place(node.place), f"unknown key; {advice}")


def _least_of_missing(one: Field, nodes: Mapping[tuple[str, ...], Node]) -> AtLeast | None:
    """Return the least number of items of a list that is absent and whose default is too short."""
    least = one.value.mark(AtLeast)
    is_short = least is not None and one.path not in nodes and len(one.default) < least.count
    return least if is_short else None


def _choose(sections: tuple[type, ...], found: Mapping[tuple[str, ...], Any]) -> type | None:
    """Return the class of an inline section: of several, the first whose required keys are there."""
    if len(sections) == 1:
        return sections[0]
    for section in sections:
        required = [one.path for one in fields_of(section) if one.default is MISSING]
        if required and all(path in found for path in required):
            return section
    return None


def _empty_if_nothing(node: Node) -> Node:
    return Table(node.place, {}) if isinstance(node, Scalar) and node.kind == "nothing" else node


def _as_table(value: Value, node: Node) -> Table | None:
    """Return a section's mapping, made from its shorthand if necessary; None for anything else."""
    if isinstance(node, Table):
        return node
    shorthand = value.mark(Shorthand)
    if shorthand is None:
        return None
    kind: Callable[[Node], bool] = _is_list if is_shorthand_list(value.kind, shorthand) else _is_scalar
    return Table(node.place, {shorthand.key: node}) if kind(node) else None


def _is_list(node: Node) -> bool:
    return isinstance(node, Items)


def _is_scalar(node: Node) -> bool:
    return isinstance(node, Scalar)


def _hint(node: Node, wanted: str) -> str:
    if not isinstance(node, Scalar):
        return ""
    if wanted.startswith("sha256:") and node.text.startswith(TOKEN_PREFIX):
        return "; this is a token itself, and it is not a secret any more: create another, and put its hash here"
    if node.kind == "nothing" and node.text == "~":
        return "; a bare ~ means nothing in YAML, so put it in quotes"
    if node.kind == "nothing":
        return "; there is always a limit" if "seconds above" in wanted else ""
    return "; put it in quotes" if wanted.startswith("text") and node.kind in ("number", "boolean") else ""


def _key_place(place: YamlLocation) -> YamlLocation:
    """Return a place that may be shown: no key of the settings is long or odd, but a misplaced secret may be."""
    name = place.path[-1]
    return place if name.replace("-", "_").isidentifier() and len(name) <= LONGEST_KEY else _parent(place)


def _safe_place(node: Node) -> YamlLocation:
    """Return a place that may be shown: in `env: {secret}` the secret is a key without a value."""
    keys = node.place.path
    is_lone = isinstance(node, Scalar) and node.kind == "nothing" and len(keys) > 1
    return _parent(node.place) if is_lone and RENAMED.get(keys[-2], keys[-2]) in ("env", "headers") else node.place


def _parent(place: YamlLocation) -> YamlLocation:
    return replace(place, path=place.path[:-1])
