"""Merges the lists of all upstreams: resources, templates and prompts, with unique names, and their cache hints.

Names and URIs remain unchanged if they are unique. If two upstreams have the same name, or if the gateway reserves it,
the later item gets its upstream's name as a prefix.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple

import mcp_types as types
import msgspec
from pydantic import BaseModel

from mcp_mirror.core.schemas.listed_members import (
    find_invalid_members,
    may_have_unreadable_members,
    remove_unreadable_members,
)
from mcp_mirror.payload.json_rpc import decode_as, object_of, open_object
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.types import Buffer, Segments

ItemKind = Literal["resources", "templates", "prompts"]

_UNSAFE: Final = lazy_pattern(r"[^A-Za-z0-9.-]+")


class ListKind(NamedTuple):
    """How items of one kind are listed."""

    method: str
    member: str
    key: str
    """The member that identifies an item."""
    model: type[BaseModel]
    """What clients read of an item."""


KINDS: Final[Mapping[ItemKind, ListKind]] = {
    "resources": ListKind("resources/list", "resources", "uri", types.Resource),
    "templates": ListKind("resources/templates/list", "resourceTemplates", "uriTemplate", types.ResourceTemplate),
    "prompts": ListKind("prompts/list", "prompts", "name", types.Prompt),
}


class ResourceOrigin(NamedTuple):
    """The upstream of an item and its name or URI there."""

    upstream: str
    key: str


class MergedList(msgspec.Struct, frozen=True):
    """The merged lists of all upstreams."""

    items: tuple[Segments, ...]
    """The items, unchanged except for renamed keys, and for members that do not conform to MCP."""
    origins: Mapping[str, ResourceOrigin]
    invalid: Mapping[str, int] = msgspec.field(default_factory=dict)
    """The number of items with members that do not conform to MCP, by upstream."""


IsReserved = Callable[[str], bool]
"""Returns whether the gateway reserves a name for itself."""


def _is_free(_name: str) -> bool:
    return False


def merge_lists(
    kind: ItemKind, listed: Iterable[tuple[str, Iterable[Buffer]]], is_reserved: IsReserved = _is_free
) -> MergedList:
    """Merge the lists of several upstreams: JSON objects, in the order of the configuration.

    Members that do not conform to MCP are left out: one of them makes clients drop the lists of all upstreams. Items
    with a reserved name get their upstream's name as a prefix.
    """
    key = KINDS[kind].key
    items: list[Segments] = []
    origins: dict[str, ResourceOrigin] = {}
    invalid: dict[str, int] = {}
    for upstream, raws in listed:
        for raw in raws:
            members, is_changed = _read_members(kind, raw)
            name = decode_as(members.get(key), str)
            faults = find_invalid_members(b"".join(object_of(members)) if is_changed else raw, KINDS[kind].model)
            if faults != ():
                invalid[upstream] = invalid.get(upstream, 0) + 1
            if name is None or faults is None:
                continue
            origin = ResourceOrigin(upstream, name)
            own = assign_name(kind, origin, origins, is_reserved)
            if own in origins:
                continue  # the upstream lists the item twice
            origins[own] = origin
            if faults:
                members = {"name": members[key], **{one: text for one, text in members.items() if one not in faults}}
            is_same = own == name and not faults and not is_changed
            items.append((raw,) if is_same else object_of({**members, key: msgspec.json.encode(own)}))
    return MergedList(tuple(items), origins, invalid)


def _read_members(kind: ItemKind, raw: Buffer) -> tuple[Mapping[str, Buffer], bool]:
    """The members of an item that clients can read as far as their JSON type goes, and whether others are left out."""
    members = open_object(raw) or {}
    if not may_have_unreadable_members(raw):
        return members, False
    values = {name: decode_as(text, Any) for name, text in members.items()}
    readable = remove_unreadable_members(values, KINDS[kind].model)
    if readable == values:
        return members, False
    return {
        name: text if readable[name] == values[name] else msgspec.json.encode(readable[name])
        for name, text in members.items()
        if name in readable
    }, True


def assign_name(
    kind: ItemKind, origin: ResourceOrigin, origins: Mapping[str, ResourceOrigin], is_reserved: IsReserved = _is_free
) -> str:
    """The name of an item for clients: its own name, with prefixes if another item has that name."""
    name = origin.key
    while is_reserved(name) or origins.get(name, origin) != origin:
        name = prefix_name(kind, origin.upstream, name)
    return name


def prefix_name(kind: ItemKind, upstream: str, key: str) -> str:
    """An item's name with its upstream's name as a prefix."""
    return f"{upstream}_{key}" if kind == "prompts" else f"{build_scheme(upstream)}+{key}"


def build_scheme(upstream: str) -> str:
    """An upstream's name as the beginning of a URI scheme (RFC 3986, section 3.1)."""
    safe = _UNSAFE.sub("-", upstream)
    return safe if safe[:1].isalpha() else f"u{safe}"


def join_cache_hints(hints: Iterable[tuple[int | None, str | None]]) -> tuple[int, str]:
    """Merge `ttlMs` (milliseconds) and `cacheScope` of several lists, None if absent, into those of the combined list.

    Returns:
        The shortest time, where an absent or negative time counts as 0; `public` if all lists are, else `private`.
    """
    known = tuple(hints)
    shortest = min((max(time or 0, 0) for time, _ in known), default=0)
    return shortest, "public" if known and all(scope == "public" for _, scope in known) else "private"
