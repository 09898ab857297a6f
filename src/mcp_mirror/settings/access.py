"""Settings of authentication: of clients by the gateway, and of the gateway by its upstreams.

`repr` of these settings contains no secrets.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from mcp_mirror.settings.declarations import (
    NAME,
    REQUIRED,
    SECRET,
    SINGLE,
    Address,
    AtLeast,
    Claims,
    Example,
    FilePath,
    Key,
    KeySetLocation,
    Line,
    Pause,
    Port,
    Scopes,
    Section,
    Shorthand,
    TokenHash,
)
from mcp_mirror.settings.limits import PrincipalLimits

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signature algorithms with a public key; those with a shared secret are excluded (RFC 8725, section 3.1)."""

Grant = Literal["authorization_code", "client_credentials"]

_NO_CLAIMS: Final[Mapping[str, tuple[str, ...]]] = {}

TOKEN_PREFIX: Final = "mcpm_"  # noqa: S105  # the prefix of all tokens
"""The start of each token of the gateway, by which scanners for leaked secrets find it."""


class TokenPolicy(Section, frozen=True):
    """One bearer token. Only its hash may be written instead."""

    name: Annotated[str, NAME]
    digest: Annotated[TokenHash, Key("hash"), SECRET, Example(f"sha256:{'5e88' * 16}")]
    """The SHA-256 hash of the token, as `mcp-mirror token NAME` prints it."""
    scopes: Annotated[Scopes | None, Example(("tools",))] = None
    """The scopes of the token. Default: `auth.scopes`."""


class IssuerPolicy(Section, frozen=True):
    """An authorization server whose signed tokens (JWT) the gateway accepts."""

    issuer: Annotated[Address, Example("https://login.example.com/")]
    """Its name, exactly as `iss` in its tokens."""
    audience: Annotated[tuple[Line, ...], SINGLE, Example(("https://tools.example.com/mcp",))] = ()
    """Accepted values of `aud`; one must match. Default: `auth.resource`."""
    jwks: Annotated[KeySetLocation, REQUIRED, Example("https://login.example.com/.well-known/jwks.json")] = ""
    """Its public keys: the URL of its JWKS (https, or http on loopback), or a file."""
    algorithms: Annotated[tuple[Algorithm, ...], SINGLE, AtLeast(1, "a list of one algorithm or more")] = (
        "RS256",
        "ES256",
    )
    """The accepted signature algorithms."""
    principal: Line = "sub"
    """The claim that names the principal, whose memory the token opens."""
    leeway: Pause = 30.0
    """Time by which the clocks of the issuer and the gateway may differ."""
    require_dpop: bool = False
    """Require tokens bound to a key of the client, which proves with each request that it has the key (DPoP, RFC 9449).
    Bound tokens need such a proof in any case. Needs `auth.resource`."""
    allow_private: bool = False
    """Allow the host in `jwks` to have a private address although its name looks public."""
    scopes_claim: Annotated[Line | None, Example("roles")] = None
    """The claim with the scopes, a text with spaces or a list. Default: `scope`, otherwise `scp`."""
    required_claims: Annotated[Claims, Example({"hd": ("example.com",)})] = _NO_CLAIMS
    """Claims that every token needs, each with its accepted values; of a list in the token one must match."""


class AuthPolicy(Section, frozen=True):
    """Authentication over HTTP. Without this section the gateway accepts every request, but only on loopback."""

    tokens: Annotated[tuple[Annotated[TokenPolicy, Shorthand("hash")], ...], SECRET, Example("alice")] = ()
    """Hashes of bearer tokens by the names of their principals; `mcp-mirror token NAME` creates one."""
    issuers: Annotated[tuple[IssuerPolicy, ...], Example("")] = ()
    """Authorization servers whose signed tokens (JWT) the gateway accepts."""
    scopes: Annotated[Scopes, Example(("tools",))] = ()
    """Scopes that every token needs."""
    resource: Annotated[Address | None, Example("https://tools.example.com/mcp")] = None
    """The URL under which clients know the gateway; its metadata (RFC 9728) contains it. Default: no metadata."""

    principals: Annotated[tuple[PrincipalLimits, ...], Example("alice")] = ()
    """Other limits for single principals, by their names in `tokens` or in the tokens of an issuer."""

    @property
    def is_required(self) -> bool:
        """Whether every HTTP request needs a token."""
        return bool(self.tokens or self.issuers)


class OAuthPolicy(Section, frozen=True):
    """How the gateway gets OAuth tokens for an upstream."""

    token_file: Annotated[FilePath, Example("tokens.json")] = ""
    """The file that stores the tokens, readable only by this user. Default: a file in the user's data folder."""
    grant: Grant = "authorization_code"
    """authorization_code: a user signs in once, with `mcp-mirror login`. client_credentials: the gateway authenticates
    by itself."""
    client_id: Annotated[Line | None, Example("mirror")] = None
    """The gateway's client id. Default: the gateway registers itself."""
    client_secret: Annotated[Line | None, SECRET, Example("${CLIENT_SECRET}")] = None
    """The secret of the client id."""
    private_key: Annotated[FilePath | None, Example("key.pem")] = None
    """PEM file of a key that signs for the client, instead of a secret."""
    signing_algorithm: Algorithm = "ES256"
    """The signature algorithm of that key."""
    issuer: Annotated[Address | None, Example("https://login.example.com")] = None
    """The authorization server that id and secret belong to; they are sent only there."""
    scopes: Annotated[Scopes, Example(("read",))] = ()
    """Scopes to request. Default: those that the server requires."""
    client_metadata_url: Annotated[Address | None, Example("https://example.com/client.json")] = None
    """URL of a document that describes the client, which replaces registration."""
    redirect_port: Port = 0
    """Loopback port that the browser is redirected to. 0: any free port."""


def is_confidential(url: str) -> bool:
    """Whether requests to a URL are encrypted or stay on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def is_public(address: str) -> bool:
    """Whether an IP address is public; of an address that contains an IPv4 address, whether that address is.

    Private, loopback, link-local, shared (RFC 6598), multicast and reserved addresses are not public, nor is the
    address of the host of Azure machines.
    """
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        is_translated = found in _LOCAL_TRANSLATION and not (int(found) >> 32) & 0xFFFFFFFF
        if inner is None and (is_translated or any(found in network for network in _IPV4_PREFIXES)):
            inner = IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    is_reserved = found == _AZURE_HOST or any(found in network for network in _RESERVED)
    return found.is_global and not found.is_multicast and not is_reserved


def is_local_host(host: str) -> bool:
    """Whether a host is an address or a local name: the user names this host, not a public name that leads to it.

    Local are names without a dot, and those that RFC 6761, RFC 6762, RFC 8375 and ICANN reserve.
    """
    try:
        ip_address(host)
    except ValueError:
        name = host.lower().rstrip(".")
        return "." not in name or name.endswith(_LOCAL_NAMES)
    return True


_IPV4_PREFIXES: Final = tuple(map(ip_network, ("64:ff9b::/96", "::ffff:0:0:0/96", "::/96")))
"""Prefixes whose last 32 bits are an IPv4 address (RFC 6052, RFC 2765, RFC 4291)."""
_LOCAL_TRANSLATION: Final = ip_network("64:ff9b:1::/48")
"""Addresses of a network's own translators (RFC 8215). The IPv4 address is in the last 32 bits if the 32 bits before it
are zero; else a translator with a shorter prefix may read another one in the middle."""
_RESERVED: Final = tuple(map(ip_network, ("192.0.0.0/24", "64:ff9b:1::/48", "fec0::/10", "3fff::/20", "5f00::/16")))
"""Networks of protocols, sites, documentation and segment routing that the `ipaddress` of some Pythons calls global."""
_AZURE_HOST: Final = IPv4Address("168.63.129.16")
"""The host of an Azure machine has this global address, at which it serves its machines settings and certificates."""
_LOCAL_NAMES: Final = (".localhost", ".local", ".internal", ".home.arpa", ".lan")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine: a loopback address or `localhost`, not a name that resolves to one."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
