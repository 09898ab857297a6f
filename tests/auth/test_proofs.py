"""Tokens that are bound to a key of the client (DPoP, RFC 9449), with a gateway on real HTTP."""

from __future__ import annotations

import base64
import hashlib
import json
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import jwt
import pytest
from http_sessions import HEADERS, HELLO
from starlette.requests import Request
from tests.auth.conftest import HASHES, TOKENS, serving_gateway
from tests.auth.issuing import AUDIENCE, SigningKey, jwks
from tests.end_to_end.conftest import BOUND

from mcp_mirror.config import load_config
from mcp_mirror.security.pins import Pins
from mcp_mirror.server.auth import proofs
from mcp_mirror.server.auth.principals import Principal
from mcp_mirror.server.auth.proofs import ProofVerifier, compute_thumbprint

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured

ISSUER = "https://login.example.com"
RESOURCE = "https://tools.example.com/mcp"
ISSUERS_KEY = SigningKey("issuer")
OWN = {algorithm: SigningKey("own", algorithm) for algorithm in ("ES256", "RS256")}
THIEF = SigningKey("thief")


def public(key: SigningKey) -> dict[str, Any]:
    return {name: value for name, value in key.public.items() if name not in ("kid", "use")}


def bound_token(key: SigningKey = OWN["ES256"], **claims: Any) -> str:
    return ISSUERS_KEY.sign(ISSUER, cnf={"jkt": compute_thumbprint(key.public)}, **claims)


def digest(token: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(token.encode()).digest()).rstrip(b"=").decode()


def proof(token: str, key: SigningKey = OWN["ES256"], header: dict[str, Any] | None = None, **claims: Any) -> str:
    """A proof for a POST to the gateway, with claims or parts of its header changed or, where None, left out."""
    standard = {"jti": uuid.uuid4().hex, "htm": "POST", "htu": RESOURCE, "iat": int(time.time()), "ath": digest(token)}
    payload = {name: value for name, value in {**standard, **claims}.items() if value is not None}
    head = {"typ": "dpop+jwt", "jwk": public(key), **(header or {})}
    return jwt.encode(payload, key.private, key.algorithm, {k: v for k, v in head.items() if v is not None})


def shown(token: str, *given: str, scheme: str = "DPoP") -> list[tuple[str, str]]:
    return [*HEADERS.items(), ("authorization", f"{scheme} {token}"), *(("DPoP", one) for one in given)]


@pytest.fixture
def guarded(configured: Configured, tmp_path: Path) -> Path:
    (tmp_path / "jwks.json").write_text(jwks(ISSUERS_KEY))
    issuers = [{"issuer": ISSUER, "jwks": "jwks.json", "audience": AUDIENCE}]
    auth = {"issuers": issuers, "resource": RESOURCE, "tokens": HASHES, "scopes": []}
    return configured({}, auth=auth, audit={"path": "audit.jsonl"})


TOKEN = bound_token()
PLAIN = ISSUERS_KEY.sign(ISSUER)
NOW = int(time.time())


def without_signature(text: str) -> str:
    return f"{text.rpartition('.')[0]}."


def by_nobody(token: str) -> str:
    """A proof whose header says that nothing signs it."""
    claims = {"jti": "n", "htm": "POST", "htu": RESOURCE, "iat": int(time.time()), "ath": digest(token)}
    return jwt.encode(claims, "", "none", {"typ": "dpop+jwt", "jwk": public(OWN["ES256"])})


def by_a_shared_secret(token: str) -> str:
    secret = "k" * 32
    jwk = {"kty": "oct", "k": base64.urlsafe_b64encode(secret.encode()).decode()}
    claims = {"jti": "s", "htm": "POST", "htu": RESOURCE, "iat": int(time.time()), "ath": digest(token)}
    return jwt.encode(claims, secret, "HS256", {"typ": "dpop+jwt", "jwk": jwk})


def wrong() -> dict[str, list[tuple[str, str]]]:
    """Create proofs at the time of use, so that none is rejected only because of its age."""
    now, odd = int(time.time()), ISSUERS_KEY.sign(ISSUER, cnf={"jkt": 5})
    return {
        "no proof": shown(TOKEN),
        "as a bearer": shown(TOKEN, proof(TOKEN), scheme="Bearer"),
        "two proofs": shown(TOKEN, proof(TOKEN), proof(TOKEN)),
        "no JWT": shown(TOKEN, "x.y"),
        "too long": shown(TOKEN, proof(TOKEN, more="x" * 9000)),
        "by another key": shown(TOKEN, proof(TOKEN, THIEF)),
        "by another key under the right one's name": shown(TOKEN, proof(TOKEN, THIEF, {"jwk": public(OWN["ES256"])})),
        "unsigned": shown(TOKEN, without_signature(proof(TOKEN))),
        "by nobody": shown(TOKEN, by_nobody(TOKEN)),
        "by a shared secret": shown(TOKEN, by_a_shared_secret(TOKEN)),
        "with a private key": shown(TOKEN, proof(TOKEN, header={"jwk": {**public(OWN["ES256"]), "d": "x"}})),
        "no key": shown(TOKEN, proof(TOKEN, header={"jwk": None})),
        "a key that is none": shown(TOKEN, proof(TOKEN, header={"jwk": ["x"]})),
        "another kind of JWT": shown(TOKEN, proof(TOKEN, header={"typ": "JWT"})),
        "another method": shown(TOKEN, proof(TOKEN, htm="GET")),
        "another URL": shown(TOKEN, proof(TOKEN, htu="https://tools.example.com/other")),
        "another host": shown(TOKEN, proof(TOKEN, htu="https://evil.example.com/mcp")),
        "no text for a URL": shown(TOKEN, proof(TOKEN, htu=5)),
        "a port that is none": shown(TOKEN, proof(TOKEN, htu="https://tools.example.com:x/mcp")),
        "another token": shown(TOKEN, proof(bound_token(sub="bob"))),
        "no token": shown(TOKEN, proof(TOKEN, ath=None)),
        "too old": shown(TOKEN, proof(TOKEN, iat=now - 3600)),
        "from the future": shown(TOKEN, proof(TOKEN, iat=now + 3600)),
        "no time": shown(TOKEN, proof(TOKEN, iat=None)),
        "a time that is none": shown(TOKEN, proof(TOKEN, iat=float("nan"))),
        "a time as a list": shown(TOKEN, proof(TOKEN, iat=[now])),
        "a critical extension": shown(TOKEN, proof(TOKEN, header={"crit": ["x"], "x": 1})),
        "a method in lower case": shown(TOKEN, proof(TOKEN, htm="post")),
        "a URL that begins alike": shown(TOKEN, proof(TOKEN, htu=f"{RESOURCE}/more")),
        "a URL with a user": shown(TOKEN, proof(TOKEN, htu="https://tools.example.com@evil.example.com/mcp")),
        "URLs in a list": shown(TOKEN, proof(TOKEN, htu=[RESOURCE])),
        "tokens in a list": shown(TOKEN, proof(TOKEN, ath=[digest(TOKEN)])),
        "names in a list": shown(TOKEN, proof(TOKEN, jti=["n"])),
        "no name": shown(TOKEN, proof(TOKEN, jti="")),
        "a token that is bound to nothing": shown(PLAIN, proof(PLAIN)),
        "a static token": shown(TOKENS["alice"], proof(TOKENS["alice"])),
        "a token bound to no text": shown(odd, proof(odd)),
    }


async def test_a_key_bound_token_needs_a_new_proof_for_each_request(
    guarded: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "mcp_mirror")
    async with serving_gateway(guarded) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        for name, headers in wrong().items():
            answer = await client.post(served.url, headers=headers, content=HELLO)
            challenge = answer.headers.get("www-authenticate", "")
            assert answer.status_code == 401, name
            assert 'error="invalid_' in challenge, name
            if name == "no proof":
                assert challenge.startswith('DPoP error="invalid_dpop_proof"')
                assert 'algs="RS256 ' in challenge
        for key in OWN.values():
            token = bound_token(key)
            once = shown(token, proof(token, key))
            assert (await client.post(served.url, headers=once, content=HELLO)).status_code == 200
            assert (await client.post(served.url, headers=once, content=HELLO)).status_code == 401  # it came before
            for htu in (f"{RESOURCE}?x=1#y", "HTTPS://Tools.Example.com:443/mcp"):
                again = shown(token, proof(token, key, htu=htu), scheme="dpop")
                assert (await client.post(served.url, headers=again, content=HELLO)).status_code == 200
        for token in (PLAIN, TOKENS["alice"]):
            bearer = shown(token, scheme="Bearer")
            assert (await client.post(served.url, headers=bearer, content=HELLO)).status_code == 200
    outcomes = [json.loads(line)["outcome"] for line in guarded.with_name("audit.jsonl").read_text().splitlines()]
    assert {"no good proof", "no good token"} <= set(outcomes)
    assert "Rejected a proof of possession: it was used before" in caplog.text
    assert "eyJ" not in caplog.text


async def test_a_reload_remembers_used_proofs(guarded: Path) -> None:
    async with serving_gateway(guarded) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        once = shown(TOKEN, proof(TOKEN))
        assert (await client.post(served.url, headers=once, content=HELLO)).status_code == 200
        served.application.reload(load_config(guarded, {}), Pins())
        assert (await client.post(served.url, headers=once, content=HELLO)).status_code == 401


async def test_an_issuer_with_required_dpop_has_no_bearer_tokens(configured: Configured, tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text(jwks(ISSUERS_KEY))
    issuers = [{"issuer": ISSUER, "jwks": "jwks.json", "audience": AUDIENCE, "require_dpop": True}]
    config = configured({}, auth={"issuers": issuers, "resource": RESOURCE})
    async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        nothing = await client.post(served.url, headers=HEADERS, content=HELLO)
        assert nothing.headers["www-authenticate"].startswith('DPoP resource_metadata="')
        plain = await client.post(served.url, headers=shown(PLAIN, scheme="Bearer"), content=HELLO)
        assert plain.status_code == 401
        bound = await client.post(served.url, headers=shown(TOKEN, proof(TOKEN)), content=HELLO)
        assert bound.status_code == 200
        metadata = await client.get(served.url.removesuffix("/mcp") + "/.well-known/oauth-protected-resource/mcp")
        assert metadata.json()["dpop_bound_access_tokens_required"] is True
        assert "ES256" in metadata.json()["dpop_signing_alg_values_supported"]


async def test_the_challenge_names_all_accepted_schemes(configured: Configured, tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text(jwks(ISSUERS_KEY))
    issuers = [{"issuer": ISSUER, "jwks": "jwks.json", "require_dpop": True}]
    origin = RESOURCE.removesuffix("/mcp")
    config = configured({}, auth={"issuers": issuers, "resource": origin, "tokens": HASHES})
    async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        nothing = await client.post(served.url, headers=HEADERS, content=HELLO)
        challenge = nothing.headers["www-authenticate"]
        assert challenge.startswith("Bearer resource_metadata=")
        assert ", DPoP resource_metadata=" in challenge
        token = bound_token(aud=origin)
        for htu in (RESOURCE, origin):  # the endpoint, of which the configuration has no more than the origin
            answer = await client.post(served.url, headers=shown(token, proof(token, htu=htu)), content=HELLO)
            assert answer.status_code == 200


async def test_without_a_resource_proofs_name_the_requested_url(configured: Configured, tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text(jwks(ISSUERS_KEY))
    config = configured({}, auth={"issuers": [{"issuer": ISSUER, "jwks": "jwks.json", "audience": AUDIENCE}]})
    async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        own = shown(TOKEN, proof(TOKEN, htu=served.url))
        assert (await client.post(served.url, headers=own, content=HELLO)).status_code == 200
        other = shown(TOKEN, proof(TOKEN))
        assert (await client.post(served.url, headers=other, content=HELLO)).status_code == 401


def test_a_proof_is_remembered_while_its_time_is_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [float(NOW)]
    monkeypatch.setattr(proofs, "_MAX_REMEMBERED", 3)
    verifier, thumbprint = ProofVerifier(lambda: now[0]), compute_thumbprint(OWN["ES256"].public)

    def comes(name: str, made: float, who: str = "alice") -> bool:
        headers = [(b"dpop", proof(TOKEN, jti=name, iat=made).encode())]
        scope = {"type": "http", "method": "POST", "headers": headers, "path": "/mcp", "query_string": b""}
        return verifier.verify(Request(scope), TOKEN, Principal(ISSUER, who, key=thumbprint), RESOURCE)

    assert [comes("a", now[0] + 80), comes("a", now[0] + 80)] == [True, False]
    now[0] += 160  # it would be taken still
    assert not comes("a", NOW + 80)
    now[0] += 30
    assert comes("b", now[0])
    assert comes("a", now[0])  # what was known of it has gone with its time
    assert comes("c", now[0])
    assert not comes("d", now[0])  # that is more than are remembered
    assert comes("d", now[0], "bob")  # and no other's trouble
    now[0] += 300
    assert comes("d", now[0])


def test_the_thumbprint_matches_the_example_of_the_rfc() -> None:
    """RFC 7638, section 3.1."""
    modulus = (
        "0vx7agoebGcQSuuPiLJXZptN9nndrQmbXEps2aiAFbWhM78LhWx4cbbfAAtVT86zwu1RK7aPFFxuhDR1L6tSoc_BJECPebWKRXjBZCiFV4n3oknj"
        "hMstn64tZ_2W-5JsGY4Hc5n9yBXArwl93lqt7_RN5w6Cf0h4QyQ5v-65YGjQR0_FDW2QvzqY368QQMicAtaSqzs8KJZgnYb9c7d0zgdAZHzu6qMQ"
        "vRL5hajrn1n91CbOpbISD08qNLyrdkt-bFTWhAI4vMQFh6WeZu0fM4lFd2NcRwr3XPksINHaQ-G_xBniIqbw0Ls1jF44-csFCur-kEgU8awapJzK"
        "nqDKgw"
    )
    key = {"kty": "RSA", "n": modulus, "e": "AQAB", "alg": "RS256", "kid": "2011-04-29"}
    assert compute_thumbprint(key) == "NzbLsXh8uDCcd-6MNwXF4W_7noWXFZAfHkxZsRGC9Xs"


def test_proofs_with_oversized_keys_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    key = OWN["RS256"]
    token = bound_token(key)
    headers = [(b"dpop", proof(token, key).encode())]
    request = Request({"type": "http", "method": "POST", "headers": headers, "path": "/mcp", "query_string": b""})
    principal = Principal(ISSUER, "alice", key=compute_thumbprint(key.public))
    with monkeypatch.context() as patched:
        patched.setattr(proofs, "_MAX_MODULUS_LENGTH", 300)
        assert not ProofVerifier(time.time).verify(request, token, principal, RESOURCE)
    assert ProofVerifier(time.time).verify(request, token, principal, RESOURCE)
