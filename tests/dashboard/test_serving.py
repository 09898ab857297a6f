"""The dashboard of a running gateway over HTTP, and of `mcp-mirror dashboard`."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from gateway_processes import start_command
from http_sessions import HEADERS, HELLO, open_session
from samples import sample
from tests.auth.conftest import HASHES, TOKENS, serving_gateway
from tests.auth.strangers import visiting
from tests.dashboard.samples import base_of, open_disk, put
from tests.end_to_end.conftest import BOUND, stop
from waiting import until

from mcp_mirror.dashboard.static_files import SECURITY_HEADERS, read_static

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured

CHANGE = {"x-mcp-mirror": "1"}
ROWS = json.dumps([{"number": at, "word": "canary"} for at in range(400)])
LARGE = json.dumps({"content": [{"type": "text", "text": ROWS}]})


def bearer(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {TOKENS[name]}"}


@pytest.fixture
def guarded(configured: Configured, raw: Any) -> Path:
    """A gateway with two principals."""
    return configured({"raw": raw()}, auth={"tokens": HASHES}, limits={"calls_per_minute": "none"})


async def store_one(url: str, name: str) -> str:
    """Let a principal store a value, and return its path."""
    async with visiting(url, name) as visitor:
        shown = await visitor.call("say_mirrored", result=LARGE)
    found = re.search(r"say-[0-9a-f-]{36}", shown)
    assert found, shown
    return found[0]


@asynccontextmanager
async def browsing(url: str, **headers: str) -> AsyncIterator[httpx2.AsyncClient]:
    async with httpx2.AsyncClient(base_url=url.removesuffix("/mcp"), headers=headers, timeout=60) as client:
        yield client


async def test_the_page_without_a_token_has_files_and_no_data(guarded: Path) -> None:
    async with serving_gateway(guarded) as served, browsing(served.url) as client:
        page = await client.get("/")
        assert (page.status_code, page.headers["www-authenticate"]) == (401, "Bearer")
        assert page.text.startswith("<!doctype html>")
        for path in read_static():
            answer = await client.get(path)
            assert answer.status_code == (401 if path == "/" else 200)
            for name, value in SECURITY_HEADERS.items():
                assert answer.headers[name] == value
        for path in ("session", "values", "calls", "savings", "value?path=x", "download?path=x"):
            answer = await client.get(f"/api/{path}")
            assert (answer.status_code, "www-authenticate" in answer.headers) == (401, True)
        assert (await client.get("/dashboard/../../etc/passwd")).status_code == 401
        assert (await client.get("/dashboard/values.py")).status_code == 404
        assert (await client.post("/", content="x")).status_code == 405


async def test_the_page_and_the_mcp_endpoint_share_tokens_and_values(guarded: Path) -> None:
    async with serving_gateway(guarded) as served:
        path = await store_one(served.url, "alice")
        async with browsing(served.url, **bearer("alice")) as client:
            session = (await client.get("/api/session")).json()
            assert session["principals"] == [{"id": '["token", "alice"]', "name": "alice"}]
            [value] = (await client.get("/api/values")).json()["values"]
            assert (value["path"], value["upstream"]) == (path, "raw")
            part = (await client.get("/api/part", params={"path": path})).json()
            assert (part["view"], part["total"]) == ("table", 400)
            forgotten = await client.post("/api/forget", params={"path": path}, headers=CHANGE)
            assert forgotten.status_code == 200
        async with visiting(served.url, "alice") as visitor:
            assert "No value is stored" in await visitor.call("memory_read", memory_path=path)


async def test_a_call_appears_in_the_log_of_its_principal_only(guarded: Path) -> None:
    async with serving_gateway(guarded) as served:
        path = await store_one(served.url, "alice")
        async with browsing(served.url, **bearer("alice")) as client:
            response = await until(lambda: client.get("/api/calls"), lambda response: response.json()["calls"])
            calls = response.json()["calls"]
        assert (calls[0]["tool"], calls[0]["outcome"], calls[0]["path"]) == ("say_mirrored", "stored", path)
        assert calls[0]["kept_out"] > 0
        async with browsing(served.url, **bearer("bob")) as client:
            assert (await client.get("/api/calls")).json()["calls"] == []


async def test_foreign_paths_look_like_unknown_ones_over_http(guarded: Path) -> None:
    async with serving_gateway(guarded) as served:
        path = await store_one(served.url, "alice")
        unknown = path[:-2] + ("00" if path[-2:] != "00" else "11")
        async with browsing(served.url, **bearer("bob")) as client:
            for endpoint in ("value", "part", "image", "download"):
                for below in ("", "/0", "/0/word", "/399/number", "/~#0"):
                    answers = [
                        await client.get(f"/api/{endpoint}", params={"path": one + below, "principal": principal})
                        for one in (path, unknown)
                        for principal in ("", '["token", "alice"]')
                    ]
                    texts = [one.text.replace(unknown, path) for one in answers]
                    assert {one.status_code for one in answers} == {404}
                    assert texts[:2] == texts[2:]
                    assert "canary" not in "".join(texts)
            answer = await client.post("/api/forget", params={"path": path}, headers=CHANGE)
            assert answer.status_code == 404
        async with browsing(served.url, **bearer("alice")) as client:
            assert (await client.get("/api/values")).json()["total"] == 1


REFUSED: dict[str, tuple[dict[str, str], int]] = {
    "a foreign host": ({"host": "evil.example"}, 421),
    "a foreign host with the port": ({"host": "evil.example:80"}, 421),
    "a foreign origin": ({"origin": "https://evil.example"}, 403),
    "another page of this machine": ({"origin": "http://localhost:1"}, 403),
    "no origin": ({"origin": "null"}, 403),
    "a foreign site": ({"sec-fetch-site": "cross-site"}, 403),
    "another port": ({"sec-fetch-site": "same-site"}, 403),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("auth", sample([{"tokens": HASHES}, None], lambda auth: auth is not None))
async def test_requests_of_other_pages_are_rejected(
    configured: Configured, raw: Any, case: str, auth: dict[str, Any] | None
) -> None:
    headers, status = REFUSED[case]
    config = configured({"raw": raw()}, **({"auth": auth} if auth else {}))
    async with (
        serving_gateway(config) as served,
        browsing(served.url, **(bearer("alice") if auth else {})) as client,
    ):
        for method, path in (("GET", "/api/values"), ("POST", "/api/forget?path=x")):
            answer = await client.request(method, path, headers={**CHANGE, **headers})
            assert answer.status_code == status, (path, answer.text)
        if "host" in headers:
            assert (await client.get("/", headers=headers)).status_code == 421
        for change in ({}, {"content-type": "application/x-www-form-urlencoded"}):
            answer = await client.post("/api/forget?path=x", headers=change)
            assert answer.status_code == 403
        assert (await client.get("/api/forget?path=x")).status_code == 404


async def test_the_page_works_behind_a_tls_proxy(configured: Configured, raw: Any) -> None:
    config = configured({"raw": raw()}, auth={"tokens": HASHES}, server={"allowed_hosts": "tools.example.com"})
    own = {"host": "tools.example.com", "origin": "https://tools.example.com", "sec-fetch-site": "same-origin"}
    async with serving_gateway(config) as served:
        path = await store_one(served.url, "alice")
        async with browsing(served.url, **bearer("alice"), **own) as client:
            assert (await client.get("/dashboard/main.js")).status_code == 200  # browsers name the origin of a module
            forgotten = await client.post("/api/forget", params={"path": path}, headers=CHANGE)
            assert forgotten.status_code == 200, forgotten.text
            for foreign in ("https://evil.example", "https://tools.example.com:444", "null"):
                answer = await client.post("/api/forget?path=x", headers={**CHANGE, "origin": foreign})
                assert answer.status_code == 403
            assert (await client.post("/mcp", content=HELLO, headers=HEADERS)).status_code == 403


async def test_without_auth_the_page_shows_the_local_user(configured: Configured, raw: Any) -> None:
    async with serving_gateway(configured({"raw": raw()})) as served, browsing(served.url) as client:
        assert (await client.get("/")).status_code == 200
        session = (await client.get("/api/session")).json()
        assert (session["principals"][0]["name"], session["is_operator"]) == ("local user", False)
        assert (await client.post("/mcp", content=HELLO, headers=HEADERS)).status_code == 200
        assert (await client.get("/other")).status_code == 404


async def test_a_scope_makes_an_operator(configured: Configured, raw: Any) -> None:
    tokens = {"alice": {"hash": HASHES["alice"], "scopes": ["mirror.operator"]}, "bob": HASHES["bob"]}
    config = configured({"raw": raw()}, auth={"tokens": tokens}, dashboard={"operator_scopes": "mirror.operator"})
    async with serving_gateway(config) as served:
        path = await store_one(served.url, "bob")
        bob = '["token", "bob"]'
        async with browsing(served.url, **bearer("alice")) as client:
            session = (await client.get("/api/session")).json()
            assert [one["name"] for one in session["principals"]] == ["alice", "bob"]
            listed = (await client.get("/api/values", params={"principal": bob})).json()
            assert listed["values"][0]["path"] == path
            answer = await client.get("/api/part", params={"principal": bob, "path": path})
            assert (answer.status_code, "canary" in answer.text) == (403, False)
        async with browsing(served.url, **bearer("bob")) as client:
            assert (await client.get("/api/session")).json()["is_operator"] is False
            assert (await client.get("/api/calls?principal=*")).status_code == 403


@pytest.mark.parametrize(
    "sections", [{"dashboard": {"enabled": False}}, {"mirror": {"suffix": "", "capture": "never"}}]
)
async def test_a_page_that_is_disabled_does_not_exist(
    configured: Configured, raw: Any, sections: dict[str, Any]
) -> None:
    async with serving_gateway(configured({"raw": raw()}, **sections)) as served, browsing(served.url) as client:
        for path in ("/", "/dashboard/main.js", "/api/session"):
            assert (await client.get(path)).status_code == 404


@asynccontextmanager
async def local_page(*arguments: str) -> AsyncIterator[tuple[str, str, Any]]:
    """Start `mcp-mirror dashboard`; yield the address, the token of the link, and a function that reads a new one."""
    process = await start_command("dashboard", "--no-browser", *arguments, stderr=PIPE)
    assert process.stderr
    lines = process.stderr

    async def read_link() -> tuple[str, str]:
        async with asyncio.timeout(BOUND):
            while line := (await lines.readline()).decode():
                if found := re.search(r"(http://127\.0\.0\.1:\d+)/#token=(\S+)", line):
                    return found[1], found[2]
        raise AssertionError("no link")

    try:
        address, token = await read_link()
        yield address, token, read_link
    finally:
        await stop(process)


async def test_the_command_shows_a_store_with_a_link_that_works_once(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    async with open_disk(folder, lambda: 1e9) as store:
        await put(store, [1], "list_orders", 1, created=1e9, expires=9e9)
        async with (
            local_page("--store", str(folder)) as (address, token, read_link),
            httpx2.AsyncClient(base_url=address, timeout=60) as client,
        ):
            for headers in ({}, {"authorization": f"Bearer {token}"}, {"authorization": "Bearer x"}):
                assert (await client.get("/api/values", headers=headers)).status_code == 401
            link = {"authorization": f"Bearer {token}", **CHANGE}
            session = (await client.post("/api/login", headers=link)).json()["token"]
            found = await client.get("/api/values", headers={"authorization": f"Bearer {session}"})
            assert [one["path"] for one in found.json()["values"]] == [base_of("list_orders", 1)]
            again = await client.post("/api/login", headers=link)
            assert (again.status_code, "used before" in again.json()["error"]) == (401, True)
            _, fresh = await read_link()
            assert fresh != token
            link["authorization"] = f"Bearer {fresh}"
            assert (await client.post("/api/login", headers=link)).status_code == 200
            refused = await client.post("/api/login", headers={**link, "host": "evil.example"})
            assert refused.status_code == 421
            assert (await client.post("/api/login", headers={"authorization": "Bearer x"})).status_code == 405


async def test_the_command_works_beside_a_gateway_and_shows_its_calls(
    configured: Configured, raw: Any, tmp_path: Path
) -> None:
    config = configured({"raw": raw()}, store={"kind": "disk"}, audit={"path": str(tmp_path / "audit.jsonl")})
    async with serving_gateway(config) as served:
        async with httpx2.AsyncClient(timeout=60) as http:
            session = await open_session(http, served.url)
            call = {
                "jsonrpc": "2.0",
                "id": 2,
                "method": "tools/call",
                "params": {"name": "say_mirrored", "arguments": {"result": LARGE}},
            }
            shown = (await http.post(served.url, json=call, headers=HEADERS | session)).text
        path = re.search(r"say-[0-9a-f-]{36}", shown)
        assert path
        async with (
            local_page("--config", str(config)) as (address, token, _),
            httpx2.AsyncClient(base_url=address, timeout=60) as client,
        ):
            link = {"authorization": f"Bearer {token}", **CHANGE}
            client.headers["authorization"] = (
                f"Bearer {(await client.post('/api/login', headers=link)).json()['token']}"
            )
            part = await client.get("/api/part", params={"path": path[0]})
            assert part.json()["total"] == 400
            await until(lambda: client.get("/api/calls"), lambda response: response.json()["calls"])
    assert '"tool": "dashboard"' in (tmp_path / "audit.jsonl").read_text()


async def test_the_command_without_a_configuration_shows_wrapped_servers(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path), "XDG_DATA_HOME": str(tmp_path / "data"), "XDG_CONFIG_HOME": str(tmp_path / "none")}
    folder = tmp_path / "data" / "mcp-mirror" / "store"
    async with open_disk(folder, lambda: 1e9) as store:
        await put(store, [1], "t", 1, created=1e9, expires=9e9)
    process = await start_command("dashboard", "--no-browser", stderr=PIPE, env=home)
    assert process.stderr
    try:
        lines = [(await asyncio.wait_for(process.stderr.readline(), BOUND)).decode() for _ in range(2)]
    finally:
        await stop(process)
    assert "no configuration was found" in lines[0]
    assert "#token=" in lines[1]


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
async def test_the_command_ends_at_a_signal_with_status_zero(tmp_path: Path) -> None:
    process = await start_command("dashboard", "--no-browser", "--store", str(tmp_path), stderr=PIPE)
    assert process.stderr
    await asyncio.wait_for(process.stderr.readline(), BOUND)
    assert await stop(process) == 0
