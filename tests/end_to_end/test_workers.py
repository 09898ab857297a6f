"""Several worker processes on one address: sessions, signals, workers that end, and a shared memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import signal
import socket
import sys
from asyncio.subprocess import PIPE
from collections import Counter
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx2
import pytest
from gateway_processes import forked_python, forked_upstream
from http_sessions import HEADERS, META
from mcp import Client
from mcp_types import ElicitResult
from notices import path_in
from samples import sample
from tests.end_to_end.conftest import BOUND
from waiting import until

if TYPE_CHECKING:
    from redis_process import RedisProcess
    from s3_process import S3Process
    from tests.end_to_end.conftest import Configured, Run, Serve, Served

pytestmark = [pytest.mark.posix, pytest.mark.skipif(sys.platform != "linux", reason="workers need Linux")]
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "x", "version": "0"}}
EVERYTHING = [str(Path(__file__).parents[1] / "conformance" / "everything.py"), "stdio", "--era", "2025-11-25"]


def workers_of(served: Served) -> set[int]:
    """The processes of the workers."""
    children = Path(f"/proc/{served.process.pid}/task/{served.process.pid}/children").read_text()
    return {int(child) for child in children.split()}


async def supervise(program: str, folder: Path, within: float = BOUND) -> tuple[int | None, str]:
    """Run a program with a supervisor and workers of its own; return its exit code and its output.

    Its argument is the name of a file that does not exist yet. It may take `within` seconds.
    """
    script = folder / "program.py"
    script.write_text(program)
    command = forked_python(str(script), str(folder / "counted"))
    supervisor = await asyncio.create_subprocess_exec(*command, stdout=PIPE)
    try:
        out, _ = await asyncio.wait_for(supervisor.communicate(), within)
    finally:
        if supervisor.returncode is None:
            supervisor.kill()
    return supervisor.returncode, out.decode()


def is_running(process: int) -> bool:
    try:
        return "\nState:\tZ" not in Path(f"/proc/{process}/status").read_text()
    except OSError:
        return False


def replace_file(path: Path, text: str) -> None:
    """Write a file as editors do: a gateway that watches it reads no part of it."""
    written = path.with_suffix(".new")
    written.write_text(text)
    written.chmod(0o600)
    written.replace(path)


async def post(url: str, method: str, params: Any, **headers: str) -> httpx2.Response:
    """A request over a connection of its own."""
    async with httpx2.AsyncClient(timeout=BOUND) as http:
        body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        return await http.post(url, json=body, headers=HEADERS | headers)


def result_of(response: httpx2.Response) -> Any:
    assert response.status_code == 200, (response.status_code, response.text)
    text = response.text
    if response.headers["content-type"].startswith("text/event-stream"):
        text = next(line[6:] for line in text.splitlines() if line.startswith("data: {"))
    answer = json.loads(text)
    assert "result" in answer, answer
    return answer["result"]


async def open_session(url: str) -> str:
    response = await post(url, "initialize", HELLO)
    assert result_of(response)["protocolVersion"] == "2025-11-25"
    session = str(response.headers["mcp-session-id"])
    async with httpx2.AsyncClient(timeout=BOUND) as http:
        ready = {"jsonrpc": "2.0", "method": "notifications/initialized"}
        answer = await http.post(url, json=ready, headers=HEADERS | {"mcp-session-id": session})
        assert answer.status_code == 202
    return session


async def open_sessions_of_all_workers(url: str, number: int) -> dict[str, str]:
    """A session of each worker, by its suffix."""
    sessions: dict[str, str] = {}
    async with asyncio.timeout(BOUND):
        while len(sessions) < number:
            session = await open_session(url)
            sessions[session.rpartition("-")[2]] = session
    return sessions


async def probe_one_worker(url: str, http: httpx2.AsyncClient, sessions: dict[str, str]) -> tuple[str, str]:
    """Probe the worker at the other end of a client's connection; return its suffix, and a session of another one."""
    body = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": HELLO}
    probed = (await http.post(url, json=body, headers=HEADERS)).headers["mcp-session-id"].rpartition("-")[2]
    assert (await http.get(url.removesuffix("/mcp") + "/readyz")).status_code == 200
    return probed, next(one for suffix, one in sessions.items() if suffix != probed)


async def call(url: str, session: str, name: str, arguments: Any) -> Any:
    return result_of(
        await post(url, "tools/call", {"name": name, "arguments": arguments}, **{"mcp-session-id": session})
    )


@pytest.fixture
def shared(configured: Configured, raw: Any) -> Path:
    return configured({"raw": raw()}, store={"kind": "disk"})


@pytest.mark.slow
async def test_each_session_is_served_by_its_worker_over_any_connection(serve: Serve, shared: Path) -> None:
    async with serve(shared, "--workers", "2") as served:
        sessions = await open_sessions_of_all_workers(served.url, 2)
        assert sorted(sessions) == ["w0", "w1"]
        for size in (10, 40_000, 3_000_000):
            text = "word " * (size // 5)
            for session in [*sessions.values()] * 4:
                answer = await call(served.url, session, "memory_put", {"value": text})
                path = path_in(answer["content"][0]["text"])
                other = next(one for one in sessions.values() if one != session)
                found = await call(served.url, other, "memory_read", {"memory_path": path})
                assert "word" in found["content"][0]["text"]


async def test_one_connection_may_carry_requests_of_several_sessions(serve: Serve, shared: Path) -> None:
    async with serve(shared, "--workers", "2") as served:
        sessions = [*(await open_sessions_of_all_workers(served.url, 2)).values()]
        async with httpx2.AsyncClient(timeout=BOUND, limits=httpx2.Limits(max_connections=1)) as http:
            for number in range(20):
                body = {"jsonrpc": "2.0", "id": number, "method": "tools/list", "params": {}}
                headers = HEADERS | {"mcp-session-id": sessions[number % 2]}
                assert result_of(await http.post(served.url, json=body, headers=headers))["tools"]


async def test_clients_of_2026_07_28_are_served_by_all_workers(serve: Serve, shared: Path) -> None:
    async with serve(shared, "--workers", "2") as served:
        headers = {"mcp-protocol-version": "2026-07-28", "mcp-method": "tools/list"}
        answers = await asyncio.gather(*(post(served.url, "tools/list", {"_meta": META}, **headers) for _ in range(20)))
        assert all(result_of(answer)["tools"] for answer in answers)


@pytest.mark.parametrize("mode", sample(["legacy", "auto"], "legacy".__eq__))
async def test_servers_can_request_input_from_clients_of_each_worker(
    mode: str, serve: Serve, configured: Configured
) -> None:
    async def accept(context: Any, params: Any) -> ElicitResult:  # noqa: ARG001  # names of the SDK
        return ElicitResult(action="accept", content={"name": "Ada", "user_name": "Ada"})

    config = configured({"everything": forked_upstream(*EVERYTHING)}, store={"kind": "disk"})
    async with serve(config, "--workers", "2") as served, asyncio.timeout(BOUND):
        for _ in range(6):
            async with Client(served.url, mode=mode, elicitation_callback=accept) as client:
                result = await client.call_tool("test_streaming_elicitation_mirrored", {})
                assert not result.is_error, result.content
                assert "Ada" in result.content[0].text  # type: ignore[union-attr]


async def test_a_killed_worker_is_replaced_and_others_continue(serve: Serve, shared: Path) -> None:
    async with serve(shared, "--workers", "2") as served:
        sessions = await open_sessions_of_all_workers(served.url, 2)
        put = await call(served.url, sessions["w0"], "memory_put", {"value": "kept " * 1000})
        path = path_in(put["content"][0]["text"])
        before = workers_of(served)
        assert len(before) == 2
        victim = min(before)
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(workers_of(served) - {victim}) == 2)
        outcomes = Counter[int]()
        async with asyncio.timeout(BOUND):
            while len(outcomes) < 2:
                for session in sessions.values():
                    answer = await post(served.url, "tools/list", {}, **{"mcp-session-id": session})
                    outcomes[answer.status_code] += 1
        assert set(outcomes) == {200, 404}  # the sessions of the killed worker have ended
        renewed = await open_sessions_of_all_workers(served.url, 2)
        for session in renewed.values():
            found = await call(served.url, session, "memory_read", {"memory_path": path})
            assert "kept" in found["content"][0]["text"]
    assert b"ended by signal 9; the gateway starts it again" in b"".join(served.stderr)
    assert b"reloaded" not in b"".join(served.stderr)


async def test_workers_write_one_audit_log_with_an_id_for_each_call(
    serve: Serve, configured: Configured, raw: Any, tmp_path: Path
) -> None:
    log = tmp_path / "audit.jsonl"
    config = configured({"raw": raw()}, store={"kind": "disk"}, audit={"path": str(log)})
    async with serve(config, "--workers", "2") as served:
        sessions = await open_sessions_of_all_workers(served.url, 2)
        for session in [*sessions.values()] * 5:
            await call(served.url, session, "memory_list", {})
    records = [json.loads(line) for line in log.read_text().splitlines()]
    calls = [record["correlation"] for record in records if record["event"] == "call"]
    assert len(set(calls)) == len(calls) == 10


async def test_workers_share_redis_and_a_bucket_and_end_cleanly(
    serve: Serve, configured: Configured, raw: Any, redis_server: RedisProcess, bucket: S3Process, tmp_path: Path
) -> None:
    store = {"kind": "redis", "url": redis_server.url, "prefix": f"{tmp_path}:", "blobs": bucket.url, "path": None}
    async with serve(configured({"raw": raw()}, store=store), "--workers", "2") as served:
        sessions = await open_sessions_of_all_workers(served.url, 2)
        for session, other in (sessions.values(), [*sessions.values()][::-1]):
            put = await call(served.url, session, "memory_put", {"value": "word " * 100_000})
            path = path_in(put["content"][0]["text"])
            found = await call(served.url, other, "memory_read", {"memory_path": path})
            assert "word" in found["content"][0]["text"]
        processes = workers_of(served)
        served.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(served.process.wait(), BOUND) == 0
        assert not any(map(is_running, processes))
    assert b"ended" not in b"".join(served.stderr)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_to_the_parent_ends_all_workers(number: signal.Signals, serve: Serve, shared: Path) -> None:
    async with serve(shared, "--workers", "3") as served:
        processes = workers_of(served)
        assert len(processes) == 3
        served.process.send_signal(number)
        assert await asyncio.wait_for(served.process.wait(), BOUND) == (130 if number == signal.SIGINT else 0)
        assert not any(map(is_running, processes))


async def test_a_worker_that_shuts_down_answers_connections_of_others(
    serve: Serve, shared: Path, tmp_path: Path
) -> None:
    """A proxy probes only one worker, which therefore serves for longer than the other."""
    started, end = tmp_path / "started", tmp_path / "end"
    async with serve(shared, "--workers", "2") as served, httpx2.AsyncClient(timeout=BOUND) as http:
        sessions = await open_sessions_of_all_workers(served.url, 2)
        _, session = await probe_one_worker(served.url, http, sessions)
        arguments = {"started": str(started), "until": str(end)}
        hanging = asyncio.create_task(call(served.url, session, "hang_mirrored", arguments))
        await until(started.exists)
        served.process.send_signal(signal.SIGTERM)
        request = partial(post, served.url, "tools/list", {}, **{"mcp-session-id": session})
        await until(request, lambda response: response.status_code != 200)
        for _ in range(3):  # the socket of the first one may have been that of the worker itself
            refused = await request()
            assert (refused.status_code, "this session has ended" in refused.text) == (404, True)
        end.touch()
        assert (await hanging)["content"]
        assert await asyncio.wait_for(served.process.wait(), BOUND) == 0


async def test_a_worker_that_has_served_takes_no_connections_of_others(
    serve: Serve, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process stays for as long as a collector takes for the last metrics, and reads no connections any more."""
    with socket.create_server(("127.0.0.1", 0)) as collector:  # it answers nothing
        collector.settimeout(0)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"http://127.0.0.1:{collector.getsockname()[1]}")
        async with serve(shared, "--workers", "2") as served, httpx2.AsyncClient(timeout=BOUND) as http:
            sessions = await open_sessions_of_all_workers(served.url, 2)
            probed, session = await probe_one_worker(served.url, http, sessions)
            assert probed not in session
            served.process.send_signal(signal.SIGTERM)
            connection, _ = await asyncio.wait_for(asyncio.get_running_loop().sock_accept(collector), BOUND)
            with connection:  # the other worker has ended its event loop
                answer = await post(served.url, "tools/list", {}, **{"mcp-session-id": session})
            assert answer.status_code == 404


ENDING = """
import signal, socket, sys
from mcp_mirror.cli import workers
from mcp_mirror.server.http.handover import ConnectionHandover
def run_worker(start):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
    start.announce("x")
    signal.sigwait([signal.SIGTERM])
    if start.worker.number == 0:
        handover = ConnectionHandover(start.worker)
        try:
            while True:
                handover.give(1, start.worker.listening.fileno(), b"")
                signal.sigtimedwait([signal.SIGTERM], 0.1)
        except BrokenPipeError:
            print("kept", flush=True)
    return 0
def announce(line):
    signal.raise_signal(signal.SIGTERM)
with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
    sys.exit(workers.Supervisor([one, two], run_worker, announce, print).run())
"""


async def test_a_worker_keeps_connections_for_one_that_has_ended(tmp_path: Path) -> None:
    assert await supervise(ENDING, tmp_path) == (0, "kept\n")


RESTARTS = """
import os, signal, socket, sys
from mcp_mirror.cli import workers
workers._DELAY = 0.001
workers._MAX_DELAY = 0.001
counted = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND | os.O_CREAT)
def run_worker(start):
    start.announce("x" * 4000)
    os.write(counted, b"x")
    if os.fstat(counted).st_size == 50:
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()
    return 1
with socket.create_server(("127.0.0.1", 0)) as listening:
    sys.exit(workers.Supervisor([listening], run_worker, *2 * [lambda line: None]).run())
"""


async def test_a_worker_is_replaced_any_number_of_times(tmp_path: Path) -> None:
    assert (await supervise(RESTARTS, tmp_path))[0] == 0
    assert (tmp_path / "counted").stat().st_size == 50


RESTARTS_AT_THE_START = """
import os, signal, socket, sys
from mcp_mirror.cli import workers
workers._DELAY = 0.001
counted = os.open(sys.argv[1], os.O_RDWR | os.O_APPEND | os.O_CREAT)
is_told, tell = os.pipe()
def run_worker(start):
    if start.worker.number == 0:
        start.announce("x")
        os.write(counted, b"x")
        if os.fstat(counted).st_size == 3:
            os.write(tell, b"x")
            signal.pause()
        return 1
    if start.is_replacement:
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()
    os.read(is_told, 1)
    return workers.MISCONFIGURED
with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
    sys.exit(workers.Supervisor([one, two], run_worker, print, lambda line: None).run())
"""


async def test_a_worker_that_starts_twice_does_not_serve_for_another(tmp_path: Path) -> None:
    """The other worker cannot use the configuration, which ends a gateway that is starting."""
    assert await supervise(RESTARTS_AT_THE_START, tmp_path) == (2, "")


HANGING = """
import os, signal, socket, sys
from mcp_mirror.cli import workers
workers._CHECK = 0.2
workers._MAX_MISSED = 10
workers._DELAY = 0.001
def run_worker(start):
    signal.signal(signal.SIGALRM, lambda *_: start.send_heartbeat())
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
    start.announce("x")
    signal.pause()
    if start.is_replacement:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        os.kill(os.getppid(), signal.SIGTERM)
    if start.worker.number == 0:
        os.kill(os.getpid(), signal.SIGSTOP)
    while True:
        signal.pause()
with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
    sys.exit(workers.Supervisor([one, two], run_worker, lambda line: None, print).run())
"""


async def test_a_worker_that_hangs_is_replaced_and_delays_no_shutdown(tmp_path: Path) -> None:
    """The replacement hangs too, after it has sent SIGTERM to the parent. The other worker is left alone."""
    code, out = await supervise(HANGING, tmp_path)
    assert code == 0
    killed = "mcp-mirror: worker 0 has not responded for 2 s, and is killed."
    restarted = "mcp-mirror: worker 0 ended by signal 9; the gateway starts it again in 0.001 s."
    assert out.splitlines() == [killed, restarted, killed]


PAUSED = """
import signal, socket, sys
from mcp_mirror.cli import workers
workers._CHECK = 0.001
def run_worker(start):
    start.announce("x")
    signal.pause()
with socket.create_server(("127.0.0.1", 0)) as listening:
    sys.exit(workers.Supervisor([listening], run_worker, lambda line: print(line, flush=True), print).run())
"""


async def test_a_gateway_that_was_paused_continues() -> None:
    supervisor = await asyncio.create_subprocess_exec(sys.executable, "-c", PAUSED, stdout=PIPE)
    assert supervisor.stdout
    try:
        assert await asyncio.wait_for(supervisor.stdout.readline(), BOUND) == b"mcp-mirror serves x\n"
        for _ in range(50):
            supervisor.send_signal(signal.SIGSTOP)
            await until(lambda: " T " in Path(f"/proc/{supervisor.pid}/stat").read_text())
            supervisor.send_signal(signal.SIGCONT)
            await until(lambda: " T " not in Path(f"/proc/{supervisor.pid}/stat").read_text())
        supervisor.send_signal(signal.SIGTERM)
        out, _ = await asyncio.wait_for(supervisor.communicate(), BOUND)
    finally:
        if supervisor.returncode is None:
            supervisor.kill()
    assert (supervisor.returncode, out) == (0, b"")


LATE_RELOAD = """
import os, signal, socket, sys
from mcp_mirror.cli import workers
from mcp_mirror.settings.policies import Config
workers._DELAY = 0.001
is_replaced, tell = os.pipe()
is_ready, tell_ready = os.pipe()
def run_worker(start):
    signal.alarm(60)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    start.announce("x")
    if start.worker.number == 1:
        os.write(tell_ready, b"x")
        signal.sigwait({signal.SIGHUP})
        os.read(is_replaced, 1)
        start.report_reload(Config(disabled=("reloaded",)))
        signal.pause()
    if start.is_replacement:
        os.write(tell, b"x")
        signal.sigwait({signal.SIGHUP})
        os.kill(os.getppid(), signal.SIGTERM)
        signal.pause()
    os.read(is_ready, 1)
    os.kill(os.getppid(), signal.SIGHUP)
    return 1
with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as two:
    sys.exit(workers.Supervisor([one, two], run_worker, print, print).run())
"""


async def test_a_worker_that_starts_during_a_reload_is_reloaded_too(tmp_path: Path) -> None:
    assert (await supervise(LATE_RELOAD, tmp_path, BOUND / 2))[0] == 0


FAILING_FORKS = """
import errno, os, signal, socket, sys
from mcp_mirror.cli import workers
workers._DELAY = 0.001
fork, failures = os.fork, [OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))] * 2
def fail_twice():
    if failures:
        raise failures.pop()
    return fork()
os.fork = fail_twice
def run_worker(start):
    os.kill(os.getppid(), signal.SIGTERM)
    signal.pause()
with socket.create_server(("127.0.0.1", 0)) as listening:
    sys.exit(workers.Supervisor([listening], run_worker, print, print).run())
"""


async def test_a_worker_that_the_system_cannot_start_is_tried_again(tmp_path: Path) -> None:
    code, out = await supervise(FAILING_FORKS, tmp_path)
    assert code == 0
    lines = out.splitlines()
    assert len(lines) == 2
    assert lines[0] == (
        "mcp-mirror: worker 0 could not be started: Resource temporarily unavailable; "
        "the gateway starts it again in 0.001 s."
    )


async def test_workers_end_with_their_parent(serve: Serve, shared: Path) -> None:
    async with serve(shared, "--workers", "2") as served:
        processes = workers_of(served)
        served.process.send_signal(signal.SIGKILL)
        await until(lambda: not any(map(is_running, processes)))


async def test_a_reload_reaches_all_workers(serve: Serve, shared: Path, configured: Configured, raw: Any) -> None:
    async with serve(shared, "--workers", "2") as served:
        sessions = await open_sessions_of_all_workers(served.url, 2)
        configured({"raw": raw(), "added": raw("ok", "--name", "added")}, store={"kind": "disk"})
        served.process.send_signal(signal.SIGHUP)
        for session in sessions.values():
            list_tools = partial(post, served.url, "tools/list", {}, **{"mcp-session-id": session})
            await until(list_tools, lambda response: '"added_hear_mirrored"' in response.text)
        await until(lambda: b"".join(served.stderr).count(b"the configuration was reloaded.") == 2)
        victim = min(workers_of(served))
        os.kill(victim, signal.SIGKILL)
        await until(lambda: len(workers_of(served) - {victim}) == 2)
        for session in (await open_sessions_of_all_workers(served.url, 2)).values():
            listed = result_of(await post(served.url, "tools/list", {}, **{"mcp-session-id": session}))
            assert "added_hear_mirrored" in {tool["name"] for tool in listed["tools"]}
    assert b"".join(served.stderr).count(b"the configuration was reloaded.") == 2
    assert all(b" worker=%d\n" % number in b"".join(served.stderr) for number in range(2))
    assert b"takes effect at the next start" not in b"".join(served.stderr)


@pytest.mark.parametrize(
    ("later", "watch"),
    sample(list(product(["unusable", "other"], [(), ("--watch",)])), lambda case: case == ("other", ())),
)
async def test_a_replacement_has_the_last_configuration_that_was_reloaded(
    later: str, watch: tuple[str, ...], serve: Serve, configured: Configured, raw: Any
) -> None:
    """A change of `server` takes effect at the next start of the gateway, not of a worker."""
    path = configured({"raw": raw()}, store={"kind": "disk"}, server={"name": "first"})
    async with serve(path, "--workers", "2", *watch) as served, asyncio.timeout(BOUND):
        first = json.loads(path.read_text())
        upstreams = {"raw": raw(), "added": raw("ok", "--name", "added")}
        replace_file(path, json.dumps({**first, "upstreams": upstreams, "server": {"name": "second"}}))
        if not watch:
            served.process.send_signal(signal.SIGHUP)
        await until(lambda: b"".join(served.stderr).count(b"configuration was reloaded.") == 2)
        if later == "unusable":
            replace_file(path, "upstreams: [")
        elif not watch:
            replace_file(path, json.dumps(first))
        for victim in workers_of(served):
            os.kill(victim, signal.SIGKILL)
        await until(lambda: b"".join(served.stderr).count(b"ended by signal 9") == 2)
        for session in (await open_sessions_of_all_workers(served.url, 2)).values():
            listed = result_of(await post(served.url, "tools/list", {}, **{"mcp-session-id": session}))
            assert "added_hear_mirrored" in {tool["name"] for tool in listed["tools"]}
        greeting = result_of(await post(served.url, "initialize", HELLO))
        assert greeting["serverInfo"]["name"] == "first"


async def test_a_replacement_refuses_a_token_that_a_reload_removed(
    serve: Serve, configured: Configured, raw: Any
) -> None:
    def configure(*names: str) -> Path:
        tokens = {name: f"sha256:{hashlib.sha256(name.encode()).hexdigest()}" for name in names}
        return configured({"raw": raw()}, store={"kind": "disk"}, auth={"tokens": tokens})

    async def statuses() -> dict[str, int]:
        answers = {name: await post(served.url, "initialize", HELLO, authorization=f"Bearer {name}") for name in names}
        return {name: answer.status_code for name, answer in answers.items()}

    names = "alice-0123456789", "mallory-0123456789"
    async with serve(configure(*names), "--workers", "2") as served, asyncio.timeout(BOUND):
        assert await statuses() == dict.fromkeys(names, 200)
        configure(names[0])
        served.process.send_signal(signal.SIGHUP)
        await until(lambda: b"".join(served.stderr).count(b"configuration was reloaded.") == 2)
        for victim in workers_of(served):
            os.kill(victim, signal.SIGKILL)
        await until(lambda: b"".join(served.stderr).count(b"ended by signal 9") == 2)
        for _ in range(8):
            assert await statuses() == dict(zip(names, (200, 401), strict=True))


async def test_the_address_of_another_gateway_is_refused(serve: Serve, run: Run, shared: Path) -> None:
    async with serve(shared, "--workers", "2") as served:
        address = served.url.removeprefix("http://").partition("/")[0]
        ended = await run("serve", "--config", str(shared), "--http", address, "--workers", "2")
        assert ended.code == 2
        assert f"Cannot serve on {address}" in ended.err


@pytest.mark.parametrize(
    ("store", "options", "message"),
    [
        ({"kind": "memory"}, ("--http", "127.0.0.1:0", "--workers", "2"), "Set `store.kind` to disk or redis"),
        ({"kind": None}, ("--http", "127.0.0.1:0", "--workers", "2"), "Set `store.kind` to disk or redis"),
        ({"kind": "disk"}, ("--workers", "2"), "--workers needs --http"),
        ({"kind": "disk"}, ("--http", "127.0.0.1:0", "--workers", "0"), "must be between 1 and 256"),
        ({"kind": "disk"}, ("--http", "0.0.0.0:0", "--workers", "2"), "auth"),
    ],
)
async def test_settings_that_workers_cannot_have_are_refused(
    store: dict[str, Any], options: tuple[str, ...], message: str, configured: Configured, run: Run, raw: Any
) -> None:
    ended = await run("serve", "--config", str(configured({"raw": raw()}, store=store)), *options)
    assert ended.code == 2
    assert message in ended.err


async def test_workers_refuse_metrics_ports_over_the_largest(configured: Configured, run: Run, raw: Any) -> None:
    server = {"metrics": "127.0.0.1:65534"}
    config = configured({"raw": raw()}, store={"kind": "disk"}, server=server)
    ended = await run("serve", "--config", str(config), "--http", "127.0.0.1:0", "--workers", "3")
    assert ended.code == 2
    assert ended.err.strip().endswith("65534 is too high. Set a port up to 65533.")
