"""The access sections as policies, and the rules that hold between their keys."""

from collections.abc import Callable, Iterator
from typing import Final

from platformdirs import user_data_path

from mcp_mirror.config.access import AuthSection, IssuerSection, OAuthSection
from mcp_mirror.config.models import ConfigFile, UpstreamSection
from mcp_mirror.config.source import Findings, Node, Table
from mcp_mirror.settings.access import AuthPolicy, IssuerPolicy, OAuthPolicy, TokenPolicy, is_private_to_us

_HASH: Final = "sha256:"
_REMOTE: Final = ("https://", "http://")

AbsolutePath = Callable[[str], str]
"""A path of the file's as one from the root."""


def read_auth(section: AuthSection, absolute: AbsolutePath) -> AuthPolicy:
    """Who is let in."""
    tokens = ((name, one.hash.removeprefix(_HASH), one.scopes) for name, one in section.tokens.items())
    return AuthPolicy(
        tokens=tuple(TokenPolicy(*token) for token in tokens),
        issuers=tuple(_issuer(one, section.resource, absolute) for one in section.issuers),
        scopes=section.scopes,
        resource=section.resource,
    )


def _issuer(section: IssuerSection, resource: str | None, absolute: AbsolutePath) -> IssuerPolicy:
    given = section.model_dump()
    audience = section.audience or ((resource,) if resource else ())
    jwks = section.jwks if section.jwks.startswith(_REMOTE) else absolute(section.jwks)
    return IssuerPolicy(**{**given, "audience": audience, "jwks": jwks})


def read_oauth(upstream: str, section: OAuthSection, absolute: AbsolutePath) -> OAuthPolicy:
    """How tokens for an upstream are had."""
    given = section.model_dump()
    kept = user_data_path("mcp-mirror") / "tokens" / f"{upstream}.json"
    file = absolute(section.token_file) if section.token_file else str(kept)
    key = absolute(section.private_key) if section.private_key else None
    return OAuthPolicy(**{**given, "token_file": file, "private_key": key})


def check_access(file: ConfigFile, root: Table, findings: Findings) -> None:
    """Tell what does not go together."""
    auth = root.members.get("auth")
    for place, complaint in _complaints_of_auth(file.auth):
        findings.problem(_node(auth, place).place if auth else root.place, complaint)
    if auth is not None:
        _check_entrance(file.auth, auth, findings)
    upstreams = root.members.get("upstreams")
    for name, upstream in file.upstreams.items():
        for complaint in _complaints_of_oauth(upstream) if upstream.auth else ():
            findings.problem(_node(upstreams or root, (name, "auth")).place, complaint)
        _check_scopes(name, upstream, file.auth, upstreams or root, findings)


def _check_entrance(section: AuthSection, auth: Node, findings: Findings) -> None:
    """Tell of an entrance that lets everybody in, though it is there to see, and of tokens that let nobody in."""
    if not (section.tokens or section.issuers):
        said = "wanted 'tokens' or 'issuers': without them everybody is let in; leave 'auth' out if that is meant"
        findings.problem(auth.place, said)
    for name, token in section.tokens.items():
        missing = [scope for scope in section.scopes if token.scopes is not None and scope not in token.scopes]
        if missing:
            said = f"the token lacks the scope {missing[0]!r} of 'auth.scopes', so that it lets nobody in"
            findings.warn(_node(auth, ("tokens", name)).place, said)


def _check_scopes(name: str, upstream: UpstreamSection, auth: AuthSection, root: Node, findings: Findings) -> None:
    """Tell of scopes that nothing would hold anybody to, and of those that no token has."""
    asked: dict[tuple[str, ...], tuple[str, ...] | None] = {(name,): upstream.required_scopes}
    asked |= {(name, "overrides", glob): each.required_scopes for glob, each in upstream.overrides.items()}
    held = {scope for one in auth.tokens.values() for scope in (auth.scopes if one.scopes is None else one.scopes)}
    for keys, required in asked.items():
        place = _node(root, (*keys, "required_scopes")).place
        if required and not (auth.tokens or auth.issuers):
            findings.problem(place, "wanted 'auth' with tokens or issuers: without it nobody shows what they may see")
        elif missing := [scope for scope in required or () if scope not in held and not auth.issuers]:
            findings.warn(place, f"no token in 'auth.tokens' has the scope {missing[0]!r}, so that nobody sees this")


def _complaints_of_auth(section: AuthSection) -> Iterator[tuple[tuple[str, ...], str]]:
    if len({one.hash for one in section.tokens.values()}) < len(section.tokens):
        yield ("tokens",), "wanted another token for each principal, got one for two"
    seen: set[str] = set()
    for one in section.issuers:
        if one.issuer in seen:
            yield ("issuers",), "wanted each issuer once; join the audiences of one in a list"
        seen.add(one.issuer)
        if not one.audience and not section.resource:
            yield ("issuers",), "wanted 'audience' for each issuer, or 'auth.resource': else any token of it would do"
        if one.require_dpop and not section.resource:
            yield ("issuers",), "wanted 'auth.resource' with 'require_dpop': proofs name the URL that clients know"
        if one.jwks.startswith(_REMOTE) and not is_private_to_us(one.jwks):
            yield ("issuers",), "wanted 'jwks' by https, on loopback by http, or a file"


def _complaints_of_oauth(upstream: UpstreamSection) -> Iterator[str]:
    assert upstream.auth is not None  # noqa: S101  # the caller's condition
    oauth = upstream.auth.oauth
    if any(name.lower() == "authorization" for name in upstream.headers):
        yield "wanted 'auth' or an Authorization in 'headers', got both; keep one"
    if oauth.client_secret and oauth.private_key:
        yield "wanted 'client_secret' or 'private_key', got both; keep one"
    if (oauth.client_secret or oauth.private_key) and not (oauth.client_id and oauth.issuer):
        yield "wanted 'client_id' and 'issuer' too: a secret goes to the server alone that it belongs to"
    if oauth.grant == "client_credentials" and not (oauth.client_secret or oauth.private_key):
        yield "wanted 'client_id', 'issuer', and 'client_secret' or 'private_key' for 'client_credentials'"
    if oauth.private_key and oauth.grant != "client_credentials":
        yield "wanted 'grant: client_credentials' with 'private_key'"


def _node(node: Node, keys: tuple[str, ...]) -> Node:
    for key in keys:
        if isinstance(node, Table) and key in node.members:
            node = node.members[key]
    return node
