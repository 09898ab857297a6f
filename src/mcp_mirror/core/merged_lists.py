"""Under which name a client finds each upstream's resource, template and prompt.

Names and URIs are kept as they are. Where two upstreams have the same one, or where it is one of the gateway's own, the
later one gets its upstream's name as a prefix. Pure: who lists them is not known here.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import msgspec

from mcp_mirror.payload.json_rpc import object_of, open_object
from mcp_mirror.types import Buffer, Segments

Kind = Literal["resources", "templates", "prompts"]

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9.-]+")


class ListKind(NamedTuple):
    """How a kind of thing is listed, and by what its items are known."""

    method: str
    member: str
    key: str


KINDS: Final[Mapping[Kind, ListKind]] = {
    "resources": ListKind("resources/list", "resources", "uri"),
    "templates": ListKind("resources/templates/list", "resourceTemplates", "uriTemplate"),
    "prompts": ListKind("prompts/list", "prompts", "name"),
}


class ResourceOrigin(NamedTuple):
    """Where a thing really is."""

    upstream: str
    key: str


@dataclass(frozen=True, slots=True)
class MergedList:
    """The lists of all upstreams as one."""

    items: tuple[Segments, ...]
    """As they came, but for the keys that had to be changed."""
    places: Mapping[str, ResourceOrigin]


IsReserved = Callable[[str], bool]
"""Whether a name is one of the gateway's own."""


def _is_free(_name: str) -> bool:
    return False


def merge_lists(
    kind: Kind, listed: Iterable[tuple[str, Iterable[Buffer]]], is_reserved: IsReserved = _is_free
) -> MergedList:
    """One list of many.

    Args:
        kind: What is listed.
        listed: Each upstream's items, JSON objects, in the order of the configuration.
        is_reserved: An item with such a name gets its upstream's name as a prefix.
    """
    key = KINDS[kind].key
    items: list[Segments] = []
    places: dict[str, ResourceOrigin] = {}
    for upstream, raws in listed:
        for raw in raws:
            members = open_object(raw) or {}
            name = _text(members.get(key))
            if name is None:
                continue
            place = ResourceOrigin(upstream, name)
            own = assign_name(kind, place, places, is_reserved)
            if own in places:
                continue  # the same upstream lists it twice
            places[own] = place
            items.append((raw,) if own == name else object_of({**members, key: msgspec.json.encode(own)}))
    return MergedList(tuple(items), places)


def assign_name(
    kind: Kind, place: ResourceOrigin, places: Mapping[str, ResourceOrigin], is_reserved: IsReserved = _is_free
) -> str:
    """The name under which clients know a thing, or are to: its own, unless that is another's already."""
    name = place.key
    while is_reserved(name) or places.get(name, place) != place:
        name = prefix_name(kind, place.upstream, name)
    return name


def prefix_name(kind: Kind, upstream: str, key: str) -> str:
    """The name of a thing whose own name is another's already."""
    return f"{upstream}_{key}" if kind == "prompts" else f"{scheme_of(upstream)}+{key}"


def scheme_of(upstream: str) -> str:
    """An upstream's name as the beginning of a URI scheme (RFC 3986, section 3.1)."""
    safe = _UNSAFE.sub("-", upstream)
    return safe if safe[:1].isalpha() else f"u{safe}"


def _text(raw: Buffer | None) -> str | None:
    try:
        return None if raw is None else msgspec.json.decode(raw, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
