"""The sections about flows as policies, and the rules that hold between their keys."""

from collections.abc import Iterator
from typing import Final

from mcp_mirror.config.flows import FilesPlaceSection, FlowsSection, ModelPlaceSection, UpstreamPlaceSection
from mcp_mirror.config.models import ConfigFile
from mcp_mirror.config.source import Findings, Items, Node, Table
from mcp_mirror.security.flows import DEFAULT_ZONE, read_rule
from mcp_mirror.settings.labels import WORDS, ZONE, Accepts, FlowRule, FlowsPolicy, PlacePolicy

_GLOB: Final = frozenset("*?[")

Place = tuple[str, ...]
"""The keys to a place in the file."""


def read_flows(section: FlowsSection) -> FlowsPolicy:
    """What may flow where."""
    return FlowsPolicy(
        levels=section.levels,
        default=section.default,
        allow=_rules(section.allow),
        deny=_rules(section.deny),
        on_refusal=section.on_refusal,
        model=read_place(section.model),
        files=read_place(section.files),
    )


def read_place(section: ModelPlaceSection) -> PlacePolicy:
    """What a place gives and takes."""
    accepts = section.accepts
    return PlacePolicy(
        integrity=section.labels.integrity,
        confidentiality=section.labels.confidentiality,
        accepts=Accepts(accepts.integrity, accepts.confidentiality, accepts.sources),
        zone=section.zone if isinstance(section, FilesPlaceSection) else None,
        may_lower=section.may_lower if isinstance(section, UpstreamPlaceSection) else "nothing",
    )


def _rules(texts: tuple[str, ...]) -> tuple[FlowRule, ...]:
    return tuple(rule for text in texts if (rule := read_rule(text)))


def check_flows(file: ConfigFile, root: Table, names: set[str], findings: Findings) -> None:
    """Tell what does not go together.

    Args:
        file: What was read.
        root: Where it stands.
        names: All upstreams', also of those that are left out.
        findings: Told.
    """
    places: dict[Place, ModelPlaceSection] = {
        ("flows", "model"): file.flows.model,
        ("flows", "files"): file.flows.files,
        **{("upstreams", name): one for name, one in file.upstreams.items()},
    }
    sides = tuple(_sides(file, places))
    for at, complaint in (*_wrong_levels(file, places), *_wrong_names(sides, places, names), *_unclear(sides, names)):
        findings.problem(_node(root, at).place, complaint)


def _wrong_levels(file: ConfigFile, places: dict[Place, ModelPlaceSection]) -> Iterator[tuple[Place, str]]:
    levels = file.flows.levels
    if len(set(levels)) < len(levels):
        yield ("flows", "levels"), "wanted each level once"
    for at, place in places.items():
        for key, said in (("labels", place.labels.confidentiality), ("accepts", place.accepts.confidentiality)):
            if said is not None and said not in levels:
                yield (*at, key, "confidentiality"), f"wanted one of 'flows.levels': {', '.join(levels)}"


def _sides(file: ConfigFile, places: dict[Place, ModelPlaceSection]) -> Iterator[tuple[Place, str]]:
    """Everything that names places, and where it stands."""
    for key, texts in (("allow", file.flows.allow), ("deny", file.flows.deny)):
        for at, rule in enumerate(_rules(texts)):
            yield from ((("flows", key, str(at)), side) for side in rule)
    for place, section in places.items():
        yield from (
            ((*place, "accepts", "sources", str(at)), side) for at, side in enumerate(section.accepts.sources or ())
        )


def _wrong_names(
    sides: tuple[tuple[Place, str], ...], places: dict[Place, ModelPlaceSection], names: set[str]
) -> Iterator[tuple[Place, str]]:
    """A rule that names nobody binds nobody: a mistyped one would let everything pass."""
    known = {*names, *WORDS, *WORDS.values()}
    zones = {one.zone for one in places.values() if isinstance(one, FilesPlaceSection) and one.zone}
    for at, side in sides:
        zone = side.removeprefix(ZONE) if side.startswith(ZONE) else None
        if zone is not None and zone not in {DEFAULT_ZONE, *zones, *names}:
            yield at, f"there is no zone '{zone}'; wanted {ZONE} and one of {', '.join(sorted(zones)) or 'none'}"
        elif zone is None and side not in known and not _GLOB & set(side):
            yield at, f"there is no upstream '{side}'; wanted one of {', '.join(sorted(known))}, or a glob"


def _unclear(sides: tuple[tuple[Place, str], ...], names: set[str]) -> Iterator[tuple[Place, str]]:
    """A rule that was taken to be for another place would let pass what it is there to refuse."""
    for at, side in sides:
        if side in WORDS and side in names:
            upstream = f"[{side[0]}]{side[1:]}"
            yield at, f"'{side}' is an upstream and more; write '{upstream}' for that, or '{WORDS[side]}'"


def _node(node: Node, keys: Place) -> Node:
    for key in keys:
        if isinstance(node, Table) and key in node.members:
            node = node.members[key]
        elif isinstance(node, Items) and key.isdecimal() and int(key) < len(node.nodes):
            node = node.nodes[int(key)]
    return node
