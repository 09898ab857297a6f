"""The catalog: all served tools by the names under which clients see them.

A catalog is built from the upstreams' listings; it is immutable and has no connection.
"""

import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import msgspec

from mcp_mirror.callers import Caller
from mcp_mirror.core.amounts import quote_name
from mcp_mirror.core.naming import NO_NAMES, NameAllocator, Origin
from mcp_mirror.core.results.capture import CaptureRules
from mcp_mirror.core.results.parsed_result import WRAPPER
from mcp_mirror.core.schemas.listed_members import make_properties_readable
from mcp_mirror.core.schemas.references import Schema
from mcp_mirror.core.schemas.tool_inspection import InspectedTool, inspect_tool
from mcp_mirror.core.schemas.twin_schemas import EXECUTION, build_twin
from mcp_mirror.core.tool_index import IndexedTool, ToolIndex, build_index
from mcp_mirror.paths import tool_slug
from mcp_mirror.security.pins import NO_PINS, Finding, Pins
from mcp_mirror.settings.policies import MirrorPolicy, TokenProvider
from mcp_mirror.settings.upstreams import ToolPolicy, UpstreamPolicy
from mcp_mirror.system.patterns import lazy_pattern
from mcp_mirror.system.slices import Steps
from mcp_mirror.tokens import expected_estimator

_ANY_NAME: Final = lazy_pattern(".*", re.DOTALL)
_MCP_NAME: Final = lazy_pattern("[A-Za-z0-9_./-]{1,128}")
"""Names of tools as MCP defines them (2025-11-25, "Tool Names"), and with slashes, which earlier servers use."""
_MAX_NAME: Final = 100
"""Characters of a tool's name in a message."""
_MAX_VIEWS: Final = 256
"""Sets of scopes whose views of the catalog are cached."""
_PIECE_BYTES: Final = 1 << 18
"""Bytes after which the definitions of tools continue in another piece."""
_APP_KEY: Final = "ui"
_OLD_APP_KEY: Final = "ui/resourceUri"
"""Members of a tool's `_meta` that name the view of an MCP App for its results."""


class CatalogEntry(msgspec.Struct, frozen=True, gc=False):
    """An advertised tool and the upstream tool behind it."""

    name: str
    upstream: str
    tool: str
    advert: Schema
    inspected: InspectedTool
    """The upstream's definition."""
    rules: CaptureRules
    timeout: float | None
    is_repeatable: bool = False
    """The tool is annotated as read-only, and the configuration allows repeating such calls after a lost connection."""
    has_view: bool = False
    """An MCP App shows the results, and no override says how to capture them: they are whole for clients with views."""
    is_always_listed: bool = False
    """Whether clients see the tool also where they search for the others."""
    is_twin: bool = True
    """False: the original tool, for which the gateway resolves and captures nothing."""

    @property
    def schema(self) -> Schema:
        """The upstream's own input schema."""
        return self.inspected.schema


@dataclass(frozen=True)
class Catalog:
    """The served tools in a stable order: upstreams as configured, tools as listed."""

    entries: Mapping[str, CatalogEntry]
    slugs: frozenset[str]
    """The slugs of this gateway's memory paths."""
    problems: tuple[str, ...] = ()
    """Problems of tools, one sentence each, for an operator."""
    quarantined: Mapping[str, Finding] = field(default_factory=dict)
    """Tools that differ from their pins and are not served, by the names that they would have."""
    findings: tuple[Finding, ...] = ()
    """All differences from the pins, of served and blocked tools."""
    required: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """The required scopes by name, of served and blocked tools that require any."""
    hidden_names: frozenset[str] = frozenset()
    """Names that this view hides from the caller."""
    origins: Mapping[str, Origin] = field(default_factory=dict)
    """The upstream and tool behind each name, of served and blocked tools."""
    _views: dict[frozenset[str], "Catalog"] = field(init=False, default_factory=dict, compare=False, repr=False)
    _of_upstreams: dict[str, "Catalog"] = field(init=False, default_factory=dict, compare=False, repr=False)
    """The results of `of_upstream` that are known."""
    _encoded: list[tuple[bytes, ...]] = field(init=False, default_factory=list, compare=False, repr=False)
    """The result of `encode_adverts` once it is known."""
    _tokens: dict[TokenProvider, int] = field(init=False, default_factory=dict, compare=False, repr=False)
    """The results of `count_tokens` that are known."""
    _indexes: dict[frozenset[str], ToolIndex] = field(init=False, default_factory=dict, compare=False, repr=False)
    """The results of `build_index` that are known, by the names of the own tools in them."""

    def encode_adverts(self) -> Steps[tuple[bytes, ...]]:
        """Return the definitions of the tools, JSON objects separated by commas, as few pieces.

        They are encoded once, in steps of one tool.
        """
        if not self._encoded:
            pieces: list[bytes] = []
            pending = bytearray()
            for entry in self.entries.values():
                yield
                pending += b"," if pending else b""
                pending += msgspec.json.encode(entry.advert)
                if len(pending) > _PIECE_BYTES:
                    pieces.append(bytes(pending))
                    pending.clear()
            self._encoded.append((*pieces, bytes(pending)) if pending else tuple(pieces))
        return self._encoded[0]

    @cached_property
    def always_listed(self) -> "Catalog":
        """The part of the catalog that clients see where they search for the other tools."""
        return replace(self, entries={name: entry for name, entry in self.entries.items() if entry.is_always_listed})

    def count_tokens(self, provider: TokenProvider) -> Steps[int]:
        """Return the expected tokens of the definitions. They are counted once per provider, in steps of one tool."""
        if provider not in self._tokens:
            pieces = yield from self.encode_adverts()
            estimate = expected_estimator(provider)
            self._tokens[provider] = sum(estimate(piece) for piece in pieces)
        return self._tokens[provider]

    def build_index(self, own_tools: Mapping[str, IndexedTool]) -> Steps[ToolIndex]:
        """Return an index for searches of the tools and of own tools of the gateway.

        It is built once for the names of the own tools, in steps of one tool.
        """
        names = frozenset(own_tools)
        if names not in self._indexes:
            entries = self.entries.values()
            # An original beside its twin would be a second match for the same searches.
            twins = [entry for entry in entries if entry.is_twin]
            self._indexes[names] = yield from build_index([*(twins or entries), *own_tools.values()])
        return self._indexes[names]

    def visible_to(self, caller: Caller) -> "Catalog":
        """The view of the catalog for a caller whose token may lack scopes."""
        if not self.required or caller.scopes is None:
            return self
        if (view := self._views.get(caller.scopes)) is None:
            if len(self._views) >= _MAX_VIEWS:
                self._views.clear()
            hidden = frozenset(name for name, scopes in self.required.items() if not caller.has_scopes(scopes))
            # Equal views share their encoded definitions and their index.
            equal = (known for known in (self, *self._views.values()) if known.hidden_names == hidden)
            view = self._views[caller.scopes] = next(equal, None) or self._without(hidden)
        return view

    def of_upstream(self, upstream: str, reserved: Collection[str]) -> "Catalog":
        """Only the tools of one upstream, under the upstream's own names where MCP allows these.

        `reserved` has the names of the gateway's own tools, which no tool gets.
        """
        if upstream not in self._of_upstreams:
            self._of_upstreams[upstream] = self._select_upstream(upstream, reserved)
        return self._of_upstreams[upstream]

    def _select_upstream(self, upstream: str, reserved: Collection[str]) -> "Catalog":
        own = {name: origin for name, origin in self.origins.items() if origin[0] == upstream}
        twins = {name for name in own if name in self.entries and self.entries[name].is_twin}
        chosen = {own[name]: name for name in own if not twins or name in twins or name in self.quarantined}
        allocator = NameAllocator(reserved)
        keeps = _MCP_NAME if twins else _ANY_NAME
        kept = allocator.keep_original_names([origin for origin in chosen if keeps.fullmatch(origin[1])])
        renamed = kept | dict(allocator.allocate([origin for origin in chosen if origin not in kept], "", tuple(kept)))
        names = {name: renamed[origin] for origin, name in chosen.items()}
        return replace(
            self,
            entries={
                names[name]: msgspec.structs.replace(
                    entry, name=names[name], advert={**entry.advert, "name": names[name]}
                )
                for name, entry in self.entries.items()
                if name in names
            },
            quarantined={names[name]: one for name, one in self.quarantined.items() if name in names},
            required={names[name]: scopes for name, scopes in self.required.items() if name in names},
            origins={names[name]: origin for origin, name in chosen.items()},
        )

    def _without(self, hidden: frozenset[str]) -> "Catalog":
        """The catalog without these names and without the slugs that only their tools have."""
        entries = {name: entry for name, entry in self.entries.items() if name not in hidden}
        hidden_slugs = {tool_slug(self.origins[name][1]) for name in hidden}
        return replace(
            self,
            entries=entries,
            slugs=self.slugs - (hidden_slugs - {tool_slug(entry.tool) for entry in entries.values()}),
            quarantined={name: finding for name, finding in self.quarantined.items() if name not in hidden},
            hidden_names=hidden,
            origins={name: origin for name, origin in self.origins.items() if name not in hidden},
        )

    def header_schema(self, name: str) -> Schema | None:
        """The schema that marks the arguments that clients also send in HTTP headers; None if there are none.

        Twins have none: clients would put memory paths into headers.
        """
        entry = self.entries.get(name)
        return entry.advert["inputSchema"] if entry and entry.inspected.headers and not entry.is_twin else None


class _ListedTool(msgspec.Struct, frozen=True):
    """A tool that the catalog will contain."""

    origin: Origin
    """The upstream and the tool's own name."""
    policy: UpstreamPolicy
    inspected: InspectedTool
    finding: Finding | None
    """Its difference from its pin."""


Listings = Iterable[tuple[UpstreamPolicy, Iterable[Mapping[str, Any] | InspectedTool]]]
"""Tools may be raw definitions or inspected tools; raw definitions are inspected."""


class CatalogRules(msgspec.Struct, frozen=True):
    """The settings from which a catalog is built."""

    mirror: MirrorPolicy
    """How twins are advertised."""
    reserved: Collection[str] = ()
    """Names of the gateway's own tools, which no upstream tool gets."""
    is_transparent: bool = False
    """Serve only the originals, under their own names where these are unique."""
    wraps: bool = False
    """The gateway replaces one server in its client: without a suffix, the names that MCP allows stay as they are."""
    pins: Pins = NO_PINS
    """The pinned definitions and the policy for tools that differ."""
    owned_names: Mapping[str, Origin] = msgspec.field(default_factory=lambda: NO_NAMES)
    """Names that belong to a tool and are not given to another one."""

    @property
    def keeps(self) -> re.Pattern[str] | None:
        """The own names of tools that stay as they are; None: clients see names that every client accepts."""
        if self.is_transparent:
            return _ANY_NAME
        return _MCP_NAME if self.wraps and not self.mirror.suffix else None

    @property
    def kinds(self) -> tuple[bool, ...]:
        """Whether to list twins (True), originals (False), or both."""
        both = (True, False) if self.mirror.expose_originals and self.mirror.suffix else (True,)
        return (False,) if self.is_transparent else both


def build_catalog(listings: Listings, rules: CatalogRules) -> Steps[Catalog]:
    """Build the catalog from the tools of each connected upstream, in steps of one tool."""
    problems: list[str] = []
    given = [(policy, tuple(tools)) for policy, tools in listings]
    listed: list[_ListedTool] = []
    for policy, tools in given:
        selected, found = yield from _select_tools(policy, tools, rules.pins)
        listed += selected
        problems += found
    pinned = rules.pins.pinned_tools(policy for policy, _ in given)
    entries: dict[str, CatalogEntry] = {}
    slugs: set[str] = set()
    quarantined: dict[str, Finding] = {}
    origins: dict[str, Origin] = {}
    required: dict[str, frozenset[str]] = {}
    names = NameAllocator(rules.reserved, rules.owned_names)
    for is_twin in rules.kinds:
        named = yield from _name_tools(listed, pinned, names, rules.mirror.suffix if is_twin else "", rules.keeps)
        for tool in listed:
            yield
            slugs.add(tool_slug(tool.inspected.name))
            if not is_twin and not rules.is_transparent and not tool.policy.preview:
                continue  # an original would show its results
            name = named[tool.origin]
            origins[name] = tool.origin
            if scopes := tool.policy.scopes_of(tool.inspected.name):
                required[name] = scopes
            if tool.finding and tool.finding.is_blocked:
                quarantined[name] = tool.finding
            else:
                entries[name] = _build_entry(tool, name, rules.mirror, is_twin=is_twin)
    findings = tuple(tool.finding for tool in listed if tool.finding)
    return Catalog(entries, frozenset(slugs), tuple(problems), quarantined, findings, required, origins=origins)


def _name_tools(
    tools: Iterable[_ListedTool],
    pinned: Collection[Origin],
    names: NameAllocator,
    suffix: str,
    keeps: re.Pattern[str] | None,
) -> Steps[Mapping[Origin, str]]:
    """The name of each tool. Tools without a pin never change the names of pinned tools, present or absent."""
    known = frozenset(pinned)
    new: list[Origin] = []
    for tool in tools:
        yield
        if tool.origin not in known:
            new.append(tool.origin)
    named: dict[Origin, str] = {}
    for group in (pinned, new):
        named |= names.keep_original_names([origin for origin in group if keeps.fullmatch(origin[1])]) if keeps else {}
        for origin, name in names.allocate([origin for origin in group if origin not in named], suffix, tuple(named)):
            yield
            named[origin] = name
    return named


def _select_tools(
    policy: UpstreamPolicy, tools: Iterable[Mapping[str, Any] | InspectedTool], pins: Pins
) -> Steps[tuple[Iterable[_ListedTool], list[str]]]:
    """Return the tools of an upstream that the gateway serves, and a sentence about each problem."""
    selected: dict[str, _ListedTool] = {}
    problems: list[str] = []
    for tool in tools:
        yield
        inspected = tool if isinstance(tool, InspectedTool) else InspectedTool(tool)
        name = inspected.name
        beginning = f"Upstream {policy.name!r} lists tool {quote_name(name, _MAX_NAME)}"
        if not name:
            problems.append(
                f"Upstream {policy.name!r} lists a tool without a usable name. The gateway does not serve the tool."
            )
        elif name in selected:
            problems.append(f"{beginning} twice. The gateway serves the first one.")
        elif policy.admits(name):
            inspected = inspected if inspected is tool else inspect_tool(inspected.raw, policy.bounds)
            if inspected.rejection:
                problems.append(f"{beginning}, which the gateway does not serve: {inspected.rejection}.")
                continue
            if len(selected) == policy.bounds.max_tools:
                most = f"`limits.max_tools` ({len(selected):,})"
                problems.append(
                    f"Upstream {policy.name!r} lists more tools than {most}. The gateway does not serve the rest."
                )
                break
            problems += _find_problems(policy, inspected)
            finding = pins.check_tool(policy, name, inspected.raw)
            selected[name] = _ListedTool((policy.name, name), policy, inspected, finding)
    return selected.values(), problems


def _find_problems(policy: UpstreamPolicy, inspected: InspectedTool) -> Iterator[str]:
    of = f"Tool {quote_name(inspected.name, _MAX_NAME)} of upstream {policy.name!r}"
    if inspected.invalid_members:
        yield f"{of}: its {', '.join(inspected.invalid_members)} cannot be passed on."
    if inspected.schema_error:
        yield f"{of}: {inspected.schema_error}; the gateway does not validate its arguments."


_ANY: Final[Schema] = {"type": "object"}
_SCHEMAS: Final = ("inputSchema", "outputSchema")


def _build_entry(tool: _ListedTool, name: str, mirror: MirrorPolicy, *, is_twin: bool) -> CatalogEntry:
    inspected, policy = tool.inspected, tool.policy.tool_policy(tool.inspected.name)
    if is_twin:
        advert = build_twin(inspected.valid_members, name, inspected.twin_schema, policy.description)
    else:
        advert = _build_original(inspected, name, policy.description)
    return CatalogEntry(
        name=name,
        upstream=tool.policy.name,
        tool=inspected.name,
        advert=advert,
        inspected=inspected,
        rules=_capture_rules(tool, mirror, policy),
        timeout=policy.timeout,
        is_repeatable=tool.policy.repeat_read_only and is_read_only(inspected.raw),
        has_view=policy.capture is None and _has_view(inspected.raw.get("_meta")),
        is_always_listed=policy.listed is True,
        is_twin=is_twin,
    )


def is_read_only(definition: Mapping[str, Any]) -> bool:
    """Whether a tool's annotations say that it changes nothing."""
    annotations = definition.get("annotations")
    return isinstance(annotations, Mapping) and annotations.get("readOnlyHint") is True


def _build_original(inspected: InspectedTool, name: str, description: str | None) -> Schema:
    """The advertised definition of an original. `description` replaces the tool's, unless it is None.

    The input schema has the type object, because some clients drop the whole list for any other.
    """
    schema = inspected.raw.get("inputSchema")
    is_for_object = isinstance(schema, dict) and schema.get("type") == "object"
    described = {} if description is None else {"description": description}
    input_schema = schema if is_for_object else _ANY | inspected.schema
    original = {**inspected.valid_members, **described, "name": name, "inputSchema": input_schema}
    original.pop(EXECUTION, None)
    return original | {word: make_properties_readable(original[word]) for word in _SCHEMAS if word in original}


def _capture_rules(tool: _ListedTool, mirror: MirrorPolicy, policy: ToolPolicy) -> CaptureRules:
    output = tool.inspected.raw.get("outputSchema")
    return CaptureRules(
        mode=policy.capture or mirror.capture,
        inline_budget=mirror.inline_budget if policy.inline_budget is None else policy.inline_budget,
        error_budget=mirror.error_budget,
        is_wrapped=isinstance(output, dict) and _is_wrapper_schema(output, tool.inspected.name),
        preview=tool.policy.preview,
    )


def _has_view(meta: object) -> bool:
    """Whether a tool has a view of an MCP App, which needs the original results."""
    return isinstance(meta, Mapping) and bool(meta.get(_APP_KEY) or meta.get(_OLD_APP_KEY))


def _is_wrapper_schema(output: Schema, tool: str) -> bool:
    """Whether structured content is `{"result": x}` only because it must be an object.

    FastMCP marks such schemas. The Python SDK does not, but gives them a fixed shape and title.
    """
    sdk = output.get("title") == f"{tool}Output" and output.get("required") == ["result"]
    return output.get(WRAPPER) is True or (sdk and list(output.get("properties") or ()) == ["result"])
