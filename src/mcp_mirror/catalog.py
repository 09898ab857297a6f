"""All tools that we serve, by the names under which clients see them.

A table made anew from the upstreams' listings; it opens nothing and remembers nothing.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mcp_mirror.capture import WRAPPER, CaptureRules
from mcp_mirror.paths import tool_label
from mcp_mirror.policies import MirrorPolicy, ToolPolicy, UpstreamPolicy
from mcp_mirror.schema import Schema, compile_check, fit_name, header_locations, twin_of


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
    mirrored: bool = True
    """False: the original itself, listed beside its twin; nothing is resolved and nothing captured."""


@dataclass(frozen=True, slots=True)
class Catalog:
    """What is served, in a stable order: the upstreams' in the configuration, the tools' in their listings."""

    entries: Mapping[str, Entry]
    labels: frozenset[str]
    """The tool labels with which paths of ours begin."""
    problems: tuple[str, ...] = ()
    """What is wrong with tools, a sentence each, for an operator."""


@dataclass(frozen=True, slots=True)
class _Found:
    policy: UpstreamPolicy
    name: str
    raw: Mapping[str, Any]


Listings = Iterable[tuple[UpstreamPolicy, Iterable[Mapping[str, Any]]]]


def build_catalog(listings: Listings, mirror: MirrorPolicy, reserved: Collection[str]) -> Catalog:
    """The catalog of these listings.

    Args:
        listings: Each upstream that is connected, with its tools as it lists them.
        mirror: How twins look.
        reserved: Names of our own tools, which no upstream's can take.
    """
    problems: list[str] = []
    found = [one for policy, tools in listings for one in _admitted(policy, tools, problems)]
    shared = {name for name, count in Counter(one.name for one in found).items() if count > 1}
    entries: dict[str, Entry] = {}
    for mirrored in (True, False) if mirror.expose_originals and mirror.suffix else (True,):
        for one in found:
            entry = _entry(one, mirror, (*reserved, *entries), mirrored=mirrored, shared=one.name in shared)
            if mirrored:
                problems += _problems(one)
            entries[entry.name] = entry
    order = {name: place for place, name in enumerate(entries)}
    labels = frozenset(tool_label(one.name) for one in found)
    return Catalog(dict(sorted(entries.items(), key=lambda item: order[item[0]])), labels, tuple(problems))


def _admitted(policy: UpstreamPolicy, tools: Iterable[Mapping[str, Any]], problems: list[str]) -> list[_Found]:
    admitted: dict[str, _Found] = {}
    for raw in tools:
        name = raw.get("name")
        if not isinstance(name, str) or not name:
            problems.append(f"Upstream {policy.name!r} lists a tool without a name: it is not served.")
        elif name in admitted:
            problems.append(f"Upstream {policy.name!r} lists tool {name!r} twice: the first is served.")
        elif policy.admits(name):
            admitted[name] = _Found(policy, name, raw)
    return list(admitted.values())


def _problems(one: _Found) -> list[str]:
    return [] if (wrong := _schema_of(one)[2]) is None else [
        f"Tool {one.name!r} of upstream {one.policy.name!r}: {wrong}; its arguments are passed on unchecked."
    ]  # fmt: skip


def _schema_of(one: _Found) -> tuple[Schema, Callable[[Any], str | None], str | None]:
    """A tool's schema with its check, and what is wrong with it; one that is broken gives way to any object."""
    schema = one.raw.get("inputSchema")
    if not isinstance(schema, dict):
        return {"type": "object"}, _anything, "it has no input schema"
    try:
        return schema, compile_check(schema), None
    except ValueError as error:
        return {"type": "object"}, _anything, str(error)


def _anything(_: Any) -> str | None:
    return None


def _entry(one: _Found, mirror: MirrorPolicy, taken: Collection[str], *, mirrored: bool, shared: bool) -> Entry:
    policy = one.policy.tool_policy(one.name)
    schema, check, _ = _schema_of(one)
    suffix = mirror.suffix if mirrored else ""
    name = fit_name(one.name, suffix, one.policy.name if shared else "")
    for salt in ("", *map(str, range(2, len(taken) + 3))):
        if name not in taken:
            break
        name = fit_name(f"{one.name}{salt}", suffix, one.policy.name)
    described = {} if policy.description is None else {"description": policy.description}
    original = {**one.raw, **described, "name": name, "inputSchema": schema}
    return Entry(
        name=name,
        upstream=one.policy.name,
        tool=one.name,
        advert=twin_of(one.raw, name, schema, policy.description) if mirrored else original,
        schema=schema,
        rules=_rules(one, mirror, policy),
        timeout=policy.timeout,
        headers=header_locations(schema),
        check=check,
        mirrored=mirrored,
    )


def _rules(one: _Found, mirror: MirrorPolicy, policy: ToolPolicy) -> CaptureRules:
    output = one.raw.get("outputSchema")
    return CaptureRules(
        mode=policy.capture or mirror.capture,
        inline_budget=mirror.inline_budget if policy.inline_budget is None else policy.inline_budget,
        error_budget=mirror.error_budget,
        wrapped=isinstance(output, dict) and _wraps(output, one.name),
    )


def _wraps(output: Schema, tool: str) -> bool:
    """Whether structured content is `{"result": x}` only because it must be an object.

    FastMCP marks such schemas. The Python SDK does not, but gives them their own shape and title.
    """
    sdk = output.get("title") == f"{tool}Output" and output.get("required") == ["result"]
    return output.get(WRAPPER) is True or (sdk and list(output.get("properties") or ()) == ["result"])
