"""The rules between several keys of a configuration."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import Final, NamedTuple

from mcp_mirror.config.shape import list_keys
from mcp_mirror.config.source import Findings, Items, Node, Scalar, YamlMapping
from mcp_mirror.security.flows import DEFAULT_ZONE
from mcp_mirror.settings.access import AuthPolicy, OAuthPolicy, is_confidential
from mcp_mirror.settings.declarations import UPSTREAM_NAME
from mcp_mirror.settings.labels import WORDS, ZONE, PlacePolicy
from mcp_mirror.settings.policies import MEMORY_TOOLS, Config, MemoryToolsPolicy
from mcp_mirror.settings.upstreams import HttpEndpoint, StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.patterns import lazy_pattern

STDIO_KEYS, HTTP_KEYS = (
    tuple(one.path[0] for one in list_keys(endpoint) if not one.is_required)
    for endpoint in (StdioEndpoint, HttpEndpoint)
)
"""The optional keys of upstreams with `command` and of those with `url`."""
_TRANSPORTS: Final = {"command": ("stdio",), "url": ("streamable-http", "sse")}
_OF_GATEWAY: Final = lazy_pattern(r"authorization|proxy-authorization|cookie|host|dpop|mcp-.*", re.IGNORECASE)
"""Headers of requests to the gateway itself, which upstreams never get: MCP forbids to pass tokens on."""
_OF_TRANSPORT: Final = lazy_pattern(
    r"host|connection|content-.*|transfer-encoding|accept|accept-encoding|mcp-.*", re.IGNORECASE
)
"""Headers of requests to upstreams that the gateway itself writes."""
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


class _Problems(NamedTuple):
    """Takes contradictions and settings without effect, each with the keys that lead to the value."""

    root: YamlMapping
    findings: Findings

    def report(self, message: str, *path: str) -> None:
        """Add a contradiction, with which the gateway does not start."""
        self.findings.report(_find_node(self.root, path).location, message)

    def warn(self, message: str, *path: str) -> None:
        """Add a setting without effect."""
        self.findings.warn(_find_node(self.root, path).location, message)


def check_config(config: Config, root: YamlMapping, names: set[str], findings: Findings) -> None:
    """Report contradictions and settings without effect; `names` has all upstreams, including disabled ones."""
    problems = _Problems(root, findings)
    _check_store(config, problems)
    _check_shares(config, problems)
    _check_sections(config, problems)
    _check_memory_tools(config.memory_tools, problems)
    _check_auth(config.auth, problems)
    _check_upstreams(config, problems)
    _check_dashboard(config, problems)
    _check_flows(config, names, problems)


def _check_store(config: Config, problems: _Problems) -> None:
    """Check that each key of the store fits its kind, and that replicas have what they share."""
    store, server = config.store, config.server
    is_remote = config.auth.is_required or server.allowed_hosts  # on stdio a client has one gateway
    if store.kind == "redis" and is_remote and not server.state_keys:
        message = (
            "gateways that share this store need the same 'server.state_keys': otherwise a call that required input "
            "fails if its client continues it at another gateway, or after a restart"
        )
        problems.warn(message, "store", "kind")
    if store.blobs is not None and store.kind != "redis":
        message = "expected 'kind: redis' too: the bucket has only the large values of a Redis store; or remove it"
        problems.report(message, "store", "blobs")
    if store.encryption is not None and store.kind == "memory":
        message = "values in memory are not encrypted; this applies to the kinds disk and redis"
        problems.warn(message, "store", "encryption")
    if store.url is not None and store.kind is None:
        problems.report("expected 'kind: redis' too: without it no value is stored in Redis", "store", "url")
    if store.kind == "redis" and store.url is None:
        problems.report("redis needs `store.url`, such as redis://127.0.0.1:6379/0", "store", "kind")
    if store.url is not None and store.kind in ("disk", "memory"):
        message = f"with 'kind: {store.kind}' the address has no effect; write 'kind: redis', or remove it"
        problems.warn(message, "store", "url")


def _check_shares(config: Config, problems: _Problems) -> None:
    """Check that the limits of one principal are not larger than those of all values."""
    store, at = config.store, ("auth", "principals")
    shares = (
        (("store",), store.namespace_bytes, store.namespace_values),
        *(((*at, one.name), one.namespace_bytes, one.namespace_values) for one in config.auth.principals),
    )
    for path, size, values in shares:
        if size is not None and size > store.max_bytes:
            problems.warn("larger than 'store.max_bytes', which applies first", *path, "namespace_bytes")
        if values is not None and values > store.max_values:
            problems.warn("larger than 'store.max_values', which applies first", *path, "namespace_values")


def _check_sections(config: Config, problems: _Problems) -> None:
    """Check the sections with one rule each."""
    mirror, audit = config.mirror, config.audit
    if not mirror.suffix and mirror.expose_originals:
        message = "without a suffix twins have the originals' names; set 'suffix', or remove this"
        problems.report(message, "mirror", "expose_originals")
    if audit.required and audit.path is None:
        problems.report("expected 'path' too: without it no audit log is written", "audit", "required")
    if config.has_call_quotas and (config.is_transparent or not config.events.enabled):
        reason = "a gateway that stores no values" if config.is_transparent else "'events.enabled: false'"
        message = f"'calls_per_day' and 'calls_per_month' need the event log, which {reason} does not have"
        problems.report(f"{message}; remove them, or log events", "limits")
    if "code" in problems.root.members and not _has_sandbox():
        problems.report("scripts need an extra: pip install 'mcp-mirror[code]'; or remove this section", "code")


def _check_memory_tools(policy: MemoryToolsPolicy, problems: _Problems) -> None:
    """Check that the folders exist, and that each name and glob is one of a memory tool that can be served."""
    at = "memory_tools"
    for index, root in enumerate(policy.roots):
        if not os.path.isdir(root):  # noqa: PTH112  # `is_dir` raises in a folder of another user
            problems.warn("the folder does not exist; create it, or correct the path", at, "roots", str(index))
    for key, globs in (("allow", policy.allow or ()), ("deny", policy.deny)):
        for index, glob in enumerate(globs):
            if not any(fnmatchcase(tool, glob) for tool in MEMORY_TOOLS):
                near = get_close_matches(glob, MEMORY_TOOLS, 1)
                hint = f"; did you mean {near[0]!r}?" if near else f"; expected one of {', '.join(MEMORY_TOOLS)}"
                problems.warn(f"{glob!r} matches no memory tool{hint}", at, key, str(index))
            elif (key, glob) == ("allow", "memory_run") and not _has_sandbox():
                problems.warn("'memory_run' needs an extra: pip install 'mcp-mirror[code]'", at, key, str(index))


def _has_sandbox() -> bool:
    return find_spec("pydantic_monty") is not None


def _check_auth(auth: AuthPolicy, problems: _Problems) -> None:
    """Check who is admitted over HTTP."""
    if "auth" in problems.root.members and not auth.is_required:
        message = "expected 'tokens' or 'issuers': without them every request is accepted"
        problems.report(f"{message}; if you want that, omit 'auth'", "auth")
    if len({token.digest for token in auth.tokens}) < len(auth.tokens):
        problems.report("expected a different token for each principal, got one for two", "auth", "tokens")
    for token in auth.tokens:
        missing = [scope for scope in auth.scopes if token.scopes is not None and scope not in token.scopes]
        if missing:
            message = f"the token lacks the scope {missing[0]!r} of 'auth.scopes', so every request with it is refused"
            problems.warn(message, "auth", "tokens", token.name)
    for message in _find_issuer_problems(auth):
        problems.report(message, "auth", "issuers")
    known = [token.name for token in auth.tokens]
    for limits in () if auth.issuers else auth.principals:
        if limits.name not in known:
            near = get_close_matches(limits.name, known, 1)
            message = f"no token in 'auth.tokens' has this name{f'; did you mean {near[0]!r}?' if near else ''}"
            problems.warn(f"these limits have no effect: {message}", "auth", "principals", limits.name)


def _find_issuer_problems(auth: AuthPolicy) -> Iterator[str]:
    seen: set[str] = set()
    for issuer in auth.issuers:
        if issuer.issuer in seen:
            yield "expected each issuer once; join the audiences of one in a list"
        seen.add(issuer.issuer)
        if not issuer.audience and not auth.resource:
            yield "expected 'audience' for each issuer, or 'auth.resource': else tokens of other services are valid"
        if issuer.require_dpop and not auth.resource:
            yield "expected 'auth.resource' with 'require_dpop': proofs name the URL that clients know"
        if issuer.jwks.startswith(("https://", "http://")) and not is_confidential(issuer.jwks):
            yield "expected an https URL in 'jwks', an http URL on loopback, or a file"


def _check_upstreams(config: Config, problems: _Problems) -> None:
    """Check the access keys of upstreams."""
    for upstream in config.upstreams:
        endpoint, path = upstream.endpoint, ("upstreams", upstream.name)
        if isinstance(endpoint, HttpEndpoint) and endpoint.oauth:
            for message in _find_oauth_problems(endpoint.oauth, endpoint.headers):
                problems.report(message, *path, "auth")
        _check_client_values(upstream, path, problems)
        required: dict[Path, Sequence[str]] = {(*path, "required_scopes"): upstream.required_scopes}
        for glob, each in upstream.overrides:
            required[*path, "overrides", glob, "required_scopes"] = each.required_scopes or ()
        for at, scopes in required.items():
            _check_scopes(config.auth, at, scopes, "no principal sees this", problems)


def _check_client_values(upstream: UpstreamPolicy, path: Path, problems: _Problems) -> None:
    """Check the headers of clients whose values an upstream gets."""
    endpoint, values = upstream.endpoint, upstream.client_values
    is_http = isinstance(endpoint, HttpEndpoint)
    key = (*path, "client_headers" if is_http else "client_env")
    names = {name.lower() for name in values}
    for name, header in values.items():
        if _OF_GATEWAY.fullmatch(header):
            message = "expected a header of its own, such as X-Crm-Authorization: this one is for the gateway"
            problems.report(message, *key, name)
        if is_http and _OF_TRANSPORT.fullmatch(name):
            problems.report("expected another header: the gateway itself writes this one", *key, name)
    if is_http and len(names) < len(values):
        problems.report("expected each header once; case does not matter", *key)
    if values and upstream.scope == "shared":
        problems.report(f"clients with values of their own ({key[-1]!r}) never share a connection", *path, "scope")
    if isinstance(endpoint, HttpEndpoint) and values and endpoint.oauth and "authorization" not in names:
        problems.report("expected Authorization among them: 'auth' signs in for lists, and never for a client", *key)


def _check_scopes(auth: AuthPolicy, path: Path, scopes: Sequence[str], effect: str, problems: _Problems) -> None:
    """Check that something enforces required scopes, and that a principal can have them."""
    granted = {scope for token in auth.tokens for scope in (auth.scopes if token.scopes is None else token.scopes)}
    missing = [scope for scope in scopes if scope not in granted and not auth.issuers]
    if scopes and not auth.is_required:
        problems.report("expected 'auth' with tokens or issuers: without it no request has scopes", *path)
    elif missing:
        problems.warn(f"no token in 'auth.tokens' has the scope {missing[0]!r}, so {effect}", *path)


def _check_dashboard(config: Config, problems: _Problems) -> None:
    """Check who is an operator."""
    scopes, path = config.dashboard.operator_scopes, ("dashboard", "operator_scopes")
    _check_scopes(config.auth, path, scopes, "no one is an operator", problems)
    if scopes and set(scopes) <= set(config.auth.scopes):
        problems.warn("'auth.scopes' requires these scopes of every token, so everyone is an operator", *path)
    if config.dashboard.operators_read_values and not scopes:
        message = "without 'operator_scopes' the gateway has no operators, so this has no effect"
        problems.warn(message, "dashboard", "operators_read_values")


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


def _check_flows(config: Config, names: set[str], problems: _Problems) -> None:
    """Check the levels and names in labels and flow rules."""
    places: dict[Path, PlacePolicy] = {
        ("flows", "model"): config.flows.model,
        ("flows", "files"): config.flows.files,
        **{("upstreams", upstream.name): upstream.place for upstream in config.upstreams},
    }
    levels = config.flows.levels
    if len(set(levels)) < len(levels):
        problems.report("expected each level once", "flows", "levels")
    for path, place in places.items():
        for key, level in (("labels", place.confidentiality), ("accepts", place.accepts.confidentiality)):
            if level is not None and level not in levels:
                expected = f"expected one of 'flows.levels': {', '.join(levels)}"
                problems.report(expected, *path, key, "confidentiality")
    zones = sorted({place.zone for place in places.values() if place.zone})
    for path, side in _list_rule_names(config, places):
        if message := _explain_wrong_name(side, zones, names):
            problems.report(message, *path)


def _list_rule_names(config: Config, places: dict[Path, PlacePolicy]) -> Iterator[tuple[Path, str]]:
    """Yield every name of places in rules, with its path."""
    for key, rules in (("allow", config.flows.allow), ("deny", config.flows.deny)):
        for index, rule in enumerate(rules):
            yield from ((("flows", key, str(index)), side) for side in rule)
    for path, place in places.items():
        for index, source in enumerate(place.accepts.sources or ()):
            yield (*path, "accepts", "sources", str(index)), source


def _explain_wrong_name(side: str, zones: Sequence[str], names: set[str]) -> str:
    """Return why a name is that of two places or of none, with which a rule would apply to nothing; else nothing."""
    if side.startswith(ZONE):
        zone = side.removeprefix(ZONE)
        expected = f"one of {', '.join(f'{ZONE}{name}' for name in zones)}" if zones else "a place with a 'zone'"
        return "" if zone in {DEFAULT_ZONE, *zones, *names} else f"unknown zone '{zone}'; expected {expected}"
    if side in WORDS and side in names:
        upstream, other = _write_unambiguously(side), WORDS[side]
        return f"'{side}' is an upstream and a reserved word; write '{upstream}' for the upstream, or '{other}'"
    if side in {*names, *WORDS, *WORDS.values()} or _GLOB & set(side):
        return ""
    words = {name if word in names else word for word, name in WORDS.items()}
    listed = ", ".join(sorted({*words, *map(_write_unambiguously, names)}))
    return f"unknown upstream '{side}'; expected one of {listed}, or a glob"


def _write_unambiguously(name: str) -> str:
    """Return the name of an upstream as rules must write it: as a glob if it is a reserved word too."""
    return f"[{name[0]}]{name[1:]}" if name in WORDS else name


def _find_node(node: Node, path: Path) -> Node:
    """Return the node that a path leads to, or the deepest one on the way."""
    for key in path:
        if isinstance(node, YamlMapping) and key in node.members:
            node = node.members[key]
        elif isinstance(node, Items) and key.isdecimal() and int(key) < len(node.nodes):
            node = node.nodes[int(key)]
    return node
