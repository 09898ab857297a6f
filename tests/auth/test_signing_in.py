"""Upstreams with OAuth: how the gateway gets, stores and protects tokens."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import stat
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import anyio.lowlevel
import httpx2
import pytest
from gateway_processes import COMMAND, forked_python
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from tests.auth.authority import CLIENT, Authority, governing
from waiting import until

from mcp_mirror.app import Application, open_application
from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.cli.login import sign_in
from mcp_mirror.cli.wrapped_server import build_wrap_config, describe_remote
from mcp_mirror.config import load_config
from mcp_mirror.errors import MirrorError

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, Run

BOUND = 60
SIGN_IN = "A person has to sign in to it: run `mcp-mirror login guarded`."
RECEIVED = '"shown": "ac"'
NOT_A_SECRET = "returned a token or a client secret that is not ASCII text of up to 65,536 characters"
"""What the upstream says of a call that came with an access token."""


@pytest.fixture
async def authority() -> AsyncIterator[Authority]:
    made = Authority()
    async with governing(made):
        yield made


def wanting(authority: Authority, folder: Path, **oauth: Any) -> dict[str, Any]:
    """An upstream with OAuth."""
    file = str(folder / "kept" / "tokens.json")
    return {"url": f"{authority.url}/mcp", "auth": {"oauth": {"token_file": file, **oauth}}}


@pytest.fixture
def config(configured: Configured, authority: Authority, tmp_path: Path) -> Path:
    """A configuration with an upstream to which a user signs in."""
    return configured({"guarded": wanting(authority, tmp_path)})


def alone(authority: Authority, folder: Path, **oauth: Any) -> dict[str, Any]:
    """An upstream to which the gateway signs in by itself."""
    client = {"client_id": CLIENT[0], "client_secret": CLIENT[1], "issuer": authority.url}
    return wanting(authority, folder, grant="client_credentials", **client, **oauth)


async def browse(url: str) -> None:
    """Open what a person is shown."""
    async with httpx2.AsyncClient(follow_redirects=True) as browser:
        assert (await browser.get(url)).status_code == 200


async def log_in(config: Path, *scopes: str) -> None:
    """A person signs in."""
    (policy,) = load_config(config, {}).upstreams
    with anyio.fail_after(BOUND):
        await sign_in(policy, scopes, browse)


async def text(application: Application, tool: str, arguments: Any = None) -> str:
    """What a tool answers."""
    with anyio.fail_after(BOUND):
        gateway = application.gateway
        call = gateway.new_call(NullChannel(Caller(LOCAL)), tool, json.dumps(arguments or {}).encode())
        content = (await gateway.state.answer(call))["content"]
    return str(json.loads(b"".join(content) if isinstance(content, tuple) else bytes(content))[0]["text"])


async def state_of(config: Path) -> str:
    """How the upstream is, once that is known."""
    async with open_application(load_config(config, {})) as application:
        (upstream,) = application.upstreams
        with anyio.fail_after(BOUND):
            await upstream.settled.wait()
        return f"{upstream.status.state}: {upstream.status.detail}"


def grants(authority: Authority) -> list[str]:
    return [grant for grant, _ in authority.asked]


async def test_client_credentials_are_exchanged_once_for_a_kept_token(
    authority: Authority, configured: Configured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", "mcp_mirror")
    config = load_config(configured({"guarded": alone(authority, tmp_path)}), {})
    async with open_application(config) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
        async with anyio.create_task_group() as tasks:
            for _ in range(8):  # that are answered only when all are under way
                tasks.start_soon(text, application, "slow_mirrored", {"enough": 8})
        refused = await text(application, "quote_mirrored")
        assert "You sent ***" in refused
    assert grants(authority) == ["client_credentials"]
    log = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith("mcp_mirror")) + refused
    assert not [secret for secret in (*authority.good, CLIENT[1]) if secret in log]
    file = tmp_path / "kept" / "tokens.json"
    assert file.read_text().count(next(iter(authority.good))) == 1
    if sys.platform != "win32":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert [path.name for path in file.parent.iterdir()] == ["tokens.json"]
    async with open_application(config) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
        assert grants(authority) == ["client_credentials"]  # it was kept
        authority.good.clear()  # withdrawn
        assert RECEIVED in await text(application, "hear_mirrored")
        assert grants(authority) == ["client_credentials"] * 2


async def test_a_wrapped_server_uses_the_tokens_of_a_login_by_its_address(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    config = build_wrap_config("guarded", describe_remote(f"{authority.url}/mcp"), {}, None, {})
    async with open_application(config) as application:
        (upstream,) = application.upstreams
        with anyio.fail_after(BOUND):
            await upstream.settled.wait()
        assert (
            f"run `mcp-mirror login guarded --url '{authority.url}/mcp'`, or wrap it with --header."
            in upstream.status.detail
        )
    with anyio.fail_after(BOUND):
        assert await sign_in(config.upstreams[0], (), browse) == str(tmp_path / "data/mcp-mirror/tokens/guarded.json")
    async with open_application(config) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
    endpoint = build_wrap_config("other", describe_remote("http://x/mcp", ["Authorization: b"]), {}, None, {})
    assert "oauth=None" in repr(endpoint.upstreams[0].endpoint)


async def test_a_wrapped_server_without_a_sign_in_needs_no_token(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    authority.is_open = True
    config = build_wrap_config("guarded", describe_remote(f"{authority.url}/mcp"), {}, None, {})
    async with open_application(config) as application:
        assert '"shown": ""' in await text(application, "hear_mirrored")
        authority.is_open = False
        assert f"run `mcp-mirror login guarded --url '{authority.url}/mcp'`" in await text(application, "hear_mirrored")
        with anyio.fail_after(BOUND):
            await sign_in(config.upstreams[0], (), browse)
        assert RECEIVED in await text(application, "hear_mirrored")


async def test_a_wrapped_server_names_the_command_of_its_first_sign_in(authority: Authority, tmp_path: Path) -> None:
    command = forked_python(COMMAND, "wrap", "--name", "guarded", "--url", f"{authority.url}/mcp")
    environ = {**os.environ, "XDG_DATA_HOME": str(tmp_path)}
    process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, stderr=PIPE, env=environ)
    parameters = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "1"}}
    request = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": parameters}
    async with asyncio.timeout(BOUND):
        shown = b"".join(await process.communicate(json.dumps(request).encode() + b"\n")).decode()
    assert (
        "Server 'guarded' did not start: A person has to sign in to it: run "
        f"`mcp-mirror login guarded --url '{authority.url}/mcp'`, or wrap it with --header."
    ) in shown


async def test_a_user_signs_in_once_and_tokens_are_refreshed(
    authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    authority.expires_in = 1
    config = configured({"guarded": wanting(authority, tmp_path, scopes=["extra"])})
    async with open_application(load_config(config, {})) as application:
        (upstream,) = application.upstreams
        with anyio.fail_after(BOUND):
            await upstream.settled.wait()
        assert upstream.status.detail == SIGN_IN
        assert "not connected now: guarded" in await text(application, "hear_mirrored")
        await log_in(config, "more")
        await until(lambda: text(application, "hear_mirrored"), lambda found: RECEIVED in found)
    request = dict(authority.asked)["authorization_code"]
    assert request["resource"] == f"{authority.url}/mcp"
    assert request["client_id"] == "registered"
    assert authority.scopes == "extra more"
    token_file = tmp_path / "kept" / "tokens.json"
    token = json.loads(token_file.read_text())
    token_file.write_text(json.dumps({**token, "ends": 1.0}))  # long ago
    asked_before = len(authority.asked)
    authority.expires_in = 3600
    async with open_application(load_config(config, {})) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
        assert grants(authority)[asked_before:] == ["refresh_token"]
        authority.good.clear()
        authority.refresh.clear()  # the person has taken the permission back
        asked_before = len(authority.asked)
        ended = (
            "Its authorization server did not renew the token (HTTP status 400, invalid_grant). A person has to sign in"
        )
        for _ in range(2):
            assert f"{ended} to it again: run `mcp-mirror login guarded`." in await text(application, "hear_mirrored")
        assert grants(authority)[asked_before:] == ["refresh_token"]  # the refused token was not sent again


@pytest.mark.parametrize("transport", ["streamable-http", "sse"])
async def test_the_log_and_calls_name_the_login_command(
    *, transport: str, authority: Authority, configured: Configured, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured({"guarded": {**wanting(authority, tmp_path), "transport": transport}})
    assert await state_of(config) == f"down: {SIGN_IN}"
    assert f"upstream guarded is down: {SIGN_IN}" in caplog.text
    await log_in(config)
    if transport == "sse":  # the authority serves the other one
        return
    async with open_application(load_config(config, {})) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
        (tmp_path / "kept" / "tokens.json").unlink()
        authority.good.clear()
        authority.refresh.clear()
        assert SIGN_IN.removeprefix("A person has to sign in to it: ") in await text(application, "hear_mirrored")


@asynccontextmanager
async def signed_in(configured: Configured, authority: Authority, tmp_path: Path) -> AsyncIterator[Application]:
    """Open a gateway with an upstream for which a person has signed in, and which has answered a call."""
    config = configured({"guarded": wanting(authority, tmp_path)})
    await log_in(config)
    async with open_application(load_config(config, {})) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
        yield application


@pytest.mark.parametrize("status", [503, 429])
async def test_a_short_outage_of_an_authorization_server_needs_no_sign_in(
    *, status: int, authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    async with signed_in(configured, authority, tmp_path) as application:
        authority.good.clear()
        authority.status = authority.error_status = status
        answer = await text(application, "hear_mirrored")
        assert answer == (
            "Upstream 'guarded' requires authorization for 'hear'. The gateway has no token for it: its authorization "
            f"server did not renew the token (HTTP status {status}, invalid_grant). Try again in a moment."
        )
        authority.status = 200
        assert RECEIVED in await text(application, "hear_mirrored")


@contextmanager
def full_disk() -> Iterator[None]:
    """No token file can be written."""

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mcp_mirror.upstreams.oauth.token_file.atomic_write", fail)
        yield


async def test_event_streams_are_opened_again_when_there_is_a_token(
    authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    authority.has_streams = True
    async with open_application(load_config(configured({"guarded": alone(authority, tmp_path)}), {})) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
        await until(lambda: authority.streams == 1)
        authority.good.clear()
        authority.status = authority.error_status = 503
        authority.ended.set()
        await until(lambda: authority.refused_streams == 2)
        authority.status = 200
        await until(lambda: authority.streams == 2)


async def test_no_refresh_token_is_used_up_while_the_disk_is_full(
    authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    async with signed_in(configured, authority, tmp_path) as application:
        authority.good.clear()
        with full_disk():
            assert await text(application, "hear_mirrored") == (
                "Upstream 'guarded' requires authorization for 'hear'. The gateway has no token for it: its tokens "
                f"cannot be written to {tmp_path / 'kept' / 'tokens.json'}: No space left on device. Try again in a "
                "moment."
            )
        assert "refresh_token" not in grants(authority)
        assert RECEIVED in await text(application, "hear_mirrored")


async def test_client_credentials_need_no_space_on_the_disk(
    authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    config = configured({"guarded": alone(authority, tmp_path)})
    with full_disk():
        async with open_application(load_config(config, {})) as application:
            for _ in range(2):
                assert RECEIVED in await text(application, "hear_mirrored")
                authority.good.clear()
            assert RECEIVED in await text(application, "hear_mirrored")
    assert grants(authority) == ["client_credentials"] * 3


async def test_a_challenge_may_have_letters_beyond_ascii(
    authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    authority.realm = "M\u00fcnchner B\u00fcro"
    config = load_config(configured({"guarded": alone(authority, tmp_path, scopes=["a"])}), {})
    async with open_application(config) as application:
        assert RECEIVED in await text(application, "hear_mirrored")


@pytest.mark.parametrize("address", ["http://127.0.0.1:PORT/metadata", "https://\u2488com/metadata"])
async def test_an_invalid_metadata_address_is_reported_as_that(
    authority: Authority, configured: Configured, tmp_path: Path, address: str
) -> None:
    authority.resource_metadata = address
    state = await state_of(configured({"guarded": alone(authority, tmp_path)}))
    assert "its authorization server returned an invalid response" in state


@pytest.mark.parametrize("status", [200, 302, 403, 404])
async def test_a_page_of_a_proxy_in_place_of_a_token_needs_no_sign_in(
    *, status: int, authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    async with signed_in(configured, authority, tmp_path) as application:
        authority.good.clear()
        authority.page_status = status
        cause = "returned an invalid response" if status == 200 else f"did not renew the token (HTTP status {status})"
        assert await text(application, "hear_mirrored") == (
            "Upstream 'guarded' requires authorization for 'hear'. The gateway has no token for it: its authorization "
            f"server {cause}. Try again in a moment."
        )
        authority.page_status = 0
        assert RECEIVED in await text(application, "hear_mirrored")


async def test_a_token_that_was_withdrawn_early_is_refreshed_after_a_restart(
    authority: Authority, config: Path
) -> None:
    await log_in(config)
    authority.good.clear()
    async with open_application(load_config(config, {})) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
    assert grants(authority) == ["authorization_code", "refresh_token"]


@asynccontextmanager
async def open_two(config: Path) -> AsyncIterator[tuple[Application, Application]]:
    """Run two gateways of one configuration, each of which has called a tool."""
    async with (
        open_application(load_config(config, {})) as one,
        open_application(load_config(config, {})) as other,
    ):
        for application in (one, other):
            assert RECEIVED in await text(application, "hear_mirrored")
        yield one, other


async def test_gateways_with_one_token_file_use_the_last_refreshed_tokens(authority: Authority, config: Path) -> None:
    await log_in(config)
    async with open_two(config) as (one, other):
        authority.good.clear()
        for application in (one, other):
            assert RECEIVED in await text(application, "hear_mirrored")
    assert grants(authority) == ["authorization_code", "refresh_token"]


async def test_a_refresh_that_another_gateway_has_won_uses_its_tokens(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    await log_in(config)
    token_file = tmp_path / "kept" / "tokens.json"

    def lose(*_: object) -> bool:
        """Let the other gateway write its tokens, and refuse this one."""
        stored = json.loads(token_file.read_text())
        stored["tokens"]["access_token"] = "acc3ss-of-the-other"
        token_file.write_text(json.dumps(stored))
        authority.good.add("acc3ss-of-the-other")
        return False

    monkeypatch.setattr(authority, "_is_allowed", lose)
    async with open_application(load_config(config, {})) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
        authority.good.clear()
        assert RECEIVED in await text(application, "hear_mirrored")
    assert grants(authority) == ["authorization_code", "refresh_token"]


async def test_gateways_with_one_token_file_do_not_refresh_at_once(authority: Authority, config: Path) -> None:
    await log_in(config)
    async with open_two(config) as (one, other):
        authority.good.clear()
        authority.refreshes = 2
        answers: list[str] = []

        async def ask(application: Application) -> None:
            answers.append(await text(application, "hear_mirrored"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, one)
            tasks.start_soon(ask, other)
        assert [RECEIVED in answer for answer in answers] == [True, True]
        authority.good.clear()
        authority.refreshes = 0
        assert RECEIVED in await text(other, "hear_mirrored")  # the authority has not ended the tokens
    assert grants(authority) == ["authorization_code", "refresh_token", "refresh_token"]


@pytest.mark.parametrize(
    ("granted", "cause"),
    [
        ({"access_token": "one\r\nx-other: two"}, "returned a token that no header may contain"),
        ({"access_token": "k\xe4se"}, "returned a token that no header may contain"),
        ({"access_token": ""}, "returned a token that no header may contain"),
        ({"access_token": "a" * 65_537}, NOT_A_SECRET),
        ({"refresh_token": "b" * 65_537}, NOT_A_SECRET),
        ({"refresh_token": "one\n" * 20_000}, NOT_A_SECRET),
        ({"expires_in": 10**400}, "returned an invalid response"),
    ],
    ids=range(7),
)
async def test_a_grant_that_cannot_be_used_is_named_and_not_stored(
    *, granted: dict[str, Any], cause: str, authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    async with signed_in(configured, authority, tmp_path) as application:
        authority.good.clear()
        authority.granted = granted
        stored = (tmp_path / "kept" / "tokens.json").read_text()
        assert f"its authorization server {cause}. Try again in a moment." in await text(application, "hear_mirrored")
        assert (tmp_path / "kept" / "tokens.json").read_text() == stored


async def test_calls_that_wait_for_one_failed_refresh_fail_with_it(
    authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    async with signed_in(configured, authority, tmp_path) as application:
        authority.good.clear()
        authority.status = authority.error_status = 503
        authority.refreshes, authority.joins_within = 9, BOUND  # each refresh waits for the test
        answers, begun = list[str](), list[int]()

        async def ask() -> None:
            begun.append(1)
            answers.append(await text(application, "hear_mirrored"))

        async with anyio.create_task_group() as tasks:
            for _ in range(4):
                tasks.start_soon(ask)
            await until(lambda: len(begun) >= 4 and "refresh_token" in grants(authority))
            for _ in range(100):  # the answers to requests that are under way arrive
                await anyio.lowlevel.checkpoint()
            await anyio.wait_all_tasks_blocked()
            authority.is_joined.set()
        assert {answer.partition(": ")[2] for answer in answers} == {
            "its authorization server did not renew the token (HTTP status 503, invalid_grant). Try again in a moment."
        }
        assert grants(authority) == ["authorization_code", "refresh_token"]
        authority.status = 200
        authority.refreshes = 0
        assert RECEIVED in await text(application, "hear_mirrored")


async def test_a_refresh_does_not_replace_the_tokens_of_a_new_sign_in(
    authority: Authority, tmp_path: Path, config: Path
) -> None:
    await log_in(config)
    token_file = tmp_path / "kept" / "tokens.json"
    async with open_application(load_config(config, {})) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
        authority.good.clear()
        authority.refreshes = 2  # the refresh takes half a second
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(text, application, "hear_mirrored")
            await until(lambda: "refresh_token" in grants(authority))
            await log_in(config)
            signed_in = token_file.read_text()
    assert token_file.read_text() == signed_in


async def test_a_refresh_is_finished_although_the_gateway_ends(authority: Authority, config: Path) -> None:
    await log_in(config)
    authority.good.clear()
    authority.refreshes = 2  # the refresh takes half a second
    async with open_application(load_config(config, {})):
        await until(lambda: "refresh_token" in grants(authority))
    authority.refreshes = 0
    async with open_application(load_config(config, {})) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
    assert grants(authority) == ["authorization_code", "refresh_token"]


class EndingBadly(Authority):
    """The MCP server starts sessions without a token, and loses the connection at their end."""

    async def mcp(self, request: Request) -> Response:
        if "authorization" not in request.headers:
            if request.method == "DELETE":
                return StreamingResponse(lose_connection(), headers={"content-length": "9"})
            if json.loads(await request.body())["method"] == "initialize":
                return JSONResponse({}, headers={"mcp-session-id": "open"})
        return await super().mcp(request)


async def lose_connection() -> AsyncIterator[bytes]:
    yield b"half"
    raise ConnectionError


async def test_a_session_that_cannot_be_ended_prevents_no_sign_in(configured: Configured, tmp_path: Path) -> None:
    authority = EndingBadly()
    async with governing(authority):
        config = configured({"guarded": wanting(authority, tmp_path)})
        await log_in(config)
        assert await state_of(config) == "ready: "


async def test_a_user_signs_in_from_the_command_line(authority: Authority, config: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *forked_python(COMMAND, "login", "guarded", "--config", str(config)), stdin=DEVNULL, stderr=PIPE
    )
    assert process.stderr is not None
    output = ""
    async with asyncio.timeout(BOUND):
        while line := (await process.stderr.readline()).decode():
            output += line
            if line.startswith("http"):
                await browse(line.strip())
        assert await process.wait() == 0, output
    assert "Signed in to guarded." in output
    assert not [secret for secret in (*authority.good, *authority.refresh) if secret in output]


async def test_insufficient_scope_names_the_login_command_and_no_server_text(
    authority: Authority, config: Path
) -> None:
    await log_in(config)
    async with open_application(load_config(config, {})) as application:
        for rights, option in (("a more:rights", " --scope 'a more:rights'"), ("a'$(x)", ""), ("a" * 300, "")):
            authority.rights = rights
            answer = await text(application, "hear_mirrored")
            assert answer == (
                "Upstream 'guarded' requires authorization for 'hear'. It requires a scope that the gateway's token "
                f"does not have. A person has to sign in to it again: run `mcp-mirror login guarded{option}`."
            )
        authority.rights = ""
        assert RECEIVED in await text(application, "hear_mirrored")


async def test_a_running_gateway_uses_a_later_sign_in_with_more_scopes(authority: Authority, config: Path) -> None:
    await log_in(config)
    async with open_application(load_config(config, {})) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
        authority.rights = "more"
        await log_in(config, "more")
        assert RECEIVED in await text(application, "hear_mirrored")


async def test_a_rejected_token_is_not_reported_as_a_missing_one(
    authority: Authority, configured: Configured, config: Path
) -> None:
    authority.is_for_this_server = False
    await log_in(config)
    by_header = {"url": f"{authority.url}/mcp", "headers": {"Authorization": "Bearer 0ld-t0ken"}}
    for path in (config, configured({"guarded": by_header})):
        assert "HTTP status 401 instead of MCP. It rejected the token: with `headers`" in await state_of(path)


async def test_tokens_of_one_url_are_not_sent_to_another(configured: Configured, tmp_path: Path, config: Path) -> None:
    await log_in(config)
    other = Authority()
    async with governing(other):
        state = await state_of(configured({"guarded": wanting(other, tmp_path)}))
    assert state == f"down: {SIGN_IN}"
    assert other.asked == []


async def fail_to_log_in(config: Path) -> tuple[list[str], str]:
    """Run a sign-in that fails, and return the lines of the command and the last page of the browser."""
    command = forked_python(COMMAND, "login", "guarded", "--config", str(config))
    process = await asyncio.create_subprocess_exec(*command, stdin=DEVNULL, stderr=PIPE)
    assert process.stderr is not None
    lines, page = [], ""
    async with asyncio.timeout(BOUND):
        while line := (await process.stderr.readline()).decode().strip():
            lines.append(line)
            if line.startswith("http"):
                async with httpx2.AsyncClient(follow_redirects=True) as browser:
                    page = (await browser.get(line)).text
        assert await process.wait() == 2
    return lines, page


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        ("access_denied", "that access was denied"),
        ("invalid_scope", "an error (invalid_scope)"),
        ("Call +1 555", "an error"),
    ],
)
async def test_a_denied_sign_in_stores_no_tokens(
    *, error: str, reported: str, authority: Authority, tmp_path: Path, config: Path
) -> None:
    authority.status, authority.denied = 400, error
    lines, page = await fail_to_log_in(config)
    assert lines[2].endswith("open it on this machine: curl 'ADDRESS'")
    assert lines[3:] == [
        f"mcp-mirror: Signing in to upstream 'guarded' failed: the authorization server reports {reported}."
    ]
    assert page.startswith("You are not signed in")
    assert not (tmp_path / "kept").exists()


@pytest.mark.parametrize(
    ("redirect", "metadata", "cause"),
    [
        ({"iss": "https://evil.example.com"}, {}, "names another authorization server (`iss`) than the gateway asked"),
        ({}, {"authorization_response_iss_parameter_supported": True}, "names no authorization server (`iss`)"),
        ({"state": "other"}, {}, "from another sign-in"),
    ],
)
async def test_a_redirect_of_another_sign_in_is_named_as_the_cause(
    *,
    redirect: dict[str, str],
    metadata: dict[str, Any],
    cause: str,
    authority: Authority,
    tmp_path: Path,
    config: Path,
) -> None:
    authority.redirect, authority.metadata = redirect, metadata
    lines, _ = await fail_to_log_in(config)
    assert cause in lines[-1]
    assert "evil" not in lines[-1]
    assert not (tmp_path / "kept").exists()


async def test_a_refused_sign_in_is_reported_without_the_servers_text(
    authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    authority.status = 400
    state = await state_of(configured({"guarded": alone(authority, tmp_path)}))
    assert "its authorization server returned no token (HTTP status 400, invalid_grant)" in state
    assert CLIENT[1] not in state


async def test_a_client_secret_that_cannot_be_used_is_named(authority: Authority, config: Path) -> None:
    authority.registered = {"client_secret": "one\n" * 20_000, "token_endpoint_auth_method": "client_secret_basic"}
    lines, _ = await fail_to_log_in(config)
    assert NOT_A_SECRET in lines[-1]


async def test_metadata_of_very_many_parts_are_not_read(
    authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    authority.other_issuers = ["http://a"] * 5001
    state = await state_of(configured({"guarded": alone(authority, tmp_path)}))
    assert "its authorization server returned an invalid response" in state


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"issuer": "http://login.example.com"}, "names an authorization server without https"),
        ({"metadata": {"issuer": "https://evil.example.com"}}, "its authorization server names another issuer"),
        ({"named": "https://internal.example.com/mcp"}, "its metadata names another resource than `url`. Correct"),
        ({"metadata": {"token_endpoint": "http://10.0.0.1/token"}}, "names an authorization server without https"),
    ],
)
async def test_secrets_are_not_sent_to_addresses_that_an_upstream_names(
    *, change: dict[str, Any], message: str, authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    for name, value in change.items():
        setattr(authority, name, value)
    assert message in await state_of(configured({"guarded": alone(authority, tmp_path)}))
    assert authority.asked == []


async def test_a_client_id_of_another_issuer_is_named_and_not_replaced(
    authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    client = {"client_id": CLIENT[0], "client_secret": CLIENT[1], "issuer": "https://login.example.com"}
    with pytest.raises(
        MirrorError, match="`client_id` belongs to another authorization server than the upstream names"
    ):
        await log_in(configured({"guarded": wanting(authority, tmp_path, **client)}))
    assert (authority.asked, authority.scopes) == ([], "")


async def test_a_sign_in_uses_the_configured_one_of_several_issuers(
    authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    authority.other_issuers = ["https://login.example.com"]
    client = {"client_id": CLIENT[0], "client_secret": CLIENT[1], "issuer": authority.url}
    config = configured({"guarded": wanting(authority, tmp_path, **client)})
    await log_in(config)
    authority.good.clear()
    async with open_application(load_config(config, {})) as application:
        assert RECEIVED in await text(application, "hear_mirrored")
    assert grants(authority) == ["authorization_code", "refresh_token"]


async def test_a_sign_in_keeps_the_query_of_the_authorization_endpoint(authority: Authority, config: Path) -> None:
    authority.metadata = {"authorization_endpoint": f"{authority.url}/authorize?p=sign_in"}
    await log_in(config)
    assert (authority.page_query["p"], authority.page_query["response_type"]) == ("sign_in", "code")
    assert grants(authority) == ["authorization_code"]


async def test_no_sign_in_page_without_encryption_is_opened(authority: Authority, config: Path) -> None:
    authority.metadata = {"authorization_endpoint": "http://login.example.com/authorize"}
    with pytest.raises(MirrorError, match="has a sign-in page without https, which is not safe"):
        await log_in(config)


@pytest.mark.parametrize("status", [404, 503])
@pytest.mark.parametrize("client", [{}, {"client_id": CLIENT[0], "client_secret": CLIENT[1]}])
async def test_a_sign_in_does_not_guess_the_endpoints_of_an_authorization_server(
    *, client: dict[str, str], status: int, authority: Authority, configured: Configured, tmp_path: Path
) -> None:
    authority.metadata_status = status
    client = client and {**client, "issuer": authority.url}
    with pytest.raises(MirrorError, match=rf"its authorization server has no metadata now \(HTTP status {status}\)"):
        await log_in(configured({"guarded": wanting(authority, tmp_path, **client)}))
    assert (authority.asked, authority.scopes) == ([], "")  # neither the gateway nor the browser went to the upstream


async def test_no_registration_endpoint_is_guessed(
    authority: Authority, configured: Configured, tmp_path: Path, config: Path
) -> None:
    authority.metadata = {"registration_endpoint": None}
    with pytest.raises(MirrorError, match=r"server registers no clients\. .*`auth\.oauth\.client_id`"):
        await log_in(config)
    assert (authority.registrations, authority.asked) == (0, [])
    client = {"client_id": CLIENT[0], "client_secret": CLIENT[1], "issuer": authority.url}
    await log_in(configured({"guarded": wanting(authority, tmp_path, **client)}))


@pytest.mark.skipif(sys.platform == "win32", reason="there are no such modes")
async def test_readable_or_damaged_token_files_are_not_used(authority: Authority, tmp_path: Path, config: Path) -> None:
    await log_in(config)
    file = tmp_path / "kept" / "tokens.json"
    file.chmod(0o640)
    assert f"Run: chmod 600 {file}" in await state_of(config)
    file.chmod(0o600)
    file.write_text(file.read_text().replace("{", "[", 1))
    state = await state_of(config)
    assert "cannot be read. Remove the file" in state
    assert not [token for token in authority.good if token in state]


async def test_a_redirect_to_another_origin_gets_neither_headers_nor_tokens(
    configured: Configured, tmp_path: Path
) -> None:
    seen: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        seen.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")
        writer.close()

    async def redirect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        there = elsewhere.sockets[0].getsockname()[1]
        where = f"location: http://127.0.0.1:{there}/mcp\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
        writer.write(f"HTTP/1.1 307 Temporary Redirect\r\n{where}".encode())
        writer.close()

    async with (
        await asyncio.start_server(answer, "127.0.0.1", 0) as elsewhere,
        await asyncio.start_server(redirect, "127.0.0.1", 0) as here,
    ):
        url = f"http://127.0.0.1:{here.sockets[0].getsockname()[1]}/mcp"
        stored = {"url": url, "tokens": {"access_token": "acc3ss-c4nary", "token_type": "Bearer"}}
        (tmp_path / "tokens.json").touch(0o600)
        (tmp_path / "tokens.json").write_text(json.dumps(stored))
        by_header = {"url": url, "headers": {"Authorization": "Bearer h3ader-c4nary"}}
        by_token = {"url": url, "auth": {"oauth": {"token_file": "tokens.json"}}}
        state = [await state_of(configured({"one": one})) for one in (by_header, by_token)]
    assert all(one.startswith("down: ") for one in state)
    assert seen == []
    assert "c4nary" not in str(state)


async def test_login_needs_an_upstream_with_an_authorization_code(
    authority: Authority, configured: Configured, raw: Any, tmp_path: Path, run: Run
) -> None:
    for upstream, reason in (
        (raw(), "is a program, which has no sign-in"),
        ({"url": authority.url}, "has no sign-in. Configure `auth"),
        (alone(authority, tmp_path), "signs in by itself"),
    ):
        with pytest.raises(MirrorError, match=f"Upstream 'one' {reason}"):
            await log_in(configured({"one": upstream}))
    ended = await run("login", "two", "--config", str(configured({"one": raw()})))
    assert "The configuration has no upstream 'two'. Its upstreams: one." in ended.err


async def test_login_names_why_a_server_cannot_be_reached_and_the_next_step(run: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        url = f"http://127.0.0.1:{server.getsockname()[1]}/mcp"
    ended = await run("login", "far", "--url", url)
    assert ended.code == 2
    assert f"{url.split('/')[2]} failed: nothing listens there. Start the server, or correct `url`." in ended.err


async def test_a_missing_authorization_server_is_named_without_a_traceback(run: Run) -> None:
    command = (sys.executable, "-u", "-m", "http.server", "-b", "127.0.0.1", "0")
    process = await asyncio.create_subprocess_exec(*command, stdout=PIPE, stderr=DEVNULL)
    try:
        assert process.stdout is not None
        port = (await asyncio.wait_for(process.stdout.readline(), BOUND)).split(b" port ")[1].split()[0].decode()
        ended = await run("login", "plain", "--url", f"http://127.0.0.1:{port}/mcp")
    finally:
        process.kill()
        await asyncio.wait_for(process.communicate(), BOUND)
    assert "its authorization server does not register this client" in ended.err
    assert "Traceback" not in ended.err


async def test_other_requests_to_the_redirect_port_do_not_end_the_sign_in(tmp_path: Path, config: Path) -> None:
    async def stray(url: str) -> None:
        port = httpx2.URL(url).params["redirect_uri"].split(":")[2].split("/")[0]
        for sent in (
            b"\r\n\r\n",
            b"GET /callback HTTP/1.1\r\n\r\n",
            b"POST /callback?code=x HTTP/1.1\r\n\r\n",
            b"GET /callback?error=x HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Dest: image\r\nConnection: close\r\n\r\n",
            b"GET /callback?code=x HTTP/1.1\r\nHost: 127.0.0.1\r\nSec-Fetch-Dest: iframe\r\nConnection: close\r\n\r\n",
            b"x" * 20_000,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(port))
            writer.write(sent)
            assert b" 200 " not in await reader.read()
            writer.close()
        await browse(url)

    (policy,) = load_config(config, {}).upstreams
    with anyio.fail_after(BOUND):
        assert await sign_in(policy, (), stray) == str(tmp_path / "kept" / "tokens.json")
