"""Authentication of HTTP requests: admitted tokens, and the challenges for other requests."""

from __future__ import annotations

import asyncio
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import httpx2
import pytest
from http_sessions import HEADERS, HELLO, open_session, session_of
from tests.auth.conftest import HASHES, TOKENS, serving_gateway
from tests.auth.issuing import AUDIENCE, Page, SigningKey, jwks, serving
from tests.end_to_end.conftest import BOUND
from tests.load import measure_pause, slowness

from mcp_mirror.app import open_application
from mcp_mirror.config import load_config
from mcp_mirror.errors import MirrorError
from mcp_mirror.security.pins import Pins
from mcp_mirror.server.auth.principals import mint_token

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Run

ISSUER = "https://login.example.com"
RESOURCE = "https://tools.example.com/mcp"
METADATA = "https://tools.example.com/.well-known/oauth-protected-resource/mcp"
KEY = SigningKey("one")
LIST = '{"jsonrpc":"2.0","id":2,"method":"tools/list"}'
ANYWHERE = "0.0.0.0"  # noqa: S104  # an address beyond loopback


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.fixture
def guarded(configured: Configured, tmp_path: Path) -> Path:
    """A gateway that takes tokens of its own and of an issuer, with a scope."""
    (tmp_path / "jwks.json").write_text(jwks(KEY))
    auth = {
        "tokens": {"alice": HASHES["alice"], "bob": {"hash": HASHES["bob"], "scopes": ["other"]}},
        "issuers": [{"issuer": ISSUER, "jwks": "jwks.json"}],
        "scopes": ["tools"],
        "resource": RESOURCE,
    }
    return configured({}, auth=auth)


CHALLENGE = f'Bearer scope="tools", resource_metadata="{METADATA}"'
BAD_TOKEN = (
    'Bearer error="invalid_token", error_description="The token is unknown, has expired, or is not for this server.", '
    f'scope="tools", resource_metadata="{METADATA}"'
)
NO_SCOPE = (
    'Bearer error="insufficient_scope", error_description="The token does not have the scope that is required.", '
    f'scope="tools", resource_metadata="{METADATA}"'
)
REFUSED: dict[str, tuple[dict[str, str], int, str]] = {
    "none": ({}, 401, CHALLENGE),
    "an empty one": ({"authorization": "Bearer"}, 401, CHALLENGE),
    "another scheme": ({"authorization": "Basic YWxpY2U6eA=="}, 401, CHALLENGE),
    "unknown": (bearer("mcpm_unknown"), 401, BAD_TOKEN),
    "a hash": (bearer(HASHES["alice"]), 401, BAD_TOKEN),
    "no text": ({"authorization": "Bearer \u00ff\u00fe"}, 401, BAD_TOKEN),
    "expired": (bearer(KEY.sign(ISSUER, scope="tools", exp=1)), 401, BAD_TOKEN),
    "for another": (bearer(KEY.sign(ISSUER, scope="tools", aud="x")), 401, BAD_TOKEN),
    "without the scope": (
        bearer(KEY.sign(ISSUER)),
        403,
        NO_SCOPE,
    ),
    "configured for another scope": (
        bearer(TOKENS["bob"]),
        403,
        NO_SCOPE,
    ),
}


async def test_requests_without_a_valid_token_get_a_challenge(guarded: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "mcp_mirror")
    async with serving_gateway(guarded) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        for name, (headers, status, challenge) in REFUSED.items():
            raw_headers = [(key.encode(), value.encode("latin-1")) for key, value in (HEADERS | headers).items()]
            for method in ("POST", "GET", "DELETE", "OPTIONS"):
                answer = await client.request(method, served.url, headers=raw_headers, content=HELLO)
                assert (answer.status_code, answer.headers["www-authenticate"]) == (status, challenge), (name, method)
        for way in ("", "/", "/other", "/../mcp"):
            assert (await client.get(served.url.removesuffix("/mcp") + way)).status_code == 401
        for token in (TOKENS["alice"], KEY.sign(ISSUER, scope="more tools")):
            assert (await client.post(served.url, headers=HEADERS | bearer(token), content=HELLO)).status_code == 200
    log = caplog.text
    assert "Rejected a token: ExpiredSignatureError" in log
    assert "no good token. A token is required, in the Authorization header." in log
    assert "no good token. The token is unknown, has expired, or is not for this server." in log
    assert "insufficient scope. The token does not have the scope tools of `auth.scopes`." in log
    assert not [word for word in (*TOKENS.values(), "mcpm_unknown", "eyJ") if word in log]


async def test_a_flood_without_tokens_does_not_fill_the_audit_log(configured: Configured, tmp_path: Path) -> None:
    config = configured({}, auth={"tokens": HASHES}, audit={"path": "audit.jsonl"})
    async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        for _ in range(130):
            assert (await client.post(served.url, headers=HEADERS, content=HELLO)).status_code == 401
        assert served.application.server.rejected_requests.counts == {"no good token": 130}
    records = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert {record["outcome"] for record in records} == {"no good token"}
    assert [int(record.get("requests", 1)) for record in records] == [1] * 100 + [30]


async def test_a_valid_token_in_a_url_or_sent_twice_is_rejected(guarded: Path) -> None:
    token = TOKENS["alice"]
    async with serving_gateway(guarded) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        for query in (f"access_token={token}", f"Access_Token={token}", "token=x", "api_key=x&a=b", "a&%54oken=x"):
            for headers in (HEADERS, HEADERS | bearer(token)):
                answer = await client.post(f"{served.url}?{query}", headers=headers, content=HELLO)
                assert answer.status_code == 400
                assert 'error="invalid_request"' in answer.headers["www-authenticate"]
        twice = [*HEADERS.items(), ("authorization", f"Bearer {token}"), ("authorization", f"Bearer {token}")]
        assert (await client.post(served.url, headers=twice, content=HELLO)).status_code == 400


@pytest.mark.alone
async def test_a_query_of_many_parameters_does_not_stall_others(guarded: Path) -> None:
    async with serving_gateway(guarded) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        for query, status in (("a&" * 9_000, 401), ("%61&" * 4_500, 401), ("%" * 18_000, 401), ("a&" * 30_000, 431)):
            request = client.build_request("GET", f"{served.url}?{query}")
            answer = asyncio.create_task(client.send(request))
            assert await measure_pause(answer) < 0.03 * slowness()  # before: 0.06
            assert answer.result().status_code == status


async def test_metadata_names_the_issuers_of_tokens(guarded: Path) -> None:
    async with serving_gateway(guarded) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        answer = await client.get(served.url.removesuffix("/mcp") + "/.well-known/oauth-protected-resource/mcp")
        assert answer.status_code == 200
        metadata = answer.json()
    assert metadata["resource"] == RESOURCE
    assert metadata["authorization_servers"] == [ISSUER]
    assert metadata["scopes_supported"] == ["tools"]
    assert metadata["bearer_methods_supported"] == ["header"]


async def test_the_body_of_a_rejected_request_is_not_read(guarded: Path) -> None:
    async with serving_gateway(guarded) as served:
        url = httpx2.URL(served.url)
        reader, writer = await asyncio.open_connection(url.host, url.port)
        head = "".join(f"{name}: {value}\r\n" for name, value in HEADERS.items())
        writer.write(f"POST /mcp HTTP/1.1\r\nhost: {url.host}:{url.port}\r\n{head}content-length: 999\r\n\r\n".encode())
        answer = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), BOUND)  # though the body never comes
        assert answer.startswith(b"HTTP/1.1 401 ")
        writer.close()


async def test_a_session_of_another_principal_is_not_found(guarded: Path) -> None:
    alice, carol = bearer(TOKENS["alice"]), bearer(KEY.sign(ISSUER, scope="tools", sub="carol"))
    ask = LIST
    async with serving_gateway(guarded) as served, httpx2.AsyncClient(timeout=BOUND, headers=alice) as client:
        session = await open_session(client, served.url)
        unknown = session | {"mcp-session-id": "0" * 32}
        for method in ("POST", "GET", "DELETE"):
            answers = [
                await client.request(method, served.url, headers=HEADERS | carol | named, content=ask)
                for named in (session, unknown)
            ]
            seen = [(one.status_code, one.content, {**one.headers, "date": ""}) for one in answers]
            assert seen[0] == seen[1]
            assert seen[0][0] == 404
        assert (await client.post(served.url, headers=HEADERS | session, content=ask)).status_code == 200
        again = bearer(KEY.sign(ISSUER, scope="tools", sub="carol", exp=int(time.time()) + 900))
        own = await session_of(served.url, carol)
        refreshed = await client.post(served.url, headers=HEADERS | own | again, content=ask)
        assert refreshed.status_code == 200  # a session is the principal's, whichever token shows that


async def test_unavailable_keys_are_a_503_not_a_401(configured: Configured, tmp_path: Path) -> None:
    page, audit = Page(status="500 Broken"), tmp_path / "audit.jsonl"
    async with serving(page) as url:
        issuers = [{"issuer": ISSUER, "jwks": url, "audience": AUDIENCE}]
        auth = {"tokens": HASHES, "issuers": issuers}
        config = configured({}, auth=auth, audit={"path": str(audit)})
        async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:
            answer = await client.post(served.url, headers=HEADERS | bearer(KEY.sign(ISSUER)), content=HELLO)
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "10")
            known = await client.post(served.url, headers=HEADERS | bearer(TOKENS["alice"]), content=HELLO)
            assert known.status_code == 200
    assert [json.loads(line)["outcome"] for line in audit.read_text().splitlines()] == ["keys unavailable"]


async def test_a_reload_keeps_the_keys_of_an_issuer_that_is_unavailable(
    configured: Configured, caplog: pytest.LogCaptureFixture
) -> None:
    page = Page(jwks(KEY))
    async with serving(page) as url:
        issuers = [{"issuer": ISSUER, "jwks": url, "audience": AUDIENCE}]
        config = configured({}, auth={"issuers": issuers})
        async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:
            ask = HEADERS | bearer(KEY.sign(ISSUER))
            assert (await client.post(served.url, headers=ask, content=HELLO)).status_code == 200
            page.status = "500 Broken"
            assert served.application.reload(load_config(config, {}), Pins()).deferred == ()
            assert (await client.post(served.url, headers=ask, content=HELLO)).status_code == 200
            assert f"The keys in {url} cannot be read: HTTP status 500." in caplog.messages
            page.status, page.body = "200 OK", jwks(SigningKey("two"))  # the issuer has withdrawn the key
            assert served.application.reload(load_config(config, {}), Pins()).deferred == ()
            assert (await client.post(served.url, headers=ask, content=HELLO)).status_code == 401


async def test_check_reports_an_issuer_without_keys(configured: Configured, run: Run, tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text(jwks(KEY))
    known = {"issuer": ISSUER, "jwks": "jwks.json", "audience": AUDIENCE}
    unknown = {"issuer": "https://other.example.com", "jwks": "absent.json", "audience": AUDIENCE}
    ended = await run("check", "--config", str(configured({}, auth={"issuers": [known, unknown]})))
    assert ended.code == 1
    problems = [line for line in ended.err.splitlines() if line.startswith("problem:")]
    assert len(problems) == 1
    assert "no token of https://other.example.com can be verified" in problems[0]
    assert "absent.json cannot be read: No such file or directory." in problems[0]


async def test_a_stream_ends_when_its_token_expires(configured: Configured, tmp_path: Path) -> None:
    (tmp_path / "jwks.json").write_text(jwks(KEY))
    issuers = [{"issuer": ISSUER, "jwks": "jwks.json", "audience": AUDIENCE, "leeway": 0}]
    async with (
        serving_gateway(configured({}, auth={"issuers": issuers})) as served,
        httpx2.AsyncClient(timeout=BOUND) as client,
    ):
        session = await session_of(served.url, bearer(KEY.sign(ISSUER)))
        for lifetime in (2, 8, 32):
            token = bearer(KEY.sign(ISSUER, exp=int(time.time()) + lifetime))
            async with client.stream("GET", served.url, headers=HEADERS | session | token) as stream:
                if stream.status_code == 401:
                    continue  # on a busy machine the token expired before the stream was open
                assert stream.status_code == 200
                async with asyncio.timeout(BOUND):
                    await stream.aread()
                break
        assert stream.status_code == 200
        assert (await client.get(served.url, headers=HEADERS | session | token)).status_code == 401


@pytest.mark.parametrize("change", [None, {"hash": HASHES["bob"], "scopes": ["fewer"]}], ids=["removed", "restricted"])
async def test_a_stream_ends_when_its_token_is_changed(configured: Configured, change: dict[str, Any] | None) -> None:
    config = configured({}, auth={"tokens": HASHES})
    async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        shown = {name: bearer(TOKENS[name]) for name in ("alice", "bob")}
        shown = {name: HEADERS | token | await session_of(served.url, token) for name, token in shown.items()}
        async with (
            client.stream("GET", served.url, headers=shown["alice"]) as kept,
            client.stream("GET", served.url, headers=shown["bob"]) as removed,
        ):
            reading = asyncio.create_task(kept.aread())
            sections = json.loads(config.read_text())
            sections["auth"]["tokens"] |= {"bob": change}
            sections["auth"]["tokens"] = {name: one for name, one in sections["auth"]["tokens"].items() if one}
            config.write_text(json.dumps(sections))
            assert served.application.reload(load_config(config, {}), Pins()).deferred == ()
            assert (await client.post(served.url, headers=shown["alice"], content=LIST)).status_code == 200
            async with asyncio.timeout(BOUND):
                await removed.aread()
            assert not reading.done()
            reading.cancel()


async def test_a_token_removed_from_the_configuration_is_rejected(configured: Configured) -> None:
    config = configured({}, auth={"tokens": HASHES})
    async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        session = await session_of(served.url, bearer(TOKENS["bob"]))
        sections = json.loads(config.read_text())
        del sections["auth"]["tokens"]["bob"]
        config.write_text(json.dumps(sections))
        ask = HEADERS | session | bearer(TOKENS["bob"])
        assert (await client.post(served.url, headers=ask, content=LIST)).status_code == 200
        assert served.application.reload(load_config(config, {}), Pins()).deferred == ()
        assert (await client.post(served.url, headers=ask, content=LIST)).status_code == 401
        del sections["auth"]
        config.write_text(json.dumps(sections))
        deferred = served.application.reload(load_config(config, {}), Pins()).deferred
        assert deferred == ("auth.tokens.alice (removed)",)  # the gate stays closed
        known = await client.post(served.url, headers=HEADERS | bearer(TOKENS["alice"]), content=HELLO)
        assert known.status_code == 200


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({}, "Write 'auth:' with tokens or issuers, or serve on 127.0.0.1."),
        ({"auth": {"tokens": HASHES}}, "Name in 'server.allowed_hosts' the hosts under which clients reach it"),
    ],
)
async def test_other_addresses_than_loopback_need_tokens_and_allowed_hosts(
    sections: dict[str, Any], message: str, configured: Configured
) -> None:
    async with open_application(load_config(configured({}, **sections), {})) as application:
        for host in (ANYWHERE, "::", "tools.example.com"):
            with pytest.raises(MirrorError, match=re.escape(message)):
                await application.serve_http(host, 0, print, anyio.Event())


async def test_other_addresses_than_loopback_serve_only_allowed_hosts(configured: Configured) -> None:
    server = {"allowed_hosts": ["tools.example.com", "10.1.2.3:*"], "allowed_origins": "https://app.example.com"}
    config = configured({}, auth={"tokens": HASHES}, server=server)
    async with serving_gateway(config, ANYWHERE) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        url = served.url.replace(ANYWHERE, "127.0.0.1")
        for headers, status in (
            ({}, 200),
            ({"host": "tools.example.com"}, 200),
            ({"host": "10.1.2.3:8000"}, 200),
            ({"host": "tools.example.com:8000"}, 421),
            ({"host": "evil.example.com"}, 421),
            ({"host": "tools.example.com", "origin": "https://app.example.com"}, 200),
            ({"host": "tools.example.com", "origin": "https://evil.example.com"}, 403),
        ):
            answer = await client.post(url, headers=HEADERS | bearer(TOKENS["alice"]) | headers, content=HELLO)
            assert answer.status_code == status, headers
        for origin, shown in (("https://app.example.com", True), ("https://evil.example.com", False)):
            asking = {"origin": origin, "access-control-request-method": "POST"}
            asking |= {"access-control-request-headers": "authorization, mcp-session-id"}
            preflight = await client.options(url, headers=asking)
            assert (preflight.headers.get("access-control-allow-origin") == origin) is shown
            local = await client.options(url, headers=asking | {"access-control-request-private-network": "true"})
            assert (local.status_code == 200) is shown
            assert not shown or local.headers["access-control-allow-private-network"] == "true"
            answer = await client.post(url, headers=HEADERS | {"origin": origin}, content=HELLO)
            assert answer.status_code == 401
            assert (answer.headers.get("access-control-allow-origin") == origin) is shown


async def test_a_minted_token_admits_its_principal(configured: Configured, run: Run) -> None:
    ended = await run("token", "alice")
    token = ended.out.strip()
    assert token not in ended.err
    line = ended.err.splitlines()[-1].strip()
    assert line.startswith("alice: sha256:")
    config = configured({}, auth={"tokens": {"alice": line.partition(": ")[2]}})
    async with serving_gateway(config) as served, httpx2.AsyncClient(timeout=BOUND) as client:
        assert (await client.post(served.url, headers=HEADERS | bearer(token), content=HELLO)).status_code == 200
    assert mint_token()[0] != mint_token()[0]
