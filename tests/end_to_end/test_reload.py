"""Configuration changes while the gateway serves: at SIGHUP and with `--watch`."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager, suppress
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import pytest
from gateway_processes import forked_upstream
from process_tree import offspring
from samples import sample
from tests.end_to_end.conftest import BOUND
from tests.end_to_end.servers import forgetful
from waiting import until

from mcp_mirror.app import open_application
from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.config import load_config
from mcp_mirror.functions.reply import read_reply
from mcp_mirror.security.pins import Pins

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from gateway_processes import Start
    from tests.end_to_end.conftest import Configured, Lines, OpenClient, OpenLines, Serve

UPSTREAM = Path(__file__).parents[1] / "relay" / "upstream.py"


def names(answer: bytes) -> set[str]:
    return {tool["name"] for tool in json.loads(answer)["result"]["tools"]}


async def serving(client: Lines, *, but: int = 0) -> int:
    """The process of the one upstream, once all others, such as its predecessor, have ended."""

    def find() -> list[int]:
        return [process for process, command in offspring(client.process.pid).items() if UPSTREAM.name in command]

    await until(lambda: len(found := find()) == 1 and found != [but])
    [one] = find()
    return one


async def until_listed(client: Lines, wanted: str, *, listed: bool = True) -> set[str]:
    lines = await until(lambda: client.request("tools/list"), lambda found: (wanted in names(found)) is listed)
    return names(lines)


@pytest.mark.posix
async def test_a_hangup_changes_upstreams_and_other_calls_continue(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    unchanged, log = raw("ok", "--name", "kept"), tmp_path / "log"
    gates = {"started": str(tmp_path / "running"), "until": str(tmp_path / "gate")}
    changing = raw("ok", "--log", str(log))
    async with open_lines(configured({"kept": unchanged, "dropped": raw(), "changed": changing})) as client:
        await client.greet()
        await until_listed(client, "dropped_hear_mirrored")
        calls = {}
        for identity, upstream in ((71, "kept"), (72, "dropped")):
            arguments = {**gates, "started": gates["started"] + upstream}
            call = json.dumps({"name": f"{upstream}_hang_mirrored", "arguments": arguments})
            await client.send(f'{{"jsonrpc":"2.0","id":{identity},"method":"tools/call","params":{call}}}')
            calls[identity] = tmp_path / f"running{upstream}"
        await until(lambda: all(running.exists() for running in calls.values()))
        configured({"kept": unchanged, "changed": {**changing, "timeout": 7}, "added": raw()})
        client.process.send_signal(signal.SIGHUP)
        listed = await until_listed(client, "added_hear_mirrored")
        assert "dropped_hear_mirrored" not in listed
        (tmp_path / "gate").touch()
        answers: dict[int, str] = {}
        async with asyncio.timeout(BOUND):
            while len(answers) < len(calls):
                message = json.loads(await client.receive())
                if message.get("id") in calls:
                    answers[message["id"]] = message["result"]["content"][0]["text"]
        assert answers == {71: "late", 72: "late"}  # even the call to the removed upstream
        await until(lambda: log.read_text().count(" initialize\n") >= 2)
        assert log.read_text().count(" initialize\n") == 2
    assert any(b"configuration was reloaded" in line for line in client.stderr)


@pytest.mark.posix
async def test_calls_that_a_reload_ends_are_logged(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    running, server = tmp_path / "running", {"drain": 0.2}
    arguments = {"started": str(running), "until": str(tmp_path / "never")}
    async with open_lines(configured({"kept": raw(), "dropped": raw()}, server=server)) as client:
        await client.greet()
        await until_listed(client, "dropped_hear_mirrored")
        call = json.dumps({"name": "dropped_hang_mirrored", "arguments": arguments})
        await client.send(f'{{"jsonrpc":"2.0","id":71,"method":"tools/call","params":{call}}}')
        await until(running.exists)
        configured({"kept": raw()}, server=server)
        client.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(BOUND):
            while json.loads(line := await client.receive()).get("id") != 71:
                pass
        assert "'dropped' closed the connection" in line.decode()
    [logged] = [line for line in client.stderr if b"stopped by a reload" in line]
    assert b"upstream dropped was stopped by a reload, and requests failed that had not ended within 0.2 s" in logged


@pytest.mark.posix
@pytest.mark.parametrize(
    ("how", "version"),
    sample(
        product(("reload", "death", "removal"), ("2025-11-25", "2026-07-28")),
        {("reload", "2026-07-28"), ("death", "2025-11-25"), ("removal", "2025-11-25")}.__contains__,
    ),
)
async def test_a_subscription_outlives_the_process_of_its_upstream(
    how: str, version: str, configured: Configured, open_lines: OpenLines
) -> None:
    upstream = forked_upstream(str(UPSTREAM), "stdio", version)
    note = "notes://one"

    async def watched(client: Lines) -> None:
        await until(lambda: client.text("watched_mirrored"), lambda found: json.loads(found) == [note])

    async with open_lines(configured({"shelf": upstream})) as client:
        await client.greet()
        await until_listed(client, "watched_mirrored")
        assert "error" not in json.loads(await client.request("resources/subscribe", json.dumps({"uri": note})))
        await watched(client)
        before = await serving(client)
        if how == "reload":
            configured({"shelf": {**upstream, "timeout": 7}})
            client.process.send_signal(signal.SIGHUP)
        elif how == "removal":
            configured({})
            client.process.send_signal(signal.SIGHUP)
            async with asyncio.timeout(BOUND):
                while "watched_mirrored" in names(await client.request("tools/list")):
                    pass
            configured({"shelf": upstream})
            client.process.send_signal(signal.SIGHUP)
        else:
            os.kill(before, signal.SIGKILL)
        async with asyncio.timeout(BOUND):
            while b"notifications/resources/updated" not in await client.receive():
                pass  # what may have been missed counts as an update
        await watched(client)
        await serving(client, but=before)
        await client.send(
            '{"jsonrpc":"2.0","id":"touch","method":"tools/call","params":{"name":"touch_mirrored",'
            f'"arguments":{{"uri":"{note}"}}}}}}'
        )
        async with asyncio.timeout(BOUND):
            while (message := json.loads(await client.receive())).get("method") != "notifications/resources/updated":
                pass
        assert message["params"]["uri"] == note


@asynccontextmanager
async def subscribed(config: Path) -> AsyncIterator[tuple[Callable[[str], Awaitable[str]], list[str]]]:
    """Subscribe to a note of an upstream; yield a function that calls a tool, and the URIs of the updates."""
    channel, updates = NullChannel(Caller(LOCAL)), list[str]()
    async with open_application(load_config(config, {})) as application, asyncio.timeout(BOUND):
        await application.upstreams.wait_for_attempts(BOUND)
        gateway, subscriptions = application.gateway, application.server.handlers.subscriptions

        async def call(tool: str) -> str:
            return read_reply(await gateway.state.answer(gateway.new_call(channel, tool, b"{}"))).text

        await subscriptions.subscribe(channel, "note:one", "reader", lambda uri, _params: updates.append(uri))
        yield call, updates


@pytest.mark.posix
async def test_a_subscription_that_a_new_process_refuses_is_reported_once(
    configured: Configured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.gateway.subscriptions._PAUSE", 0.0)
    server = {"command": sys.executable, "args": [forgetful.__file__, str(tmp_path / "log")]}
    async with subscribed(configured({"shelf": server})) as (call, updates):
        await call("forget_mirrored")
        while await call("count_mirrored") != "1" or not updates:
            pass
        assert [await call("count_mirrored") for _ in range(50)] == ["1"] * 50
        assert updates == ["note:one"]


@pytest.mark.posix
async def test_a_subscription_starts_no_upstream_that_is_down(
    configured: Configured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.gateway.subscriptions._PAUSE", 0.01)
    monkeypatch.setattr("mcp_mirror.upstreams.connection.add_jitter", lambda _: 2 * BOUND)  # only requests reconnect
    monkeypatch.setattr("mcp_mirror.upstreams.connection._FIRST_DELAY", 0.0)
    starts, broken = tmp_path / "starts", tmp_path / "broken"
    program = f"echo >> {starts}; test -e {broken} && exit 1; exec {sys.executable} {forgetful.__file__} {tmp_path}/log"
    server = {"command": "sh", "args": ["-c", program]}
    async with subscribed(configured({"shelf": server})) as (call, updates):
        broken.touch()
        await call("forget_mirrored")
        assert "down" in await call("count_mirrored")
        with anyio.move_on_after(0.5):
            await until(lambda: len(starts.read_text()) != 2)
        assert len(starts.read_text()) == 2
        broken.unlink()
        await call("count_mirrored")
        await until(lambda: updates)
        assert len(starts.read_text()) == 3


@pytest.mark.posix
async def test_clients_are_notified_when_memory_tools_are_switched(
    configured: Configured, open_lines: OpenLines
) -> None:
    async with open_lines(configured({})) as client:
        await client.greet()
        assert "memory_put" in names(await client.request("tools/list"))
        configured({}, memory_tools={"deny": ["memory_put"], "roots": ["."]})
        client.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(BOUND):
            while b"notifications/tools/list_changed" not in await client.receive():
                pass
        listed = names(await client.request("tools/list"))
        assert "memory_put" not in listed
        assert "memory_import" in listed


@pytest.mark.posix
async def test_an_invalid_configuration_is_reported_and_the_old_one_stays(
    configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    config = configured({"one": raw()})
    async with open_lines(config) as client:
        await client.greet()
        await until_listed(client, "hear_mirrored")
        config.write_text('{"upstreams": {"one": {"comand": "x"}}}')
        client.process.send_signal(signal.SIGHUP)
        await until(lambda: any(b"was not reloaded" in line for line in client.stderr))
        assert b"'command'" in b"".join(client.stderr)
        assert "hear_mirrored" in names(await client.request("tools/list"))


@pytest.mark.posix
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.executable  # its start takes long enough
@pytest.mark.parametrize("workers", sample([1, 2], lambda workers: workers == 1))
async def test_a_hangup_during_the_start_reloads_later(
    workers: int, configured: Configured, start: Start, raw: Any
) -> None:
    """By default the signal ends a process, and systemd takes that for an intended end."""
    config = configured({"one": raw()}, store={"kind": "disk"})
    options = ("--config", str(config), "--http", "127.0.0.1:0", "--workers", str(workers))
    process = await start("serve", *options, stderr=PIPE)

    def blocks_hangups() -> bool:
        [mask] = re.findall(r"SigBlk:\t(\w+)", Path(f"/proc/{process.pid}/status").read_text())
        return bool(int(mask, 16) & 1 << signal.SIGHUP - 1)

    try:
        await until(blocks_hangups)
        process.send_signal(signal.SIGHUP)
        assert process.stderr is not None
        for _ in range(workers):
            async with asyncio.timeout(BOUND):
                while b"was reloaded" not in (line := await process.stderr.readline()):
                    assert line, "the gateway has ended"
    finally:
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), BOUND) == 0


@pytest.mark.posix
async def test_a_failed_reload_is_an_error_in_the_log(configured: Configured, open_lines: OpenLines, raw: Any) -> None:
    config = configured({"one": raw()}, server={"log_format": "json"})
    async with open_lines(config) as client:
        await client.greet()
        config.write_text("{")
        client.process.send_signal(signal.SIGHUP)
        await until(lambda: any(b"was not reloaded" in line for line in client.stderr))
    lines = [json.loads(line) for line in b"".join(client.stderr).splitlines()]
    assert [line["level"] for line in lines if "was not reloaded" in line["message"]] == ["error"]


@pytest.mark.posix
async def test_a_configuration_warning_has_its_level_at_start_and_reload(
    configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    config = configured({"one": raw(env={"API_TOKEN": "not-from-a-variable"})}, server={"log_format": "json"})
    config.chmod(0o644)
    async with open_lines(config) as client:
        await client.greet()
        client.process.send_signal(signal.SIGHUP)
        await until(lambda: any(b"was reloaded" in line for line in client.stderr))
    lines = [json.loads(line) for line in b"".join(client.stderr).splitlines()]
    assert [line["level"] for line in lines if "other users can read" in line["message"]] == ["warning"] * 2


@pytest.mark.posix
async def test_reloads_name_what_changed_and_what_a_start_will_change(
    configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    changed = {"limits": {"spool_bytes": 4096}, "server": {"name": "other"}, "mirror": {"suffix": "_twin"}}
    first, later = {"one": raw(), "two": raw()}, {"one": {**raw(), "timeout": 7}, "three": raw()}
    deferred = " A change of server.name, limits.spool_bytes takes effect at the next start."
    async with open_lines(configured(first)) as client:
        await client.greet()
        for number, (upstreams, sections) in enumerate(((later, changed), (later, changed), (first, {})), 1):
            configured(upstreams, **sections)
            client.process.send_signal(signal.SIGHUP)
            await until(lambda: b"".join(client.stderr).count(b"was reloaded.") >= number)  # noqa: B023  # called at once
    lines = [line.decode().partition("was reloaded.")[2] for line in b"".join(client.stderr).splitlines()]
    assert [line for line in lines if line] == [
        " Changed: upstreams.one.timeout, upstreams.three (added), upstreams.two (removed), mirror.suffix." + deferred,
        " Nothing changed." + deferred,
        " Changed: upstreams.one.timeout, upstreams.two (added), upstreams.three (removed), mirror.suffix.",
    ]


@pytest.mark.posix
async def test_a_reload_applies_tokens_and_quotas_of_calls(configured: Configured, serve: Serve, raw: Any) -> None:
    """The signal comes at the first moment at which the gateway serves."""
    before, after = ({"tokens": {name: "sha256:" + "0" * 64}} for name in ("alice", "bob"))
    own = {"bob": {"calls_per_day": 1, "namespace_bytes": "1KiB"}}
    async with serve(configured({"one": raw()}, auth=before)) as served:
        configured({"one": raw()}, auth={**after, "principals": own}, limits={"calls_per_day": 7})
        served.process.send_signal(signal.SIGHUP)
        await until(lambda: any(b"was reloaded." in line for line in served.stderr))
    output = b"".join(served.stderr)
    changes = ("auth.tokens.bob (added)", "auth.tokens.alice (removed)", "auth.principals.bob (added)")
    assert f"Changed: limits.calls_per_day, {', '.join(changes)}.".encode() in output
    assert b"A change of auth.principals.bob.namespace_bytes takes effect at the next start." in output


async def test_a_reload_applies_limits_of_upstreams_and_defers_those_of_clients(
    configured: Configured, raw: Any
) -> None:
    async with open_application(load_config(configured({"one": raw()}), {})) as application:
        limits = {"calls_per_upstream": 7, "calls_per_principal": 9}
        reload = application.reload(load_config(configured({"one": raw()}, limits=limits), {}), Pins())
        assert reload == (("limits.calls_per_upstream",), ("limits.calls_per_principal",))
        [upstream] = application.upstreams
        assert upstream.policy.bounds.calls_per_upstream == 7


async def test_a_reload_defers_the_removal_of_a_share_of_the_store(configured: Configured) -> None:
    tokens = {"tokens": {"bob": "sha256:" + "0" * 64}}
    own = {"bob": {"calls_per_day": 1, "namespace_bytes": "1KiB"}}
    async with open_application(load_config(configured({}, auth=tokens | {"principals": own}), {})) as application:
        without = load_config(configured({}, auth=tokens), {})
        expected = (("auth.principals.bob.calls_per_day",), ("auth.principals.bob (removed)",))
        assert application.reload(without, Pins()) == expected
        assert application.reload(without, Pins()) == ((), expected[1])
        assert application.gateway.state.config.call_quota_of('["token", "bob"]') == (0, 0)


@pytest.mark.posix
async def test_a_reload_on_stdio_defers_no_authentication(open_client: OpenClient, raw: Any) -> None:
    async with open_client({"one": raw()}, auth={"tokens": {"alice": "sha256:" + "0" * 64}}) as client:
        client.process.send_signal(signal.SIGHUP)
        await until(lambda: any(b"was reloaded." in line for line in client.stderr))
    assert b"takes effect at the next start" not in b"".join(client.stderr)


@pytest.mark.posix
async def test_a_configuration_in_a_pipe_is_not_read_a_second_time(
    configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    config = configured({"one": raw()})
    async with open_lines(config) as client:
        await client.greet()
        await until_listed(client, "hear_mirrored")
        config.unlink()
        os.mkfifo(config)
        client.process.send_signal(signal.SIGHUP)
        await until(lambda: any(b"is a pipe, which can be read once" in line for line in client.stderr))
        assert "hear_mirrored" in names(await client.request("tools/list"))


@pytest.mark.posix
async def test_a_hangup_reads_the_file_of_a_variable_again(
    open_client: OpenClient, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("_before\n")
    monkeypatch.setenv("SUFFIX_FILE", str(secret))
    async with open_client({"one": raw()}, mirror={"suffix": "${SUFFIX}"}) as client:
        await until_listed(client, "hear_before")
        secret.write_text("_after\n")
        client.process.send_signal(signal.SIGHUP)
        await until_listed(client, "hear_after")


@pytest.mark.parametrize("section", [{"mirror": {"suffix": "_twin"}}, {"limits": {"spool_bytes": 4096}}])
async def test_a_watched_file_is_reloaded_when_it_changes(
    section: dict[str, Any], configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    async with open_lines(configured({"one": raw()}), "--watch") as client:
        await client.greet()
        await until_listed(client, "hear_mirrored")
        configured({"one": raw(), "two": raw()}, **section)
        suffix = section.get("mirror", {}).get("suffix", "_mirrored")
        await until_listed(client, f"two_hear{suffix}")
    output = b"".join(client.stderr)
    assert (b"change of limits.spool_bytes takes effect at the next start" in output) is ("limits" in section)


@pytest.mark.posix
async def test_a_hangup_after_a_change_of_a_watched_file_reloads_once(
    configured: Configured, open_lines: OpenLines, raw: Any
) -> None:
    async with open_lines(configured({"one": raw()}), "--watch") as client:
        await client.greet()
        await until_listed(client, "hear_mirrored")
        configured({"one": raw(), "two": raw()})
        await until(lambda: b"".join(client.stderr).count(b"was reloaded") == 1)
        configured({"one": raw(), "two": raw(), "three": raw()})  # a second before the gateway examines the file again
        client.process.send_signal(signal.SIGHUP)
        await until_listed(client, "three_hear_mirrored")
        with suppress(TimeoutError):
            async with asyncio.timeout(2):  # the gateway examines the file every second
                await until(lambda: b"".join(client.stderr).count(b"was reloaded") >= 3)
        assert b"".join(client.stderr).count(b"was reloaded") == 2


@pytest.mark.skipif(sys.platform == "win32", reason="needs a named pipe")
async def test_a_watched_file_that_changed_during_the_start_is_reloaded(
    configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path
) -> None:
    os.mkfifo(lock := tmp_path / "lock.json")
    config = configured({"one": raw()}, lock={"file": str(lock), "mode": "warn"})
    async with open_lines(config, "--watch") as client:
        with await anyio.to_thread.run_sync(lock.open, "w") as writing:  # the configuration has been read, the lock not
            configured({"one": raw(), "two": raw()})
            writing.write('{"format": 1, "upstreams": {}}')
        await client.greet()
        await until_listed(client, "two_hear_mirrored")
