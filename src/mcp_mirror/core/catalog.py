"""All tools that we serve, by the names under which clients see them; and how long a client may keep lists of ours.

A table made anew from the upstreams' listings; it opens nothing and remembers nothing.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from mcp_mirror.callers import Caller
from mcp_mirror.core.capture import WRAPPER, CaptureRules
from mcp_mirror.core.naming import NO_NAMES, NameAllocator, Origin
from mcp_mirror.core.schema import EXECUTION, Schema, twin_of
from mcp_mirror.core.tool_inspection import InspectedTool, inspect_tool
from mcp_mirror.core.validation import Check, Cost
from mcp_mirror.paths import tool_label
from mcp_mirror.payload.floods import Steps
from mcp_mirror.security.pins import NO_PINS, Finding, Pins
from mcp_mirror.settings.policies import MirrorPolicy, ToolPolicy, UpstreamPolicy

_NAME: Final = 100
"""Characters of a tool's name that are told."""
_VIEWS: Final = 256
"""Sets of scopes for which it is kept what may be seen with them."""
_APP: Final = "ui"
_OLD_APP: Final = "ui/resourceUri"
"""What in a tool's `_meta` says that a view of an MCP App shows its results."""


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """One advertised tool and the upstream tool behind it."""

    name: str
    upstream: str
    tool: str
    advert: Schema
    schema: Schema
    """The upstream's own input schema."""
    rules: CaptureRules
    timeout: float | None
    headers: tuple[tuple[str, ...], ...]
    """Where the arguments stand that are mirrored into HTTP headers."""
    check: Check | None = field(repr=False)
    """Validates arguments on the event loop; None if that is too much work, or they are not validated."""
    cost: Cost | None = None
    """A bound on the work of validation; None if it may take exponential time."""
    is_validated: bool = True
    """Whether arguments are validated before they are sent."""
    is_repeatable: bool = False
    """It is marked read-only, and the user lets such calls be made once more where the connection is lost."""
    mirrored: bool = True
    """False: the original itself, beside its twin or instead of it; nothing is resolved and nothing captured."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is served, in a stable order: the upstreams' in the configuration, the tools' in their listings."""

    entries: Mapping[str, CatalogEntry]
    labels: frozenset[str]
    """The tool labels with which paths of ours begin."""
    problems: tuple[str, ...] = ()
    """What is wrong with tools, a sentence each, for an operator."""
    quarantined: Mapping[str, Finding] = field(default_factory=dict)
    """Tools that are not served, for they are not as they were pinned, by the names that they would have."""
    findings: tuple[Finding, ...] = ()
    """All that is not as it was pinned, served or not."""
    required: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The scopes that names take, served or not, of those that take any."""
    hidden: frozenset[str] = frozenset()
    """Names that are kept from whoever is shown this."""
    _views: dict[frozenset[str], "Catalog"] = field(init=False, default_factory=dict, compare=False, repr=False)

    def visible_to(self, caller: Caller) -> "Catalog":
        """What of it one may see whose token may not be good for all."""
        if not self.required or caller.scopes is None:
            return self
        if (view := self._views.get(caller.scopes)) is None:
            if len(self._views) >= _VIEWS:
                self._views.clear()
            view = self._views[caller.scopes] = self._without(
                frozenset(name for name, scopes in self.required.items() if not caller.has_scopes(scopes))
            )
        return view

    def _without(self, hidden: frozenset[str]) -> "Catalog":
        """Less these names, and less the labels of tools that have no other: what is stored is found without, too."""
        entries = {name: entry for name, entry in self.entries.items() if name not in hidden}
        origins = self.origins
        concealed = {tool_label(origins[name][1]) for name in hidden}
        return replace(
            self,
            entries=entries,
            labels=self.labels - (concealed - {tool_label(entry.tool) for entry in entries.values()}),
            quarantined={name: finding for name, finding in self.quarantined.items() if name not in hidden},
            hidden=hidden,
        )

    def header_schema(self, name: str) -> Schema | None:
        """The schema that says which arguments of a call stand in HTTP headers as well; None if none do.

        Twins mirror none: clients would put memory paths there.
        """
        entry = self.entries.get(name)
        return entry.advert["inputSchema"] if entry and entry.headers and not entry.mirrored else None

    @property
    def origins(self) -> Mapping[str, Origin]:
        """Whose each name is."""
        served = {name: (one.upstream, one.tool) for name, one in self.entries.items()}
        return served | {name: (one.change.upstream, str(one.change.tool)) for name, one in self.quarantined.items()}


@dataclass(frozen=True, slots=True)
class _Found:
    """A tool that is to be served."""

    policy: UpstreamPolicy
    examined: InspectedTool
    finding: Finding | None
    """In what it is not as it was pinned."""

    @property
    def name(self) -> str:
        """Its own."""
        return self.examined.name

    @property
    def origin(self) -> Origin:
        """Where it is from."""
        return self.policy.name, self.name


Listings = Iterable[tuple[UpstreamPolicy, Iterable[Mapping[str, Any] | InspectedTool]]]
"""Tools that were not examined yet are examined."""


@dataclass(frozen=True, slots=True)
class CatalogRules:
    """What a catalog is made by, beside the listings."""

    mirror: MirrorPolicy
    """How twins look."""
    reserved: Collection[str] = ()
    """Names of our own tools, which no upstream's can take."""
    transparent: bool = False
    """List only the originals, under their own names where no two are the same."""
    pins: Pins = NO_PINS
    """What the tools' definitions were, and what is done with those that differ."""
    held: Mapping[str, Origin] = field(default_factory=lambda: NO_NAMES)
    """Names that are one tool's and can be no other's."""

    @property
    def kinds(self) -> tuple[bool, ...]:
        """Whether twins are listed (True), originals (False), or both."""
        both = (True, False) if self.mirror.expose_originals and self.mirror.suffix else (True,)
        return (False,) if self.transparent else both


def build_catalog(listings: Listings, rules: CatalogRules) -> Steps[Catalog]:
    """The catalog of these listings, in steps of one tool.

    Args:
        listings: Each upstream that is connected, with its tools as it lists them.
        rules: What it is made by.
    """
    problems: list[str] = []
    given = [(policy, tuple(tools)) for policy, tools in listings]
    found: list[_Found] = []
    for policy, tools in given:
        found += yield from _admitted(policy, tools, rules.pins, problems)
    pinned = rules.pins.pinned_tools(policy for policy, _ in given)
    entries: dict[str, CatalogEntry] = {}
    quarantined: dict[str, Finding] = {}
    names = NameAllocator(rules.reserved, rules.held)
    for mirrored in rules.kinds:
        named = yield from _names_of(
            found, pinned, names, rules.mirror.suffix if mirrored else "", keep=rules.transparent
        )
        for one in found:
            yield
            if not mirrored and not rules.transparent and not one.policy.preview:
                continue  # what an original answers would be shown
            name = named[one.origin]
            if one.finding and one.finding.is_blocked:
                quarantined[name] = one.finding
            else:
                entries[name] = _entry(one, name, rules.mirror, mirrored=mirrored)
    findings = tuple(one.finding for one in found if one.finding)
    labels: set[str] = set()
    for one in found:
        yield
        labels.add(tool_label(one.name))
    return (yield from _scoped(Catalog(entries, frozenset(labels), tuple(problems), quarantined, findings), found))


def _scoped(catalog: Catalog, found: Iterable[_Found]) -> Steps[Catalog]:
    """With the scopes that its names take."""
    scopes: dict[Origin, frozenset[str]] = {}
    for one in found:
        yield
        scopes[one.origin] = one.policy.scopes_of(one.name)
    return replace(catalog, required={name: scopes[one] for name, one in catalog.origins.items() if scopes[one]})


def _names_of(
    found: Iterable[_Found], pinned: Collection[Origin], names: NameAllocator, suffix: str, *, keep: bool
) -> Steps[Mapping[Origin, str]]:
    """What each tool is called. What is not pinned changes no name of what is, and of what was and has gone."""
    known = frozenset(pinned)
    new = [one.origin for one in found if one.origin not in known]
    named: dict[Origin, str] = {}
    for group in (pinned, new):
        named |= names.keep_original_names(group) if keep else {}
        for one, name in names.allocate([one for one in group if one not in named], suffix, tuple(named)):
            yield
            named[one] = name
    return named


def _admitted(
    policy: UpstreamPolicy, tools: Iterable[Mapping[str, Any] | InspectedTool], pins: Pins, problems: list[str]
) -> Steps[list[_Found]]:
    admitted: dict[str, _Found] = {}
    for tool in tools:
        yield
        examined = tool if isinstance(tool, InspectedTool) else InspectedTool(tool)
        if not (name := examined.name):
            problems.append(f"Upstream {policy.name!r} lists a tool without a usable name: it is not served.")
        elif name in admitted:
            problems.append(f"Upstream {policy.name!r} lists tool {_told(name)} twice: the first is served.")
        elif policy.admits(name):
            examined = examined if examined is tool else inspect_tool(examined.raw, policy.bounds)
            if examined.rejection:
                why = examined.rejection
                problems.append(f"Upstream {policy.name!r} lists tool {_told(name)}, which is not served: {why}.")
                continue
            if len(admitted) == policy.bounds.max_tools:
                most = f"`limits.max_tools` ({len(admitted):,})"
                problems.append(f"Upstream {policy.name!r} lists more tools than {most}: those after are not served.")
                break
            problems += _problems_of(policy, examined)
            admitted[name] = _Found(policy, examined, pins.judge(policy, name, examined.raw))
    return list(admitted.values())


def _told(name: str) -> str:
    return repr(name if len(name) <= _NAME else f"{name[:_NAME]}...")


def _problems_of(policy: UpstreamPolicy, examined: InspectedTool) -> Iterator[str]:
    of = f"Tool {_told(examined.name)} of upstream {policy.name!r}"
    if examined.invalid_members:
        yield f"{of}: its {', '.join(examined.invalid_members)} cannot be passed on."
    if examined.schema_error:
        yield f"{of}: {examined.schema_error}; its arguments are passed on unchecked."


_ANY: Final[Schema] = {"type": "object"}


def _entry(one: _Found, name: str, mirror: MirrorPolicy, *, mirrored: bool) -> CatalogEntry:
    examined, policy = one.examined, one.policy.tool_policy(one.name)
    described = {} if policy.description is None else {"description": policy.description}
    original = {**examined.valid_members, **described, "name": name, "inputSchema": _own_schema(examined)}
    original.pop(EXECUTION, None)
    twin = twin_of(examined.valid_members, name, examined.twin_schema, policy.description)
    return CatalogEntry(
        name=name,
        upstream=one.policy.name,
        tool=one.name,
        advert=twin if mirrored else original,
        schema=examined.schema,
        rules=_rules(one, mirror, policy),
        timeout=policy.timeout,
        headers=examined.headers,
        check=examined.check,
        cost=examined.cost,
        is_validated=examined.is_validated,
        is_repeatable=one.policy.repeat_read_only and _is_read_only(examined.raw),
        mirrored=mirrored,
    )


def _is_read_only(raw: Mapping[str, Any]) -> bool:
    annotations = raw.get("annotations")
    return isinstance(annotations, Mapping) and annotations.get("readOnlyHint") is True


def _own_schema(examined: InspectedTool) -> Schema:
    """As the upstream wrote it, wherever clients take it: some drop the whole list for one without an object's type."""
    schema = examined.raw.get("inputSchema")
    return schema if isinstance(schema, dict) and schema.get("type") == "object" else _ANY | examined.schema


def _rules(one: _Found, mirror: MirrorPolicy, policy: ToolPolicy) -> CaptureRules:
    output = one.examined.raw.get("outputSchema")
    return CaptureRules(
        mode=policy.capture or ("never" if _is_app(one.examined.raw.get("_meta")) else mirror.capture),
        inline_budget=mirror.inline_budget if policy.inline_budget is None else policy.inline_budget,
        error_budget=mirror.error_budget,
        wrapped=isinstance(output, dict) and _wraps(output, one.name),
        preview=one.policy.preview,
    )


def _is_app(meta: object) -> bool:
    """Whether a view shows the results, which needs them themselves."""
    return isinstance(meta, Mapping) and bool(meta.get(_APP) or meta.get(_OLD_APP))


def _wraps(output: Schema, tool: str) -> bool:
    """Whether structured content is `{"result": x}` only because it must be an object.

    FastMCP marks such schemas. The Python SDK does not, but gives them their own shape and title.
    """
    sdk = output.get("title") == f"{tool}Output" and output.get("required") == ["result"]
    return output.get(WRAPPER) is True or (sdk and list(output.get("properties") or ()) == ["result"])


def join_cache_hints(hints: Iterable[tuple[int | None, str | None]]) -> tuple[int, str]:
    """How long a list that is put together from several may be kept, and by whom: no longer than any of them.

    Args:
        hints: The milliseconds (`ttlMs`) and the scope (`cacheScope`) of each, as far as it says them.

    Returns:
        The shortest time, where none or a negative one is 0; `public` if all say so, else `private`.
    """
    said = tuple(hints)
    shortest = min((max(time or 0, 0) for time, _ in said), default=0)
    return shortest, "public" if said and all(scope == "public" for _, scope in said) else "private"
