"""Who may use the gateway, and as whom the gateway goes to its upstreams: what the user decided, as frozen policies.

No secret in here is ever shown. A policy is data: it knows neither the file it came from nor the module that obeys it.
"""

from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from typing import Final, Literal
from urllib.parse import urlsplit

Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]
"""Signatures that a public key checks. None that shares a secret is among them (RFC 8725, section 3.1)."""

Grant = Literal["authorization_code", "client_credentials"]

TOKEN_PREFIX: Final = "mcpm_"  # noqa: S105  # of all of them
"""What each of our own tokens begins with: scanners for leaked secrets can tell what it is."""


@dataclass(frozen=True, slots=True)
class TokenPolicy:
    """One bearer token that lets a principal in."""

    name: str
    """The principal's."""
    digest: str = field(repr=False)
    """SHA-256 of the token, hexadecimal."""
    scopes: tuple[str, ...] | None = None
    """What it is good for. None: for all that is required."""


@dataclass(frozen=True, slots=True)
class IssuerPolicy:
    """Whose signed tokens (JWT) let principals in."""

    issuer: str
    """`iss`, to the letter."""
    audience: tuple[str, ...]
    """One of them must be in `aud`."""
    jwks: str
    """The URL or the file of its public keys."""
    algorithms: tuple[Algorithm, ...] = ("RS256", "ES256")
    principal: str = "sub"
    """The claim that names the principal."""
    leeway: float = 30.0
    """Seconds by which its clock and ours may differ."""
    require_dpop: bool = False
    """A token that is bound to no key is not taken."""
    allow_private: bool = False
    """The host of `jwks` may have private addresses though its name looks public."""


@dataclass(frozen=True, slots=True)
class AuthPolicy:
    """Who is let in over HTTP."""

    tokens: tuple[TokenPolicy, ...] = ()
    issuers: tuple[IssuerPolicy, ...] = ()
    scopes: tuple[str, ...] = ()
    """All of them are required."""
    resource: str | None = None
    """The URL under which clients know the gateway; None: no metadata is served."""

    @property
    def is_required(self) -> bool:
        """Whether nobody is let in without a token."""
        return bool(self.tokens or self.issuers)


@dataclass(frozen=True, slots=True)
class OAuthPolicy:
    """How the gateway gets tokens for one upstream."""

    token_file: str
    """Where they are kept."""
    grant: Grant = "authorization_code"
    client_id: str | None = None
    """None: the gateway registers itself."""
    client_secret: str | None = field(default=None, repr=False)
    private_key: str | None = None
    """File of a PEM key that signs for the client, instead of a secret."""
    signing_algorithm: Algorithm = "ES256"
    issuer: str | None = None
    """The authorization server that the client's id and secret are for; they go to no other."""
    scopes: tuple[str, ...] = ()
    """What is asked for. None: what the server wants."""
    client_metadata_url: str | None = None
    """Where a document says who the client is; it stands for registering."""
    redirect_port: int = 0
    """The loopback port that the browser comes back to. 0: any."""


def is_private_to_us(url: str) -> bool:
    """Whether nobody on the way can read or change what goes to a URL: it is encrypted, or stays on this machine."""
    parts = urlsplit(url)
    return parts.scheme == "https" or is_loopback(parts.hostname or "")


def is_public(address: str) -> bool:
    """Whether an IP address is one of the whole internet's, also where it stands within another one's.

    Private, loopback, link-local, shared (RFC 6598), multicast and reserved addresses are not.
    """
    found = ip_address(address.partition("%")[0])
    if isinstance(found, IPv6Address):
        inner = found.ipv4_mapped or found.sixtofour or (found.teredo[1] if found.teredo else None)
        if inner is None and any(found in network for network in _TRANSLATED):
            inner = IPv4Address(int(found) & 0xFFFFFFFF)
        if inner is not None:
            return is_public(str(inner))
    return found.is_global and not found.is_multicast


def names_itself(host: str) -> bool:
    """Whether who writes this host can mean no public one: an address, or a name that the internet does not have.

    Names without a dot, and those that RFC 6761, RFC 6762, RFC 8375 and ICANN keep for local use.
    """
    try:
        ip_address(host)
    except ValueError:
        name = host.lower().rstrip(".")
        return "." not in name or name.endswith(_LOCAL_NAMES)
    return True


_TRANSLATED: Final = (ip_network("64:ff9b::/96"), ip_network("64:ff9b:1::/48"), ip_network("::/96"))
"""Prefixes whose last 32 bits are an IPv4 address (RFC 6052, RFC 8215, RFC 4291)."""
_LOCAL_NAMES: Final = (".localhost", ".local", ".internal", ".home.arpa", ".lan")


def is_loopback(host: str) -> bool:
    """Whether a host is this machine and no other; a name that only resolves to it is not."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
