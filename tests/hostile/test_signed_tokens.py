"""Attacks on signed tokens and proofs of possession that a library may let pass: each gets no principal."""

from __future__ import annotations

import base64
import json
import time
from typing import TYPE_CHECKING, Any, Final

import jwt
import pytest
from tests.auth.issuing import AUDIENCE, Page, SigningKey, jwks, serving

from mcp_mirror.server.auth.keys import Issuers
from mcp_mirror.settings.access import IssuerPolicy

if TYPE_CHECKING:
    from pathlib import Path

ISSUER: Final = "https://login.example.com/"
KEY: Final = SigningKey("one")
THIEF: Final = SigningKey("thief")
NOW: Final = int(time.time())
CLAIMS: Final[dict[str, Any]] = {"iss": ISSUER, "aud": AUDIENCE, "sub": "alice", "iat": NOW, "exp": NOW + 86_400}


def encode(part: bytes) -> str:
    return base64.urlsafe_b64encode(part).rstrip(b"=").decode()


def sign(header: Any = None, payload: bytes | None = None, key: SigningKey = KEY, **claims: Any) -> str:
    """A token with this header, and this payload or these claims, both exactly as given, and a good signature."""
    head = header if isinstance(header, bytes) else json.dumps({"alg": "ES256", "kid": "one"} | (header or {})).encode()
    body = json.dumps(CLAIMS | claims).encode() if payload is None else payload
    signed = f"{encode(head)}.{encode(body)}"
    algorithm: Any = jwt.get_algorithm_by_name("ES256")
    return f"{signed}.{encode(algorithm.sign(signed.encode(), key.private))}"


def with_signature(signature: bytes) -> str:
    return f"{sign().rpartition('.')[0]}.{encode(signature)}"


def own_key(**more: Any) -> dict[str, Any]:
    return {"jwk": THIEF.public, **more}


TWICE: Final = json.dumps(CLAIMS)[:-1].encode()
BAD: Final[dict[str, str]] = {
    "alg none": sign({"alg": "none"}),
    "alg None": sign({"alg": "None"}),
    "alg in lower case": sign({"alg": "es256"}),
    "alg of another curve": sign({"alg": "ES384"}),
    "alg as a list": sign({"alg": ["ES256"]}),
    "alg as nothing": sign({"alg": None}),
    "alg of a shared secret": sign({"alg": "HS256"}),
    "two algs, the last is none": sign(b'{"alg":"ES256","kid":"one","alg":"none"}'),
    "kid with a path": sign({"kid": "../../../../dev/null"}),
    "kid with a query": sign({"kid": "one' OR '1'='1"}),
    "kid with a command": sign({"kid": "one; cat /etc/passwd"}),
    "kid with a null": sign({"kid": "one\u0000"}),
    "kid as a list": sign({"kid": ["one"]}),
    "kid as an object": sign({"kid": {"kid": "one"}}),
    "kid as a number": sign({"kid": 1}),
    "kid of nothing": sign({"kid": ""}),
    "key in the header": sign(own_key(), key=THIEF),
    "key in the header, under another name": sign(own_key(kid="thief"), key=THIEF),
    "critical extension": sign({"crit": ["exp-only"], "exp-only": True}),
    "critical header that is not there": sign({"crit": ["gone"]}),
    "critical that is no list": sign({"crit": "exp"}),
    "payload that is not encoded": sign({"b64": False, "crit": ["b64"]}),
    "signature of zeros": with_signature(bytes(64)),
    "signature of nothing": with_signature(b""),
    "signature as DER": with_signature(bytes.fromhex("300602010102010130")),
    "signature that is longer": f"{sign()}AAAA",
    "four parts": f"{sign()}.x",
    "five parts": "e30.x.x.x.x",
    "audience that begins alike": sign(aud=f"{AUDIENCE}/more"),
    "audience that is a part": sign(aud=AUDIENCE[:-1]),
    "audiences in one text": sign(aud=f"https://x.example.com {AUDIENCE}"),
    "audience in a list in a list": sign(aud=[[AUDIENCE]]),
    "audience in an object": sign(aud={AUDIENCE: True}),
    "audience beside a number": sign(aud=[AUDIENCE, 1]),
    "audience of nobody": sign(aud=[]),
    "issuer that begins alike": sign(iss=f"{ISSUER}evil"),
    "issuer that is a part": sign(iss=ISSUER[:-2]),
    "issuer of another case": sign(iss=ISSUER.upper()),
    "issuer in a list": sign(iss=[ISSUER]),
    "issuer with a space": sign(iss=f"{ISSUER} "),
    "end that is no number": sign(exp="never"),
    "end that is not finite": sign(payload=json.dumps(CLAIMS | {"exp": float("inf")}).encode()),
    "end that is no number at all": sign(payload=json.dumps(CLAIMS | {"exp": float("nan")}).encode()),
    "end as text": sign(exp=str(NOW + 86_400)),
    "end as a truth value": sign(exp=True),
    "start as text": sign(nbf=str(NOW)),
    "end long ago": sign(exp=-1),
    "end as a list": sign(exp=[NOW + 86_400]),
    "end as nothing": sign(exp=None),
    "start that is no number": sign(nbf="now"),
    "start that is not finite": sign(payload=json.dumps(CLAIMS | {"nbf": float("inf")}).encode()),
    "made that is no number": sign(iat="now"),
    "made far from now": sign(iat=1 << 62),
    "name that is a number": sign(sub=7),
    "name that is a list": sign(sub=["alice"]),
    "an end twice, the last is over": sign(payload=TWICE + b',"exp":1}'),
    "an issuer twice, the last is another": sign(payload=TWICE + b',"iss":"https://evil.example.com/"}'),
    "an audience twice, the last is another": sign(payload=TWICE + b',"aud":"https://evil.example.com/"}'),
    "claims that are a list": sign(payload=b"[]"),
    "claims that are nested deep": sign(payload=b'{"a":' + b"[" * 5000 + b"]" * 5000 + b"}"),
    "claims that are not UTF-8": sign(payload=b'{"iss":"\xff"}'),
    "a header that is a list": sign(b"[]"),
    "a header that is nested deep": sign(b'{"alg":"ES256","kid":"one","a":' + b"[" * 20_000 + b"]" * 20_000 + b"}"),
    "a huge token": sign(more="x" * 1_000_000),
    "spaces around": f" {sign()} ",
    "a line break within": sign().replace(".", ".\n", 1),
}


@pytest.fixture
def issuers(tmp_path: Path) -> Issuers:
    (tmp_path / "jwks.json").write_text(jwks(KEY))
    return Issuers([IssuerPolicy(ISSUER, (AUDIENCE,), str(tmp_path / "jwks.json"))], time.monotonic)


@pytest.mark.parametrize("attack", BAD)
async def test_tokens_of_attacks_have_no_principal(issuers: Issuers, attack: str) -> None:
    assert await issuers.find_principal(BAD[attack]) is None


async def test_valid_tokens_of_unusual_form_have_a_principal(issuers: Issuers) -> None:
    for token in (
        sign(),
        sign(aud=["https://x.example.com", AUDIENCE]),
        sign({"typ": "at+jwt"}),
        sign(exp=NOW + 9.5e8),
    ):
        principal = await issuers.find_principal(token)
        assert principal is not None
        assert principal.name == "alice"


@pytest.mark.parametrize("name", ["jku", "x5u"])
async def test_tokens_cannot_make_the_gateway_fetch_other_keys(issuers: Issuers, name: str) -> None:
    page = Page(jwks(THIEF))
    async with serving(page) as url:
        for kid in ("one", "thief"):
            assert await issuers.find_principal(sign({name: url, "kid": kid}, key=THIEF)) is None
    assert page.asked == 0
