"""The rules between several keys of a configuration."""

from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from typing import Final

from mcp_mirror.config.scalars import read_boolean
from mcp_mirror.config.shape import list_keys
from mcp_mirror.config.source import Findings, Items, Node, Scalar, YamlMapping
from mcp_mirror.security.flows import DEFAULT_ZONE
from mcp_mirror.settings.access import AuthPolicy, OAuthPolicy, is_confidential
from mcp_mirror.settings.declarations import UPSTREAM_NAME
from mcp_mirror.settings.labels import WORDS, ZONE, PlacePolicy
from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint

STDIO_KEYS, HTTP_KEYS = (
    tuple(one.path[0] for one in list_keys(endpoint) if not one.is_required)
    for endpoint in (StdioEndpoint, HttpEndpoint)
)
"""The optional keys of upstreams with `command` and of those with `url`."""
_TRANSPORTS: Final = {"command": ("stdio",), "url": ("streamable-http", "sse")}
_NO_SCOPES: Final = "expected 'auth' with tokens or issuers: without it no request has scopes"
_GLOB: Final = frozenset("*?[")

Path = tuple[str, ...]
"""The keys that lead to a value."""


def check_upstream(name: str, mapping: YamlMapping, findings: Findings) -> None:
    """Report keys of an upstream that exclude each other."""
    if not UPSTREAM_NAME.fullmatch(name):
        findings.report(mapping.location, "expected a name of 1 to 64 of A-Z, a-z, 0-9, _, - and dots")
    keys = mapping.members.keys()
    if ("command" in keys) == ("url" in keys):
        got = "both; keep one" if "url" in keys else "neither"
        findings.report(mapping.location, f"expected 'command' (a program to start) or 'url' (an address), got {got}")
        return
    kind, other = ("command", "url") if "command" in keys else ("url", "command")
    for key in HTTP_KEYS if kind == "command" else STDIO_KEYS:
        if key in keys:
            findings.report(mapping.members[key].location, f"this key belongs to '{other}', not to '{kind}'; remove it")
    transport = mapping.members.get("transport")
    if isinstance(transport, Scalar) and transport.text in _TRANSPORTS[other]:
        fitting = " or ".join(_TRANSPORTS[kind])
        findings.report(transport.location, f"with '{kind}' expected {fitting}; or leave it out")


def check_mirror(mirror: Node | None, findings: Findings) -> None:
    """Report original tools that would have the names of their twins."""
    keys = mirror.members if isinstance(mirror, YamlMapping) else {}
    suffix, switch = keys.get("suffix"), keys.get("expose_originals")
    is_empty = isinstance(suffix, Scalar) and suffix.kind in ("text", "expanded") and not suffix.text
    if is_empty and isinstance(switch, Scalar) and read_boolean(switch):
        findings.report(
            switch.location, "without a suffix twins have the originals' names; set 'suffix', or remove this"
        )


def check_store(store: Node | None, findings: Findings) -> None:
    """Warn of encryption without effect, and report a bucket without Redis."""
    keys = store.members if isinstance(store, YamlMapping) else {}
    kind, encryption, blobs = keys.get("kind"), keys.get("encryption"), keys.get("blobs")
    if blobs is not None and not (isinstance(kind, Scalar) and kind.text == "redis"):
        findings.report(blobs.location, "wanted 'kind: redis' beside it: a bucket contains only the large values")
    if encryption is not None and isinstance(kind, Scalar) and kind.text == "memory":
        findings.warn(
            encryption.location, "values in memory are not encrypted; this applies to the kinds disk and redis"
        )


def check_unused(config: Config, root: YamlMapping, findings: Findings) -> None:
    """Report an address of Redis and a required audit log that would have no effect."""
    kind, url = config.store.kind, ("store", "url")
    if config.store.url is not None and kind is None:
        message = "wanted 'kind: redis' beside it: without it values are not in Redis"
        findings.report(find_node(root, url).location, message)
    if config.store.url is not None and kind in ("disk", "memory"):
        message = f"with 'kind: {kind}' the address has no effect; write 'kind: redis', or remove it"
        findings.warn(find_node(root, url).location, message)
    if config.audit.required and config.audit.path is None:
        message = "wanted 'path' beside it: without it nothing is recorded"
        findings.report(find_node(root, ("audit", "required")).location, message)


def check_limits(config: Config, root: YamlMapping, findings: Findings) -> None:
    """Report quotas of calls that nothing counts."""
    if config.has_call_quotas and (config.is_transparent or not config.events.enabled):
        reason = "a gateway that stores no values" if config.is_transparent else "'events.enabled: false'"
        findings.report(
            find_node(root, ("limits",)).location,
            f"'calls_per_day' and 'calls_per_month' need the event log, which {reason} does not have; remove them, or "
            "log events",
        )


def check_code(code: Node | None, findings: Findings) -> None:
    """Report settings of scripts without the package that runs them."""
    if code is not None and find_spec("pydantic_monty") is None:
        findings.report(
            code.location, "scripts need an extra: pip install '.[code]' in the checkout; or remove this section"
        )


def check_access(config: Config, root: YamlMapping, findings: Findings) -> None:
    """Report contradictions in `auth` and in the access keys of upstreams."""
    auth = root.members.get("auth")
    for path, message in _find_auth_problems(config.auth):
        findings.report(find_node(root, ("auth", *path)).location, message)
    if auth is not None and not config.auth.is_required:
        message = (
            "expected 'tokens' or 'issuers': without them every request is accepted; if you want that, omit 'auth'"
        )
        findings.report(auth.location, message)
    for token in config.auth.tokens:
        missing = [scope for scope in config.auth.scopes if token.scopes is not None and scope not in token.scopes]
        if missing:
            message = f"the token lacks the scope {missing[0]!r} of 'auth.scopes', so every request with it is refused"
            findings.warn(find_node(root, ("auth", "tokens", token.name)).location, message)
    for upstream in config.upstreams:
        endpoint = upstream.endpoint
        if isinstance(endpoint, HttpEndpoint) and endpoint.oauth:
            for message in _find_oauth_problems(endpoint.oauth, endpoint.headers):
                findings.report(find_node(root, ("upstreams", upstream.name, "auth")).location, message)
    _check_scopes(config, root, findings)


def _check_scopes(config: Config, root: YamlMapping, findings: Findings) -> None:
    """Report required scopes that nothing enforces, and warn of those that no token has."""
    required: dict[Path, tuple[str, ...] | None] = {}
    for upstream in config.upstreams:
        required[(upstream.name,)] = upstream.required_scopes
        required |= {(upstream.name, "overrides", glob): each.required_scopes for glob, each in upstream.overrides}
    auth = config.auth
    granted = _list_granted(auth)
    for keys, scopes in required.items():
        location = find_node(root, ("upstreams", *keys, "required_scopes")).location
        if scopes and not auth.is_required:
            findings.report(location, _NO_SCOPES)
        elif missing := [scope for scope in scopes or () if scope not in granted and not auth.issuers]:
            findings.warn(
                location, f"no token in 'auth.tokens' has the scope {missing[0]!r}, so no principal sees this"
            )


def _list_granted(auth: AuthPolicy) -> set[str]:
    """Return the scopes that the static tokens have."""
    return {scope for one in auth.tokens for scope in (auth.scopes if one.scopes is None else one.scopes)}


def check_dashboard(config: Config, root: YamlMapping, findings: Findings) -> None:
    """Report operator scopes that nothing enforces, and warn of a page whose paths the MCP endpoint has."""
    scopes, auth = config.dashboard.operator_scopes, config.auth
    location = find_node(root, ("dashboard", "operator_scopes")).location
    granted = _list_granted(auth)
    if scopes and not auth.is_required:
        findings.report(location, _NO_SCOPES)
    elif missing := [scope for scope in scopes if scope not in granted and not auth.issuers]:
        findings.warn(location, f"no token in 'auth.tokens' has the scope {missing[0]!r}, so no one is an operator")
    elif scopes and set(scopes) <= set(auth.scopes):
        findings.warn(location, "'auth.scopes' requires these scopes of every token, so everyone is an operator")
    if config.dashboard.operators_read_values and not scopes:
        node = find_node(root, ("dashboard", "operators_read_values"))
        findings.warn(node.location, "without 'operator_scopes' the gateway has no operators, so this has no effect")


def _find_auth_problems(auth: AuthPolicy) -> Iterator[tuple[Path, str]]:
    if len({one.digest for one in auth.tokens}) < len(auth.tokens):
        yield ("tokens",), "expected a different token for each principal, got one for two"
    seen: set[str] = set()
    for one in auth.issuers:
        if one.issuer in seen:
            yield ("issuers",), "expected each issuer once; join the audiences of one in a list"
        seen.add(one.issuer)
        if not one.audience and not auth.resource:
            yield (
                ("issuers",),
                "expected 'audience' for each issuer, or 'auth.resource': else tokens of other services are valid",
            )
        if one.require_dpop and not auth.resource:
            yield ("issuers",), "expected 'auth.resource' with 'require_dpop': proofs name the URL that clients know"
        if one.jwks.startswith(("https://", "http://")) and not is_confidential(one.jwks):
            yield ("issuers",), "expected an https URL in 'jwks', an http URL on loopback, or a file"


def _find_oauth_problems(oauth: OAuthPolicy, headers: Mapping[str, str]) -> Iterator[str]:
    if any(name.lower() == "authorization" for name in headers):
        yield "expected 'auth' or an Authorization in 'headers', got both; keep one"
    if oauth.client_secret and oauth.private_key:
        yield "expected 'client_secret' or 'private_key', got both; keep one"
    if (oauth.client_secret or oauth.private_key) and not (oauth.client_id and oauth.issuer):
        yield "expected 'client_id' and 'issuer' too: a secret is sent only to the server that it belongs to"
    if oauth.grant == "client_credentials" and not (oauth.client_secret or oauth.private_key):
        yield "expected 'client_id', 'issuer', and 'client_secret' or 'private_key' for 'client_credentials'"
    if oauth.private_key and oauth.grant != "client_credentials":
        yield "expected 'grant: client_credentials' with 'private_key'"


def check_flows(config: Config, root: YamlMapping, names: set[str], findings: Findings) -> None:
    """Report unknown levels and names in labels and flow rules.

    Args:
        config: The configuration.
        root: Its nodes.
        names: The names of all upstreams, including disabled ones.
        findings: Gets the problems.
    """
    places: dict[Path, PlacePolicy] = {
        ("flows", "model"): config.flows.model,
        ("flows", "files"): config.flows.files,
        **{("upstreams", one.name): one.place for one in config.upstreams},
    }
    sides = tuple(_list_rule_names(config, places))
    problems = (
        *_find_wrong_levels(config, places),
        *_find_wrong_names(sides, places, names),
        *_find_ambiguous_names(sides, names),
    )
    for path, message in problems:
        findings.report(find_node(root, path).location, message)


def _find_wrong_levels(config: Config, places: dict[Path, PlacePolicy]) -> Iterator[tuple[Path, str]]:
    levels = config.flows.levels
    if len(set(levels)) < len(levels):
        yield ("flows", "levels"), "expected each level once"
    for path, place in places.items():
        for key, level in (("labels", place.confidentiality), ("accepts", place.accepts.confidentiality)):
            if level is not None and level not in levels:
                yield (*path, key, "confidentiality"), f"expected one of 'flows.levels': {', '.join(levels)}"


def _list_rule_names(config: Config, places: dict[Path, PlacePolicy]) -> Iterator[tuple[Path, str]]:
    """Yield every name of places in rules, with its path."""
    for key, rules in (("allow", config.flows.allow), ("deny", config.flows.deny)):
        for index, rule in enumerate(rules):
            yield from ((("flows", key, str(index)), side) for side in rule)
    for path, place in places.items():
        for index, source in enumerate(place.accepts.sources or ()):
            yield (*path, "accepts", "sources", str(index)), source


def _find_wrong_names(
    sides: tuple[tuple[Path, str], ...], places: dict[Path, PlacePolicy], names: set[str]
) -> Iterator[tuple[Path, str]]:
    """Yield names without a place: a rule with a mistyped name would apply to nothing."""
    known = {*names, *WORDS, *WORDS.values()}
    zones = {one.zone for one in places.values() if one.zone}
    for path, side in sides:
        zone = side.removeprefix(ZONE) if side.startswith(ZONE) else None
        if zone is not None and zone not in {DEFAULT_ZONE, *zones, *names}:
            expected = (
                f"one of {', '.join(f'{ZONE}{one}' for one in sorted(zones))}" if zones else "a place with a 'zone'"
            )
            yield path, f"unknown zone '{zone}'; expected {expected}"
        elif zone is None and side not in known and not _GLOB & set(side):
            yield path, f"unknown upstream '{side}'; expected one of {', '.join(_list_sides(names))}, or a glob"


def _list_sides(names: set[str]) -> list[str]:
    """Return each place that a rule may name, in the form that is not ambiguous."""
    places = {word: name if word in names else word for word, name in WORDS.items()}
    return sorted({*places.values(), *map(_write_unambiguously, names)})


def _write_unambiguously(name: str) -> str:
    """Return the name of an upstream as rules must write it: as a glob if it is a reserved word too."""
    return f"[{name[0]}]{name[1:]}" if name in WORDS else name


def _find_ambiguous_names(sides: tuple[tuple[Path, str], ...], names: set[str]) -> Iterator[tuple[Path, str]]:
    """Yield names that are both an upstream and a reserved word."""
    for path, side in sides:
        if side in WORDS and side in names:
            upstream, other = _write_unambiguously(side), WORDS[side]
            message = f"'{side}' is an upstream and a reserved word; write '{upstream}' for the upstream, or '{other}'"
            yield path, message


def find_node(node: Node, path: Path) -> Node:
    """Return the node that a path leads to, or the deepest one on the way."""
    for key in path:
        if isinstance(node, YamlMapping) and key in node.members:
            node = node.members[key]
        elif isinstance(node, Items) and key.isdecimal() and int(key) < len(node.nodes):
            node = node.nodes[int(key)]
    return node
