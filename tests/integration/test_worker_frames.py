"""Scanning large frames in worker processes."""

import asyncio
import errno
import json
import os
import signal
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from recording_watchdog import RecordingWatchdog
from refused_processes import refuse_processes
from removed_files import wait_until_empty
from tests.load import find_longest_stall
from worker_texts import FatalText

from mcp_mirror.core.conversion import Resolved
from mcp_mirror.core.results.capture import CaptureRules
from mcp_mirror.core.results.processing import ProcessedResult, ProcessingOptions, RejectedFrame, process_frame
from mcp_mirror.errors import UpstreamError, WireError
from mcp_mirror.paths import FixedBases, MemoryPath
from mcp_mirror.payload.json_spans import Miss
from mcp_mirror.payload.spool import Spool, SpooledFrame
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.system import mapped_files
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.system.event_loop import MeasuredLoop, measure_stalls
from mcp_mirror.system.mapped_files import map_file
from mcp_mirror.system.slices import run_by_values
from mcp_mirror.types import FileSpan, Span
from mcp_mirror.workers import frames
from mcp_mirror.workers.frame_jobs import OpenedList
from mcp_mirror.workers.frames import FrameScanner

RULES = CaptureRules("auto", inline_budget=20, error_budget=50, is_wrapped=False)


def order(**changes: Any) -> ProcessingOptions:
    options: dict[str, Any] = {
        "rules": RULES, "style": "compact", "tool": "grid", "arguments": b"{}",
        "bases": FixedBases("grid-1", "grid-2"), "max_key_bytes": 100,
    }  # fmt: skip
    return ProcessingOptions(**(options | changes))


@pytest.fixture
async def scanner(child_watchdog: RecordingWatchdog, tmp_path: Path) -> AsyncIterator[FrameScanner]:
    with Spool(WirePolicy(), tmp_path / "spool") as spool:
        async with aclosing(FrameScanner(child_watchdog, spool)) as scanner:
            yield scanner
        wait_until_empty(spool.directory)


def frame_of(folder: Path, message: object) -> SpooledFrame:
    data = message if isinstance(message, bytes) else json.dumps(message).encode()
    path = folder / "frame"
    path.write_bytes(data)
    return SpooledFrame(path, len(data), data[:100])


def response(**result: Any) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": 1, "result": {"content": [], **result}}


def text(content: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": content}]


ROWS = list(range(200))
RESPONSES = {
    "structured": response(structuredContent={"rows": ROWS, "n": 3}),
    "a long text": response(content=text("word " * 200)),
    "json in a text": response(content=text(json.dumps({"rows": ROWS}, indent=1))),
    "structured and another text": response(structuredContent={"rows": ROWS}, content=text("said " * 100)),
    "several blocks": response(content=[*text("a " * 100), {"type": "image", "data": "QUJD", "mimeType": "image/png"}]),
    "a small text": response(content=text("ok")),
    "a small text and an image": response(
        content=[*text("ok"), {"type": "image", "data": "QUJD", "mimeType": "image/png"}]
    ),
    "a large JSON text": response(
        content=text(json.dumps([{"id": at, "name": 'a "ü" \\ \n'} for at in range(50_000)]))
    ),
    "a large text that begins like JSON": response(content=text("[2026] a line\n" * 100_000)),
    "a large text": response(content=text("a line of a text \U0001f600\n" * 100_000)),
    "an error that is long": response(content=text("bad " * 300), isError=True),
}


@pytest.mark.parametrize("name", RESPONSES)
async def test_a_worker_finds_the_same_as_this_process(scanner: FrameScanner, tmp_path: Path, name: str) -> None:
    frame = frame_of(tmp_path, RESPONSES[name])
    here = process_frame(frame.view, order())
    there = await scanner.scan(frame, order(), "alice")
    assert isinstance(here, ProcessedResult)
    assert isinstance(there, ProcessedResult)
    assert there.notice == here.notice
    for ours, theirs in (
        (here.captured.value, there.captured.value),
        (here.captured.companion, there.captured.companion),
    ):
        assert (ours is None) == (theirs is None)
        if ours and theirs and theirs.file:
            assert bytes(theirs.blob) == bytes(ours.blob)
            assert (theirs.kind, theirs.tokens, theirs.members) == (ours.kind, ours.tokens, ours.members)
            at = theirs.file.span
            assert map_file(theirs.file.path)[at.start : at.stop] == bytes(ours.blob)
    if here.captured.value is None:
        assert {key: bytes(raw) for key, raw in there.members.items()} == {
            key: bytes(raw) for key, raw in here.members.items()
        }
    assert [bytes(block) for block in there.captured.passed] == [bytes(block) for block in here.captured.passed]


async def test_a_worker_sends_no_large_members_but_the_labels_in_them(scanner: FrameScanner, tmp_path: Path) -> None:
    meta = {"view": "x" * 1_000_000, "ifc": {"confidentiality": "secret"}}
    result = await scanner.scan(frame_of(tmp_path, response(structuredContent={"a": 1}, _meta=meta)), order(), "alice")
    assert isinstance(result, ProcessedResult)
    assert result.ifc == meta["ifc"]
    assert len(result.captured.other_members) < 1000


async def test_a_json_rpc_error_is_reported(scanner: FrameScanner, tmp_path: Path) -> None:
    frame = frame_of(tmp_path, {"jsonrpc": "2.0", "id": 1, "error": {"code": -32602, "message": "no such tool"}})
    assert await scanner.scan(frame, order(), "alice") == RejectedFrame(-32602, "no such tool")


@pytest.mark.parametrize(
    ("message", "message_pattern"),
    [
        (b'{"jsonrpc":"2.0","id":1,"result":{"content":[}}', "not valid JSON"),
        (b'{"jsonrpc":"2.0","id":1,"result":{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}}", "nested too deep"),
        (b'{"jsonrpc":"2.0","method":"x"}', "neither a result nor an error"),
        (json.dumps(response(structuredContent={"k" * 200: ROWS})).encode(), "limits.max_key_bytes"),
    ],
)
async def test_a_malformed_response_is_an_error_and_the_next_is_read(
    scanner: FrameScanner, tmp_path: Path, message: bytes, message_pattern: str
) -> None:
    with pytest.raises(WireError, match=message_pattern):
        await scanner.scan(frame_of(tmp_path, message), order(), "alice")
    assert isinstance(
        await scanner.scan(frame_of(tmp_path, RESPONSES["structured"]), order(), "alice"), ProcessedResult
    )


MANY_BLOCKS = b'{"jsonrpc":"2.0","id":1,"result":{"content":[%b1]}}'


async def test_a_result_of_too_many_parts_takes_a_bounded_memory(
    child_watchdog: RecordingWatchdog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frames, "_SIZE", msgspec.structs.replace(frames._SIZE, memory=100 << 20))  # noqa: SLF001
    with Spool(WirePolicy(), tmp_path / "spool") as spool:
        async with aclosing(FrameScanner(child_watchdog, spool)) as scanner:
            with pytest.raises(WireError, match="too many members and items"):
                await scanner.scan(frame_of(tmp_path, MANY_BLOCKS % (b"1," * 300_000)), order(), "alice")
            assert isinstance(
                await scanner.scan(frame_of(tmp_path, RESPONSES["structured"]), order(), "alice"), ProcessedResult
            )


POINTER = b'{"a":"%b","b":"grid-3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f"}' % (b"x" * 200_000)
"""Arguments with a path."""
WORK: dict[str, Callable[[FrameScanner, Path, str], Awaitable[object]]] = {
    "results": lambda scanner, folder, principal: scanner.scan(
        frame_of(folder, RESPONSES["structured"]), order(), principal
    ),
    "relayed results": lambda scanner, folder, principal: scanner.open(
        frame_of(folder, RESPONSES["structured"]), 100, principal
    ),
    "arguments": lambda scanner, _folder, principal: scanner.find(POINTER, frozenset({"grid"}), 9, principal),
    "values": lambda scanner, _folder, principal: scanner.locate(b"[%b1]" % (b"1," * 3_000_000), None, (9,), principal),
}


@pytest.mark.parametrize("kind", WORK)
async def test_the_work_of_one_principal_leaves_a_process_for_others(
    scanner: FrameScanner, child_watchdog: RecordingWatchdog, tmp_path: Path, kind: str
) -> None:
    done = list[str]()

    async def work(principal: str, number: int) -> None:
        folder = tmp_path / f"{number}"
        folder.mkdir()
        await WORK[kind](scanner, folder, principal)
        done.append(principal)

    with anyio.fail_after(120):
        async with anyio.create_task_group() as tasks:
            for number in range(2):
                tasks.start_soon(work, "mallory", number)
        for pid in (stopped := tuple(child_watchdog.added)):
            os.kill(pid, signal.SIGSTOP)
        async with anyio.create_task_group() as tasks:
            for number in range(2, 6):
                tasks.start_soon(work, "mallory", number)
            await anyio.wait_all_tasks_blocked()
            await work("alice", 6)
            assert done[2:] == ["alice"]
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)
    assert len(stopped) == 2
    assert done.count("mallory") == 6


async def test_a_text_that_breaks_off_leaves_no_decoded_file(scanner: FrameScanner, tmp_path: Path) -> None:
    text = '["' + "x" * 3_000_000 + "\\q" + "x" * 100_000 + '"]'
    literal = json.dumps(text).replace("\\\\q", "\\q").encode()
    frame = frame_of(tmp_path, b'{"jsonrpc":"2.0","id":1,"result":{"content":[{"type":"text","text":%b}]}}' % literal)
    with pytest.raises(WireError, match="not valid JSON"):
        await scanner.scan(frame, order(), "alice")
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["frame"]


async def test_a_pointer_is_resolved_inside_a_file(scanner: FrameScanner, tmp_path: Path) -> None:
    data = b'junk{"rows":[1,22,333]}junk'
    place = FileSpan(str(frame_of(tmp_path, data).path), Span(4, len(data) - 8))
    assert await scanner.locate(data[4:-4], place, ("rows", "2"), "alice") == Span(14, 3)
    assert await scanner.locate(data[4:-4], place, ("rows", "3"), "alice") == Miss(1, "array", length=3)


async def test_concurrent_jobs_are_all_done(scanner: FrameScanner, tmp_path: Path) -> None:
    data = json.dumps(ROWS).encode()
    place = FileSpan(str(frame_of(tmp_path, data).path), Span(0, len(data)))
    found: dict[int, object] = {}

    async def ask(index: int) -> None:
        found[index] = await scanner.locate(data, place, (str(index),), "alice")

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for index in range(100):
                tasks.start_soon(ask, index)
    for index, span in found.items():
        assert isinstance(span, Span)
        assert data[span.start : span.stop] == str(index).encode()


async def test_a_worker_that_dies_fails_one_job(scanner: FrameScanner, tmp_path: Path) -> None:
    frame = frame_of(tmp_path, RESPONSES["structured"])
    with pytest.raises(UpstreamError, match="Try again"):
        await scanner.scan(frame, order(tool=FatalText("grid")), "alice")
    assert isinstance(await scanner.scan(frame, order(), "alice"), ProcessedResult)


async def test_without_a_free_handle_the_missing_worker_is_named(
    scanner: FrameScanner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refuse_processes(monkeypatch)
    with pytest.raises(UpstreamError, match=r"cannot start: the gateway has no free file handle.*`ulimit -n`"):
        await scanner.scan(frame_of(tmp_path, RESPONSES["structured"]), order(), "alice")


async def test_a_list_is_split_up_to_its_limits(scanner: FrameScanner, tmp_path: Path) -> None:
    items = [{"name": "one"}, 2, "three"]
    frame = frame_of(tmp_path, response(tools=items, nextCursor="next", ttlMs=5, other=1))

    def read(page: OpenedList | RejectedFrame) -> list[Any]:
        assert isinstance(page, OpenedList)
        places = iter(page.bounds)
        return [json.loads(bytes(page.whole[start:stop])) for start, stop in zip(places, places, strict=True)]

    page = await scanner.open_list(frame, "tools", 1000)
    assert read(page) == items
    assert isinstance(page, OpenedList)
    assert page.members == {"nextCursor": b'"next"', "ttlMs": b"5"}
    assert page.cut is None
    page = await scanner.open_list(frame, "tools", 20)
    assert read(page) == items[:2]
    assert isinstance(page, OpenedList)
    assert page.cut == "`limits.max_listing_bytes` (20)"
    assert read(await scanner.open_list(frame, "prompts", 20)) == []


async def test_a_list_that_cannot_be_read_is_an_error(scanner: FrameScanner, tmp_path: Path) -> None:
    frame = frame_of(tmp_path, {"jsonrpc": "2.0", "id": 1, "error": {"code": -5, "message": "no"}})
    assert await scanner.open_list(frame, "tools", 20) == RejectedFrame(-5, "no")
    frame = frame_of(tmp_path, b'{"jsonrpc":"2.0","id":1,"result":{"tools":[' + b"1," * 4_000_000 + b"1]}}")
    with pytest.raises(WireError, match="more than 4,000,000"):
        await scanner.open_list(frame, "tools", 1 << 30)
    many = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[' + b"1," * 100_000 + b"1]}}"
    page = await scanner.open_list(frame_of(tmp_path, many), "tools", 1 << 30)
    assert isinstance(page, OpenedList)
    assert page.cut is not None
    assert page.cut.startswith("100,000 items")


@pytest.mark.parametrize("size", [10, 70_000, 200_000, *((1 << 20) - at for at in (0, 20, 40, 60))])
async def test_the_pointers_in_large_arguments_are_found(scanner: FrameScanner, size: int) -> None:
    path = "grid-3f2b8c1e-9d4a-4e7b-8f21-0a1b2c3d4e5f"
    arguments = b'{"a":"%b","b":"%b"}' % (b"x" * size, path.encode())
    (found,) = await scanner.find(arguments, frozenset({"grid"}), 9, "alice")
    assert bytes(arguments[found.span.start : found.span.stop]).strip(b'"').decode() == path


@pytest.mark.parametrize("size", [10, 5 << 20])
async def test_a_pointer_is_resolved_in_a_value_without_a_file(scanner: FrameScanner, size: int) -> None:
    blob = b'{"a":["%b",12]}' % (b"x" * size)
    found = await scanner.locate(blob, None, ("a", 1), "alice")
    assert isinstance(found, Span)
    assert blob[found.start : found.stop] == b"12"
    assert isinstance(await scanner.locate(blob, None, ("b",), "alice"), Miss)


async def test_the_search_of_a_value_takes_turns_with_other_work(scanner: FrameScanner) -> None:
    large, gate, found = (b"x" * 100_000,), threading.Event(), list[object]()

    async def occupy() -> None:
        await run_by_values(large, gate.wait, 30, principal="alice")

    async def search() -> None:
        found.append(await scanner.locate(b"[1,2]", None, (1,), "alice"))

    async with anyio.create_task_group() as tasks:
        try:
            for _ in range(2):
                tasks.start_soon(occupy)
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(search)
            await anyio.wait_all_tasks_blocked()
            with anyio.fail_after(10):
                assert await scanner.locate(b"[1,2]", None, (1,), "bob") == Span(3, 1)
            assert found == []
        finally:
            gate.set()
    assert found == [Span(3, 1)]


@pytest.mark.parametrize("size", [10, 200_000])
async def test_a_text_is_converted_as_in_the_gateway(scanner: FrameScanner, size: int) -> None:
    blob, wanted = json.dumps(f'["{"x" * size}"]').encode(), frozenset({"array"})
    nowhere = FileSpan("/nonexistent/file", Span(0, len(blob)))
    for file in (None, nowhere):
        value = Resolved(MemoryPath("text"), blob, "text", file=file)
        (converted,) = await scanner.convert(value, wanted, "alice") or ()
        assert bytes(converted) == json.loads(blob).encode()
        assert await scanner.convert(value, frozenset({"object"}), "alice") is None


@pytest.mark.alone
@pytest.mark.skipif(sys.platform == "win32", reason="no loop is measured there")
def test_a_search_of_arguments_of_100_mb_does_not_block_the_event_loop(tmp_path: Path) -> None:
    arguments = b'{"a":"%b"}' % (b"hello foo-bar " * 8_000_000)

    async def search() -> float:
        """Return the longest stall while the spool is open: the disk may be busy when it is removed."""
        with ChildWatchdog() as child_watchdog, Spool(WirePolicy(), tmp_path) as spool:
            scanner = FrameScanner(child_watchdog, spool)
            measure_stalls()
            assert await scanner.find(arguments, frozenset({"grid"}), 9, "alice") == ()
            return await find_longest_stall()

    with asyncio.Runner(loop_factory=MeasuredLoop) as runner:
        longest = runner.run(search())
    assert longest < 0.06


@pytest.mark.skipif(sys.platform == "win32", reason="files are not mapped on Windows")
async def test_without_a_free_handle_a_large_result_is_an_error_with_the_cause(
    scanner: FrameScanner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> memoryview:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE), path)

    frame = frame_of(tmp_path, RESPONSES["a long text"])
    await scanner.scan(frame, order(), "alice")
    monkeypatch.setattr(mapped_files, "map_file", refuse)
    with pytest.raises(UpstreamError, match="Too many open files"):
        await scanner.scan(frame, order(), "alice")
