"""The configuration of authentication, and of OAuth for upstreams."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.commands.conftest import Load

from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.access import AuthPolicy, IssuerPolicy, OAuthPolicy, TokenPolicy
from mcp_mirror.settings.upstreams import HttpEndpoint

HASH = "ab" * 32
OTHER = "cd" * 32
TWO = "https://two.example.com/"
WHOLE = f"""
auth:
  tokens:
    alice: sha256:{HASH}
    robot: {{hash: "sha256:{OTHER}", scopes: [a, b]}}
  issuers:
    - {{issuer: https://one.example.com, jwks: keys/one.json}}
    - issuer: https://two.example.com/
      jwks: https://two.example.com/jwks
      audience: [x, y]
      algorithms: [EdDSA]
      principal: email
      leeway: 0
  scopes: tools
  resource: https://tools.example.com/mcp
server: {{allowed_hosts: [tools.example.com, "[::1]:*", 10.0.0.1:80], allowed_origins: "https://app.example.com"}}
upstreams:
  person: {{url: https://example.com/mcp, auth: {{oauth: {{}}}}}}
  alone:
    url: https://example.com/mcp
    auth:
      oauth:
        grant: client_credentials
        client_id: mirror
        private_key: key.pem
        signing_algorithm: RS256
        issuer: https://login.example.com
        scopes: [read, write]
        token_file: ~/tokens.json
        redirect_port: 8765
"""


def test_a_whole_configuration_is_read(load: Load, tmp_path: Path) -> None:
    config = load(WHOLE)
    assert config.auth == AuthPolicy(
        tokens=(TokenPolicy("alice", HASH), TokenPolicy("robot", OTHER, ("a", "b"))),
        issuers=(
            IssuerPolicy(
                "https://one.example.com", ("https://tools.example.com/mcp",), str(tmp_path / "keys" / "one.json")
            ),
            IssuerPolicy(TWO, ("x", "y"), f"{TWO}jwks", ("EdDSA",), "email", 0.0),
        ),
        scopes=("tools",),
        resource="https://tools.example.com/mcp",
    )
    assert config.server.allowed_hosts == ("tools.example.com", "[::1]:*", "10.0.0.1:80")
    assert config.server.allowed_origins == ("https://app.example.com",)
    person, alone = (upstream.endpoint for upstream in config.upstreams)
    assert isinstance(person, HttpEndpoint)
    assert isinstance(alone, HttpEndpoint)
    assert person.oauth
    assert person.oauth.grant == "authorization_code"
    assert Path(person.oauth.token_file).parts[-3:] == ("mcp-mirror", "tokens", "person.json")
    assert alone.oauth == OAuthPolicy(
        token_file=str(Path("~/tokens.json").expanduser()),
        grant="client_credentials",
        client_id="mirror",
        private_key=str(tmp_path / "key.pem"),
        signing_algorithm="RS256",
        issuer="https://login.example.com",
        scopes=("read", "write"),
        redirect_port=8765,
    )


ISSUER = "{issuer: https://a.example.com, jwks: k.json, audience: x}"
UPSTREAM = "upstreams: {{a: {{url: https://a.example.com/mcp, auth: {{oauth: {{{}}}}}}}}}"
WRONG: list[tuple[str, str]] = [
    ("auth: {tokens: {alice: hunter2}}", "auth.tokens.alice: expected sha256: and 64 hexadecimal digits"),
    ("auth: {tokens: {alice: {scopes: [a]}}}", "auth.tokens.alice: expected 'hash', which is missing"),
    ("auth: {tokens: {alice: mcpm_dG9rZW4}}", "; this is a token itself, and it is not a secret any more"),
    ("auth: {}", "auth: expected 'tokens' or 'issuers': without them every request is accepted"),
    ("auth:", "auth: expected 'tokens' or 'issuers'"),
    ("auth: {scopes: [a]}", "auth: expected 'tokens' or 'issuers'"),
    (
        f"auth: {{tokens: {{a: 'sha256:{HASH}', b: 'sha256:{HASH}'}}}}",
        "auth.tokens: expected a different token for each",
    ),
    ("auth: {token: {}}", "auth.token: unknown key; did you mean 'tokens'?"),
    ("auth: {tokens: {alice: {hsh: x}}}", "auth.tokens.alice.hsh: unknown key; did you mean 'hash'?"),
    ("auth: {issuers: [{isuer: x}]}", "unknown key; did you mean 'issuer'?"),
    ("auth: {scopes: ['a b']}", "expected a scope"),
    (f"auth: {{issuers: [{ISSUER}, {ISSUER}]}}", "auth.issuers: expected each issuer once"),
    (
        "auth: {issuers: [{issuer: https://a.example.com, jwks: k}]}",
        "auth.issuers: expected 'audience' for each issuer",
    ),
    (
        "auth: {issuers: [{issuer: https://a.example.com, jwks: 'http://a.example.com/k', audience: x}]}",
        "auth.issuers: expected an https URL in 'jwks'",
    ),
    (f"auth: {{issuers: [{ISSUER[:-1]}, require_dpop: true}}]}}", "auth.issuers: expected 'auth.resource' with"),
    (f"auth: {{issuers: [{ISSUER[:-1]}, algorithms: [HS256]}}]}}", "expected one of RS256"),
    (f"auth: {{issuers: [{ISSUER[:-1]}, algorithms: [none]}}]}}", "expected one of RS256"),
    ("server: {allowed_hosts: ['https://x']}", "expected a host such as"),
    ("server: {allowed_hosts: ['x:65536']}", "expected a host such as"),
    ("server: {metrics: '127.0.0.1:99999'}", "expected an address such as 127.0.0.1:9464"),
    ("server: {allowed_origins: [app.example.com]}", "expected an origin such as"),
    (UPSTREAM.format("client_secret: s"), "upstreams.a.auth: expected 'client_id' and 'issuer' too"),
    (
        UPSTREAM.format("grant: client_credentials"),
        "upstreams.a.auth: expected 'client_id', 'issuer', and",
    ),
    (
        UPSTREAM.format("client_id: x, issuer: 'https://b.example.com', client_secret: s, private_key: k"),
        "upstreams.a.auth: expected 'client_secret' or 'private_key', got both",
    ),
    (
        UPSTREAM.format("client_id: x, issuer: 'https://b.example.com', private_key: k"),
        "upstreams.a.auth: expected 'grant: client_credentials' with 'private_key'",
    ),
    (UPSTREAM.format("redirect_port: 70000"), "upstreams.a.auth.oauth.redirect_port: expected a port"),
    (UPSTREAM.format("grnt: x"), "upstreams.a.auth.oauth.grnt: unknown key; did you mean 'grant'?"),
    (
        "upstreams: {a: {url: https://a.example.com, headers: {authorization: x}, auth: {oauth: {}}}}",
        "upstreams.a.auth: expected 'auth' or an Authorization in 'headers', got both",
    ),
    (
        "upstreams: {a: {command: x, required_scopes: crm}}",
        "upstreams.a.required_scopes: expected 'auth' with tokens or issuers",
    ),
    (
        "upstreams: {a: {command: x, overrides: {'w*': {required_scopes: [crm]}}}}",
        "upstreams.a.overrides.w*.required_scopes: expected 'auth' with tokens or issuers",
    ),
    ("upstreams: {a: {command: x, required_scopes: [a b]}}", "upstreams.a.required_scopes.0: expected a scope"),
    (
        "upstreams: {a: {command: x, auth: {oauth: {}}}}",
        "upstreams.a.auth: this key belongs to 'url', not to 'command'",
    ),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message for _, message in WRONG])
def test_contradictory_keys_are_errors(load: Callable[..., object], text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        load(text)
    assert message in str(raised.value)
    assert "hunter2" not in str(raised.value)


def test_secrets_are_not_shown(load: Load) -> None:
    message = "client_id: x, client_secret: c4nary, issuer: 'https://b.example.com'"
    assert "c4nary" not in repr(load(UPSTREAM.format(message)))
