"""Signed tokens: which ones are valid, and how often the gateway fetches an issuer's keys."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jwt
import pytest
from clocks import Clock
from tests.auth.issuing import AUDIENCE, Page, SigningKey, jwks, serving
from tests.load import measure_pause, slowness

from mcp_mirror.server.auth.keys import Issuers, KeysUnavailableError
from mcp_mirror.settings.access import IssuerPolicy

ISSUER = "https://login.example.com/"
OTHER = "https://other.example.com/"
KEY = SigningKey("one")
STRANGER = SigningKey("one")
STRANGER_TOKEN = SigningKey("none").sign(ISSUER)
RSA_KEY = SigningKey("two", "RS256")


def issuers(source: str, clock: Callable[[], float] = time.monotonic, **keys: Any) -> Issuers:
    return Issuers([IssuerPolicy(ISSUER, (AUDIENCE,), source, **keys)], clock)


@pytest.fixture
def keys(tmp_path: Path) -> str:
    (tmp_path / "jwks.json").write_text(jwks(KEY, RSA_KEY))
    return str(tmp_path / "jwks.json")


async def test_a_valid_token_names_its_principal_and_scopes(keys: str) -> None:
    principal = await issuers(keys).find_principal(KEY.sign(ISSUER, scope="read write"))
    assert principal
    assert (principal.issuer, principal.name, principal.scopes) == (ISSUER, "alice", frozenset({"read", "write"}))
    assert principal.namespace == json.dumps([ISSUER, "alice"])
    assert await issuers(keys).find_principal(RSA_KEY.sign(ISSUER))


def altered(token: str) -> str:
    head, body, signature = token.split(".")
    claims = json.loads(jwt.utils.base64url_decode(body))
    return ".".join(
        (head, jwt.utils.base64url_encode(json.dumps(claims | {"sub": "bob"}).encode()).decode(), signature)
    )


def confused(token: str) -> str:
    """Signed with the public key as if it were a secret (RFC 8725, section 2.1)."""
    claims = jwt.decode(token, options={"verify_signature": False})
    head = {"alg": "HS256", "typ": "JWT", "kid": "one"}
    signed = ".".join(jwt.utils.base64url_encode(json.dumps(part).encode()).decode() for part in (head, claims))
    secret = jwt.get_algorithm_by_name("HS256")
    signature = secret.sign(signed.encode(), KEY.public_pem)
    return f"{signed}.{jwt.utils.base64url_encode(signature).decode()}"


NOW = int(time.time())
BAD: dict[str, str] = {
    "of another issuer": KEY.sign(OTHER),
    "of an issuer that is alike": KEY.sign(ISSUER.rstrip("/")),
    "without an issuer": KEY.sign(ISSUER, iss=None),
    "for somebody else": KEY.sign(ISSUER, aud="https://elsewhere.example.com"),
    "for nobody": KEY.sign(ISSUER, aud=None),
    "expired": KEY.sign(ISSUER, exp=NOW - 60),
    "never expiring": KEY.sign(ISSUER, exp=None),
    "not good yet": KEY.sign(ISSUER, nbf=NOW + 86_400),
    "made in the future": KEY.sign(ISSUER, iat=NOW + 86_400),
    "of nobody": KEY.sign(ISSUER, sub=None),
    "of a nameless one": KEY.sign(ISSUER, sub=""),
    "of a very long name": KEY.sign(ISSUER, sub="x" * 2000),
    "signed by another with the key's name": STRANGER.sign(ISSUER),
    "by a key that nobody has": SigningKey("three").sign(ISSUER),
    "by a signature that is not allowed": SigningKey("two", "RS512").sign(ISSUER),
    "unsigned": jwt.encode({"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "exp": NOW + 86_400}, "", "none"),
    "altered": altered(KEY.sign(ISSUER)),
    "signed with the public key": confused(KEY.sign(ISSUER)),
    "cut": KEY.sign(ISSUER)[:-8],
    "too long": KEY.sign(ISSUER, more="x" * 20_000),
    "no token": "mcpm_0123456789",
    "nothing": "..",
    "no text": "\udcff.\udcff.\udcff",
}


@pytest.mark.parametrize("token", BAD.values(), ids=BAD)
async def test_invalid_tokens_have_no_principal(keys: str, token: str) -> None:
    assert await issuers(keys).find_principal(token) is None


@pytest.mark.parametrize(
    ("claims", "named"),
    [
        ({"exp": None}, "MissingRequiredClaimError (exp)"),
        ({"sub": None}, "MissingRequiredClaimError (sub)"),
        ({"sub": ["c4nary"]}, "InvalidSubjectError"),
        ({"sub": "c4nary" * 200}, "InvalidTokenError (sub is not a text of 1 to 1024 characters)"),
        ({"typ": "c4nary"}, "InvalidTokenError (required_claims.typ)"),
        ({"nbf": "1"}, "InvalidTokenError (nbf is not a number)"),
        ({"aud": "c4nary"}, "InvalidAudienceError"),
        ({"iss": OTHER}, "InvalidIssuerError"),
        ({"iss": ISSUER.rstrip("/")}, "InvalidIssuerError (`issuer` differs by the slash at its end)"),
    ],
)
async def test_the_log_names_the_claim_of_a_rejected_token(
    keys: str, claims: dict[str, Any], named: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mcp_mirror")
    strict = issuers(keys, required_claims={"typ": ("Bearer",)})
    assert await strict.find_principal(KEY.sign(ISSUER, **{"typ": "Bearer", **claims})) is None
    assert [record.getMessage() for record in caplog.records] == [f"Rejected a token: {named}"]


async def test_a_flood_of_invalid_tokens_does_not_fill_the_log(keys: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mcp_mirror")
    clock = Clock()
    known = issuers(keys, clock)
    for logged in (100, 200):
        for _ in range(300):
            assert await known.find_principal("x.y.z") is None
        assert len(caplog.messages) == logged
        clock.now += 60


async def test_the_log_names_the_missing_binding_of_a_token(keys: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "mcp_mirror")
    assert await issuers(keys, require_dpop=True).find_principal(KEY.sign(ISSUER)) is None
    assert caplog.messages == ["Rejected a token: InvalidTokenError (require_dpop)"]


async def test_expiry_allows_clocks_to_differ_by_the_leeway(keys: str) -> None:
    lenient = issuers(keys, leeway=120.0)
    assert await lenient.find_principal(KEY.sign(ISSUER, exp=int(time.time()) - 60))
    assert await lenient.find_principal(KEY.sign(ISSUER, exp=int(time.time()) - 240)) is None


async def test_the_configuration_chooses_the_claim_of_the_principal(keys: str) -> None:
    by_mail = issuers(keys, principal="email")
    principal = await by_mail.find_principal(KEY.sign(ISSUER, email="a@example.com"))
    assert principal
    assert principal.name == "a@example.com"
    assert await by_mail.find_principal(KEY.sign(ISSUER)) is None


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"scope": "a b"}, {"a", "b"}),
        ({"scp": ["a", "b", 3]}, {"a", "b"}),
        ({"scp": "a"}, {"a"}),
        ({"scope": 7}, set()),
        ({}, set()),
    ],
)
async def test_scopes_are_read_in_all_common_forms(keys: str, claims: dict[str, Any], scopes: set[str]) -> None:
    principal = await issuers(keys).find_principal(KEY.sign(ISSUER, **claims))
    assert principal
    assert principal.scopes == scopes


@pytest.mark.parametrize(
    ("claims", "scopes"),
    [
        ({"roles": ["a", "b"], "scp": "c"}, {"a", "b"}),
        ({"roles": "a b"}, {"a", "b"}),
        ({"scope": "a"}, set()),
        ({"roles": {"a": 1}}, set()),
    ],
)
async def test_the_configuration_chooses_the_claim_of_the_scopes(
    keys: str, claims: dict[str, Any], scopes: set[str]
) -> None:
    principal = await issuers(keys, scopes_claim="roles").find_principal(KEY.sign(ISSUER, **claims))
    assert principal
    assert principal.scopes == scopes


@pytest.mark.parametrize(
    ("claims", "is_accepted"),
    [
        ({"hd": "example.com", "email_verified": True}, True),
        ({"hd": "example.org", "email_verified": True}, True),
        ({"hd": ["other.example", "example.com"], "email_verified": "true"}, True),
        ({"hd": "EXAMPLE.COM", "email_verified": True}, False),
        ({"hd": "example.com", "email_verified": False}, False),
        ({"hd": "example.com"}, False),
        ({"hd": {"example.com": 1}, "email_verified": True}, False),
        ({"hd": [["example.com"]], "email_verified": True}, False),
        ({"hd": [], "email_verified": True}, False),
        ({"hd": None, "email_verified": True}, False),
    ],
)
async def test_tokens_need_one_accepted_value_of_each_required_claim(
    keys: str, claims: dict[str, Any], *, is_accepted: bool
) -> None:
    required = {"hd": ("example.com", "example.org"), "email_verified": ("true",)}
    strict = issuers(keys, required_claims=required)
    assert (await strict.find_principal(KEY.sign(ISSUER, **claims)) is not None) == is_accepted


async def test_the_same_subject_of_two_issuers_is_two_principals(keys: str, tmp_path: Path) -> None:
    (tmp_path / "other.json").write_text(jwks(STRANGER))
    both = [IssuerPolicy(ISSUER, (AUDIENCE,), keys), IssuerPolicy(OTHER, (AUDIENCE,), str(tmp_path / "other.json"))]
    known = Issuers(both, time.monotonic)
    one, other = await known.find_principal(KEY.sign(ISSUER)), await known.find_principal(STRANGER.sign(OTHER))
    assert one
    assert other
    assert one.namespace != other.namespace
    assert await known.find_principal(STRANGER.sign(ISSUER)) is None
    assert await known.find_principal(KEY.sign(OTHER)) is None


async def test_keys_are_fetched_once_and_again_for_a_new_key_at_a_limited_rate() -> None:
    page, clock = Page(jwks(KEY)), Clock()
    async with serving(page) as url:
        known = issuers(url, clock)
        assert all(await asyncio.gather(*(known.find_principal(KEY.sign(ISSUER)) for _ in range(20))))
        assert page.asked == 1
        new = SigningKey("new")
        page.body = jwks(KEY, new)
        for _ in range(20):
            assert await known.find_principal(SigningKey("none").sign(ISSUER)) is None
        assert page.asked == 1
        clock.now += 11
        assert not any(await asyncio.gather(*(known.find_principal(STRANGER_TOKEN) for _ in range(20))))
        assert await known.find_principal(new.sign(ISSUER))
        assert page.asked == 2
        clock.now += 601
        page.body = jwks(new)
        assert await known.find_principal(new.sign(ISSUER))
        assert await known.find_principal(KEY.sign(ISSUER)) is None  # withdrawn
        assert page.asked == 3


async def test_a_key_that_is_replaced_under_its_id_is_fetched_at_a_limited_rate() -> None:
    page, clock = Page(jwks(KEY)), Clock()
    async with serving(page) as url:
        known = issuers(url, clock)
        assert await known.find_principal(KEY.sign(ISSUER))
        page.body = jwks(STRANGER)
        assert await known.find_principal(STRANGER.sign(ISSUER)) is None
        assert page.asked == 1
        clock.now += 11
        assert all(await asyncio.gather(*(known.find_principal(STRANGER.sign(ISSUER)) for _ in range(20))))
        assert await known.find_principal(KEY.sign(ISSUER)) is None
        assert page.asked == 2


async def test_requests_do_not_wait_while_a_slow_issuer_renews_its_keys() -> None:
    page, clock, new = Page(jwks(KEY)), Clock(), SigningKey("new")
    async with serving(page) as url, asyncio.timeout(4):  # a request for the keys may take 5 s
        known = issuers(url, clock)
        assert await known.find_principal(KEY.sign(ISSUER))
        page.body, page.requests = jwks(new), asyncio.Queue()
        clock.now += 301
        assert all([await known.find_principal(KEY.sign(ISSUER)) for _ in range(3)])
        (await page.requests.get()).set()
        assert await known.find_principal(new.sign(ISSUER))
        assert await known.find_principal(KEY.sign(ISSUER)) is None  # withdrawn
        assert page.asked == 2


BROKEN = {
    "fails": Page(jwks(KEY), status="500 Internal Server Error"),
    "leads elsewhere": Page(jwks(KEY), status="302 Found", headers={"location": "https://evil.example.com/"}),
    "says something else": Page("[]"),
    "says nothing": Page(""),
    "says no JSON": Page("{"),
    "says too much": Page(" " * (1 << 19) + jwks(KEY)),
    "has keys of no form": Page('{"keys": 5}'),
}


@pytest.mark.parametrize("page", BROKEN.values(), ids=BROKEN)
async def test_unavailable_keys_admit_no_token_and_old_keys_serve_for_a_day(page: Page) -> None:
    clock = Clock()
    async with serving(page) as url:
        with pytest.raises(KeysUnavailableError):
            await issuers(url, clock).find_principal(KEY.sign(ISSUER))
    good = Page(jwks(KEY))
    async with serving(good) as url:
        known = issuers(url, clock)
        assert await known.find_principal(KEY.sign(ISSUER))
        good.body, good.status, good.headers = page.body, page.status, page.headers
        clock.now += 601
        assert await known.find_principal(KEY.sign(ISSUER))
        clock.now += 86_400
        with pytest.raises(KeysUnavailableError):
            await known.find_principal(KEY.sign(ISSUER))


async def test_metadata_in_place_of_keys_is_reported_with_the_next_step(tmp_path: Path) -> None:
    file = tmp_path / "openid-configuration"
    file.write_text(json.dumps({"issuer": ISSUER, "jwks_uri": "https://c4nary.example.com/keys"}))
    [problem] = await issuers(str(file)).find_problems()
    assert "the document is metadata of the issuer: `jwks` is the address in its `jwks_uri`. " in problem
    assert "c4nary" not in problem


async def test_a_private_address_of_an_issuer_names_the_key_that_allows_it() -> None:
    [problem] = await issuers("https://0x7f.1:9/jwks").find_problems()  # a name that resolves to 127.0.0.1
    assert "resolves to a private address" in problem
    assert "set `allow_private: true` for this issuer" in problem


async def test_a_file_of_keys_that_is_too_large_is_reported_as_such(tmp_path: Path) -> None:
    file = tmp_path / "jwks.json"
    file.write_text(jwks(KEY) + " " * (1 << 18))
    [problem] = await issuers(str(file)).find_problems()
    assert "they are larger than 262,144 bytes" in problem


async def test_a_token_without_kid_needs_a_single_matching_key(tmp_path: Path) -> None:
    bare = [{name: value for name, value in key.public.items() if name != "kid"} for key in (KEY, STRANGER)]
    token = jwt.encode(jwt.decode(KEY.sign(ISSUER), options={"verify_signature": False}), KEY.private, "ES256")
    for keys, admitted in (
        (bare[:1], True),
        (bare, False),
        ([*bare[:1], {"kty": "oct", "k": "AA"}, {"kty": "X"}, 5], True),
    ):
        (tmp_path / "jwks.json").write_text(json.dumps({"keys": keys}))
        assert bool(await issuers(str(tmp_path / "jwks.json")).find_principal(token)) is admitted


async def test_a_token_without_kid_does_not_make_the_gateway_load_many_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [KEY.public | {"kid": str(kid)} for kid in range(1000)]}))
    loaded: list[Any] = []
    load = jwt.PyJWK

    def note(key: dict[str, Any], algorithm: str) -> jwt.PyJWK:
        loaded.append(key)
        return load(key, algorithm)

    monkeypatch.setattr(jwt, "PyJWK", note)
    token = jwt.encode(jwt.decode(KEY.sign(ISSUER), options={"verify_signature": False}), KEY.private, "ES256")
    assert await issuers(str(tmp_path / "jwks.json")).find_principal(token) is None
    assert len(loaded) < 10


async def test_private_keys_in_a_key_set_verify_without_a_stall(tmp_path: Path) -> None:
    private = jwt.get_algorithm_by_name("ES256").to_jwk(KEY.private, as_dict=True) | {"kid": "one"}
    number = jwt.utils.base64url_encode(b"\xff" * 2048).decode()
    without_primes = {"kty": "RSA", "kid": "two", "n": number, "e": "AQAB", "d": number}
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [private, without_primes]}))
    found = issuers(str(tmp_path / "jwks.json"))
    assert await found.find_principal(KEY.sign(ISSUER))
    assert await measure_pause(found.find_principal(RSA_KEY.sign(ISSUER))) < slowness()  # before: 8


@pytest.mark.parametrize("change", [{"use": "enc"}, {"alg": "ES384"}, {"crv": "P-384"}, {"x": "AA"}])
async def test_keys_for_other_uses_do_not_verify_tokens(tmp_path: Path, change: dict[str, str]) -> None:
    (tmp_path / "jwks.json").write_text(json.dumps({"keys": [KEY.public | change]}))
    assert await issuers(str(tmp_path / "jwks.json")).find_principal(KEY.sign(ISSUER)) is None
