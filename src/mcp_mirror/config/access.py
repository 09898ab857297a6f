"""The keys that say who may use the gateway, and how it shows who it is to upstreams."""

from typing import Annotated, Final

from pydantic import BeforeValidator, Field

from mcp_mirror.config.fields import (
    Algorithms,
    Flag,
    Grants,
    Listed,
    OrNothing,
    Pause,
    Port,
    ScopeName,
    Text,
    TokenHash,
    Url,
)
from mcp_mirror.config.source import Scalar
from mcp_mirror.config.trust import Section
from mcp_mirror.settings.access import AuthPolicy, IssuerPolicy, OAuthPolicy

_AUTH: Final = AuthPolicy()
_ISSUER: Final = IssuerPolicy("", (), "")
_OAUTH: Final = OAuthPolicy("")


class TokenSection(Section):
    """One bearer token; a hash alone may stand for it."""

    hash: TokenHash = Field(repr=False, description="The token's hash, as `mcp-mirror token NAME` prints it.")
    scopes: Annotated[tuple[ScopeName, ...], Listed] | None = Field(
        default=None, description="What the token is good for. By default `auth.scopes`."
    )


class IssuerSection(Section):
    """An authorization server whose signed tokens (JWT) let people in."""

    issuer: Url = Field(description="Its name, as `iss` in its tokens has it.", examples=["https://login.example.com/"])
    audience: Annotated[tuple[Text, ...], Listed] = Field(
        default=(),
        description="What `aud` must name; one of several. By default `auth.resource`.",
        examples=["https://tools.example.com/mcp"],
    )
    jwks: Text = Field(
        description="Its public keys: the URL of its JWKS (https, or http on loopback), or a file.",
        examples=["https://login.example.com/.well-known/jwks.json"],
    )
    algorithms: Annotated[tuple[Algorithms, ...], Listed] = Field(
        default=_ISSUER.algorithms, min_length=1, description="The signatures that are taken; no others."
    )
    principal: Text = Field(default=_ISSUER.principal, description="The claim that names whose memory it is.")
    leeway: Pause = Field(default=_ISSUER.leeway, description="Seconds by which its clock and ours may differ.")
    require_dpop: Flag = Field(
        default=_ISSUER.require_dpop,
        description="Tokens must be bound to a key of the client's, which proves with each request that it has it "
        "(DPoP, RFC 9449). Those that are bound take such a proof in any case. Needs `auth.resource`.",
    )
    allow_private: Flag = Field(
        default=_ISSUER.allow_private,
        description="The host in `jwks` may have a private address though its name looks public.",
    )


class ScopedSection(Section):
    """What not every principal may see."""

    required_scopes: Annotated[tuple[ScopeName, ...], Listed] | None = Field(
        default=None,
        description="Scopes that a principal's token must have to see this and use it; to others it is not there. Of "
        "an upstream they hold for all of it; of single tools (`overrides`) beside those. Needs `auth`.",
        examples=[["crm.write"]],
    )


def _token_of_hash(value: object) -> object:
    return {"hash": value} if isinstance(value, Scalar) else value


class AuthSection(Section):
    """Who is let in over HTTP. Without this section everybody who reaches the gateway is, on loopback alone."""

    tokens: Annotated[dict[str, Annotated[TokenSection, BeforeValidator(_token_of_hash)]], OrNothing] = Field(
        default_factory=dict,
        repr=False,
        description="Bearer tokens by the names of their principals, hashed; `mcp-mirror token NAME` makes one.",
        examples=[{"alice": "sha256:5e88..."}],
    )
    issuers: tuple[IssuerSection, ...] = Field(default=(), description="Whose signed tokens (JWT) are taken.")
    scopes: Annotated[tuple[ScopeName, ...], Listed] = Field(
        default=_AUTH.scopes, description="Scopes that every token must have.", examples=[["tools"]]
    )
    resource: Url | None = Field(
        default=None,
        description="The URL under which clients know this gateway; its metadata (RFC 9728) says so.",
        examples=["https://tools.example.com/mcp"],
    )


class OAuthSection(Section):
    """How the gateway gets tokens for an upstream that wants OAuth."""

    grant: Grants = Field(
        default=_OAUTH.grant,
        description="authorization_code: a person signs in once, with `mcp-mirror login`. client_credentials: the "
        "gateway signs in by itself.",
    )
    client_id: Text | None = Field(default=None, description="By default the gateway registers itself.")
    client_secret: Text | None = Field(
        default=None, repr=False, description="Its secret.", examples=["${CLIENT_SECRET}"]
    )
    private_key: Text | None = Field(
        default=None, description="PEM file of the key that signs for the client, in place of a secret."
    )
    signing_algorithm: Algorithms = Field(default=_OAUTH.signing_algorithm, description="How that key signs.")
    issuer: Url | None = Field(
        default=None,
        description="The authorization server that id and secret belong to; they are sent to no other.",
        examples=["https://login.example.com"],
    )
    scopes: Annotated[tuple[ScopeName, ...], Listed] = Field(
        default=_OAUTH.scopes, description="What to ask for. By default what the server says it needs."
    )
    client_metadata_url: Url | None = Field(
        default=None, description="Where a document describes this client; it stands for registering."
    )
    redirect_port: Port = Field(
        default=_OAUTH.redirect_port, description="Loopback port that the browser comes back to. 0: any that is free."
    )
    token_file: Text | None = Field(
        default=None,
        description="Where tokens are kept, for this user alone to read. By default in the user's data folder.",
    )


class UpstreamAuthSection(Section):
    """How the gateway shows who it is to an upstream, beside `headers`."""

    oauth: Annotated[OAuthSection, OrNothing] = Field(description="By OAuth 2.1.")
