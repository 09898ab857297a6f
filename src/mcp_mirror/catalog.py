"""All tools that we serve, by the names under which clients see them; and how long a client may keep lists of ours.

A table made anew from the upstreams' listings; it opens nothing and remembers nothing.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import mcp_types as types
from pydantic import ValidationError

from mcp_mirror.capture import WRAPPER, CaptureRules
from mcp_mirror.paths import tool_label
from mcp_mirror.policies import MirrorPolicy, ToolPolicy, UpstreamPolicy
from mcp_mirror.schema import EXECUTION, Schema, compile_check, fit_name, header_locations, twin_of

_APP: Final = "ui"
_OLD_APP: Final = "ui/resourceUri"
"""What in a tool's `_meta` says that a view of an MCP App shows its results."""


@dataclass(frozen=True, slots=True)
class Entry:
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
    check: Callable[[Any], str | None] = field(repr=False)
    may_repeat: bool = False
    """It is marked read-only, and the user lets such calls be made once more where the connection is lost."""
    mirrored: bool = True
    """False: the original itself, beside its twin or instead of it; nothing is resolved and nothing captured."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is served, in a stable order: the upstreams' in the configuration, the tools' in their listings."""

    entries: Mapping[str, Entry]
    labels: frozenset[str]
    """The tool labels with which paths of ours begin."""
    problems: tuple[str, ...] = ()
    """What is wrong with tools, a sentence each, for an operator."""

    def header_schema(self, name: str) -> Schema | None:
        """The schema that says which arguments of a call stand in HTTP headers as well; None if none do.

        Twins mirror none: clients would put memory paths there.
        """
        entry = self.entries.get(name)
        return entry.advert["inputSchema"] if entry and entry.headers and not entry.mirrored else None


@dataclass(frozen=True, slots=True)
class _Found:
    """A tool that is to be served, looked through once."""

    policy: UpstreamPolicy
    name: str
    raw: Mapping[str, Any]
    schema: Schema
    check: Callable[[Any], str | None]


Listings = Iterable[tuple[UpstreamPolicy, Iterable[Mapping[str, Any]]]]


def build_catalog(
    listings: Listings, mirror: MirrorPolicy, reserved: Collection[str], *, transparent: bool = False
) -> Catalog:
    """The catalog of these listings.

    Args:
        listings: Each upstream that is connected, with its tools as it lists them.
        mirror: How twins look.
        reserved: Names of our own tools, which no upstream's can take.
        transparent: List the originals alone, under their own names where no two are the same.
    """
    problems: list[str] = []
    found = [one for policy, tools in listings for one in _admitted(policy, tools, problems)]
    shared = {name for name, times in Counter(one.name for one in found).items() if times > 1}
    entries: dict[str, Entry] = {}
    own = {one.name for one in found} - shared - set(reserved) if transparent else set()
    kinds = (True, False) if mirror.expose_originals and mirror.suffix else (True,)
    for mirrored in (False,) if transparent else kinds:
        for one in found:
            suffix, taken = mirror.suffix if mirrored else "", (entries, reserved, own)
            name = one.name if one.name in own else _free_name(one, suffix, one.name in shared, taken)
            entries[name] = _entry(one, name, mirror, mirrored=mirrored)
    return Catalog(entries, frozenset(tool_label(one.name) for one in found), tuple(problems))


def _admitted(policy: UpstreamPolicy, tools: Iterable[Mapping[str, Any]], problems: list[str]) -> list[_Found]:
    admitted: dict[str, _Found] = {}
    for raw in tools:
        name = raw.get("name")
        if not isinstance(name, str) or not name:
            problems.append(f"Upstream {policy.name!r} lists a tool without a usable name: it is not served.")
        elif name in admitted:
            problems.append(f"Upstream {policy.name!r} lists tool {name!r} twice: the first is served.")
        elif not policy.admits(name):
            continue
        else:
            admitted[name] = _look_through(policy, name, raw, problems)
    return list(admitted.values())


def _look_through(policy: UpstreamPolicy, name: str, raw: Mapping[str, Any], problems: list[str]) -> _Found:
    """A tool without what clients could not take: one odd tool would cost them the whole list."""
    spoilt = _spoilt_members(raw)
    if spoilt:
        problems.append(f"Tool {name!r} of upstream {policy.name!r}: its {', '.join(spoilt)} cannot be passed on.")
    schema, check, wrong = _schema_of(raw)
    if wrong:
        problems.append(f"Tool {name!r} of upstream {policy.name!r}: {wrong}; its arguments are passed on unchecked.")
    kept = {key: value for key, value in raw.items() if key not in spoilt}
    return _Found(policy, name, kept, schema, check)


def _spoilt_members(raw: Mapping[str, Any]) -> list[str]:
    try:
        types.Tool.model_validate({**raw, "inputSchema": {"type": "object"}}, by_name=False)
    except ValidationError as error:
        return sorted({str(found["loc"][0]) for found in error.errors(include_url=False, include_input=False)})
    return []


def _schema_of(raw: Mapping[str, Any]) -> tuple[Schema, Callable[[Any], str | None], str | None]:
    """A tool's schema with its check, and what is wrong with it; one that is broken gives way to any object."""
    schema = raw.get("inputSchema")
    if not isinstance(schema, dict):
        return dict(_ANY), _anything, "it has no input schema"
    try:
        return schema, compile_check(schema), None
    except ValueError as error:
        return dict(_ANY), _anything, str(error).rstrip(".")


_ANY: Final[Schema] = {"type": "object"}


def _anything(_: Any) -> str | None:
    return None


def _free_name(one: _Found, suffix: str, shared: bool, taken: tuple[Collection[str], ...]) -> str:  # noqa: FBT001
    """The name that the tool gets: with its upstream's before it where two share one, with a number where all fails."""
    name = fit_name(one.name, suffix, one.policy.name if shared else "")
    for salt in count(1):
        if not any(name in names for names in taken):
            break
        name = fit_name(one.name if salt == 1 else f"{one.name}{salt}", suffix, one.policy.name)
    return name


def _entry(one: _Found, name: str, mirror: MirrorPolicy, *, mirrored: bool) -> Entry:
    policy = one.policy.tool_policy(one.name)
    described = {} if policy.description is None else {"description": policy.description}
    original = {**one.raw, **described, "name": name, "inputSchema": _own_schema(one)}
    original.pop(EXECUTION, None)
    return Entry(
        name=name,
        upstream=one.policy.name,
        tool=one.name,
        advert=twin_of(one.raw, name, one.schema, policy.description) if mirrored else original,
        schema=one.schema,
        rules=_rules(one, mirror, policy),
        timeout=policy.timeout,
        headers=header_locations(one.schema),
        check=one.check,
        may_repeat=one.policy.repeat_read_only and _is_read_only(one.raw),
        mirrored=mirrored,
    )


def _is_read_only(raw: Mapping[str, Any]) -> bool:
    annotations = raw.get("annotations")
    return isinstance(annotations, Mapping) and annotations.get("readOnlyHint") is True


def _own_schema(one: _Found) -> Schema:
    """As the upstream wrote it, wherever clients take it: some drop the whole list for one without an object's type."""
    schema = one.raw.get("inputSchema")
    return schema if isinstance(schema, dict) and schema.get("type") == "object" else _ANY | one.schema


def _rules(one: _Found, mirror: MirrorPolicy, policy: ToolPolicy) -> CaptureRules:
    output = one.raw.get("outputSchema")
    return CaptureRules(
        mode=policy.capture or ("never" if _is_app(one.raw.get("_meta")) else mirror.capture),
        inline_budget=mirror.inline_budget if policy.inline_budget is None else policy.inline_budget,
        error_budget=mirror.error_budget,
        wrapped=isinstance(output, dict) and _wraps(output, one.name),
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
