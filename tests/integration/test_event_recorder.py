"""Calls are recorded without waiting for the store, described in the background, and never lost silently."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.errors import RefusalReason, StoreError, ToolError
from mcp_mirror.gateway.call import Call, reply_to_error
from mcp_mirror.gateway.stages.reporting import ReportStage
from mcp_mirror.observability.audit import Audit
from mcp_mirror.observability.events import MAX_ARGUMENTS, CallEvent, EventRecorder, FinishedCall, read_calls
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.settings.policies import EventsPolicy
from mcp_mirror.stores.event_log import MemoryEventLog, SumKey, Sums

NOW = 500_000 * 3600 + 60.0
PATH = "say-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"


class FickleLog(MemoryEventLog):
    """A log that may be away."""

    away = False
    appends = 0

    def __init__(self) -> None:
        super().__init__(lambda: NOW)

    async def append(self, namespace: str, entries: Sequence[bytes], sums: Mapping[SumKey, Sums], *, keep: int) -> None:
        self.appends += 1
        if self.away:
            raise StoreError("It is away.")
        await super().append(namespace, entries, sums, keep=keep)


@pytest.fixture
def log() -> FickleLog:
    return FickleLog()


def recorder_of(log: FickleLog, pause: float = 2.0, **policy: Any) -> EventRecorder:
    return EventRecorder(log, EventsPolicy(**policy), lambda: NOW, pause)


def finished(
    namespace: str = "me",
    arguments: bytes | None = b"{}",
    size: int | None = None,
    path_slugs: frozenset[str] | None = None,
    refusal: str = "",
    **members: Any,
) -> FinishedCall:
    names = {"id": "1", "tool": "say_mirrored", "upstream": "raw", "outcome": "ok", "reason": ""}
    numbers = {"at": 0.0, "milliseconds": 2000.0, "bytes": 10, "sent": 3, "kept_out": 0}
    known: dict[str, Any] = {**names, **numbers, **members}
    size = len(arguments or b"") if size is None else size
    return FinishedCall(namespace, CallEvent(**known), arguments, size, path_slugs, refusal)


async def test_entries_that_cannot_be_read_are_left_out(log: FickleLog) -> None:
    recorder = recorder_of(log)
    for name in ("a", "b"):
        recorder.add(finished(id=name))
        await recorder.flush()
        await log.append("me", [b"another program's", b"\xff", b""], {}, keep=99)
    for limit in (1, 2, 9):
        assert [event.id for _, event in await read_calls(log, "me", limit=limit)] == ["b", "a"][:limit]


async def test_calls_reach_the_log_with_the_next_flush(log: FickleLog) -> None:
    recorder = recorder_of(log)
    recorder.add(finished(id="a", path=PATH, inputs=("x-1",), parent="p"))
    recorder.add(finished(id="b", outcome="error", bytes=5))
    recorder.add(finished("you", id="c", outcome="refused", reason="busy", refusal="It is busy. Wait."))
    assert log.appends == 0
    await recorder.flush()
    assert log.appends == 2
    [(_, second), (cursor, first)] = await read_calls(log, "me", limit=9)
    assert (first.id, first.at, first.milliseconds) == ("a", NOW - 2, 2000.0)
    assert (first.path, first.inputs, first.parent, first.arguments) == (PATH, ("x-1",), "p", "{}")
    assert second.id == "b"
    assert [event.id for _, event in await read_calls(log, "me", after=cursor, limit=9)] == ["b"]
    [(_, refused)] = await read_calls(log, "you", limit=9)
    assert (refused.reason, refused.why) == ("busy", (("", "", "It is busy. Wait."),))
    key = (int(NOW) // 3600, "raw", "say_mirrored")
    assert await log.sums("me", 0) == {key: Sums(2, 1, 0, 15, 6, 0, 4000)}
    assert await log.sums("you", 0) == {key: Sums(1, 0, 1, 10, 3, 0, 2000)}
    await recorder.flush()
    assert log.appends == 2


async def test_calls_of_a_failed_log_are_written_later_once(log: FickleLog, caplog: pytest.LogCaptureFixture) -> None:
    recorder = recorder_of(log)
    log.away = True
    for identity in "ab":
        recorder.add(finished(id=identity))
        await recorder.flush()
    log.away = False
    recorder.add(finished(id="c"))
    await recorder.flush()
    assert [event.id for _, event in await read_calls(log, "me", limit=9)] == ["c", "b", "a"]
    assert [one.calls for one in (await log.sums("me", 0)).values()] == [3]
    assert recorder.lost == 0
    assert [record.getMessage() for record in caplog.records] == [
        "Calls could not be added to the event log and are added later. It is away.",
        "Calls are added to the event log again.",
    ]


async def test_a_log_that_fails_every_other_time_is_reported_once(
    log: FickleLog, caplog: pytest.LogCaptureFixture
) -> None:
    recorder = recorder_of(log)
    for number in range(20):
        log.away = not log.away
        recorder.add(finished(id=str(number)))
        await recorder.flush()
    assert [event.id for _, event in await read_calls(log, "me", limit=99)] == [*map(str, reversed(range(20)))]
    failed = "Calls could not be added to the event log and are added later. It is away."
    assert caplog.messages == [failed, "Calls are added to the event log again.", failed]


async def test_the_end_reports_calls_that_the_log_has_not_got(log: FickleLog, caplog: pytest.LogCaptureFixture) -> None:
    recorder = recorder_of(log)
    log.away = True
    for identity in "ab":
        recorder.add(finished(id=identity))
    recorder.add(finished("you"))
    await recorder.close()
    assert caplog.messages[-1] == "3 calls are missing in the event log: its store still failed when the gateway ended."
    log.away = False
    await recorder.close()
    assert len(caplog.messages) == 3
    assert [one.calls for one in (await log.sums("me", 0)).values()] == [2]


async def test_a_cancelled_flush_loses_no_calls(log: FickleLog) -> None:
    recorder = recorder_of(log)
    recorder.add(finished(id="a"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.flush)
        await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()
    await recorder.flush()
    assert [event.id for _, event in await read_calls(log, "me", limit=9)] == ["a"]


async def test_calls_that_exceed_the_memory_are_still_counted(
    log: FickleLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("mcp_mirror.observability.events._MAX_PENDING", 2)
    monkeypatch.setattr("mcp_mirror.observability.events._MAX_UNWRITTEN_BYTES", 0)
    recorder = recorder_of(log)
    for identity in "abc":
        recorder.add(finished(id=identity))
    assert recorder.lost == 1
    log.away = True
    await recorder.flush()
    assert recorder.lost == 3
    log.away = False
    await recorder.flush()
    assert await read_calls(log, "me", limit=9) == ()
    assert [one.calls for one in (await log.sums("me", 0)).values()] == [3]
    assert caplog.messages[-1] == (
        "Calls are added to the event log again. 3 calls are counted in its sums and missing among its entries."
    )


async def test_arguments_that_exceed_the_memory_have_only_a_size(
    log: FickleLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("mcp_mirror.observability.events._MAX_PENDING_BYTES", 15)
    recorder = recorder_of(log)
    recorder.add(finished(arguments=b'{"a": 1}'))
    recorder.add(finished(arguments=b'{"b": 12}'))
    recorder.add(finished(arguments=None, size=123_456))
    await recorder.flush()
    described = [event.arguments for _, event in await read_calls(log, "me", limit=9)]
    assert described == ['"<arguments, 123,456 bytes>"', '"<arguments, 9 bytes>"', '{"a":"<number>"}']


async def test_arguments_keep_values_if_configured(log: FickleLog) -> None:
    recorder = recorder_of(log, arguments="values")
    recorder.add(finished(arguments=b'{"a": 1, "b": "text"}'))
    await recorder.flush()
    [(_, event)] = await read_calls(log, "me", limit=9)
    assert event.arguments == '{"a":1,"b":"text"}'


async def test_unused_paths_are_explained(log: FickleLog) -> None:
    recorder = recorder_of(log)
    arguments = json.dumps({"a": PATH, "b": [PATH.upper()], "c": f"see {PATH} of 12345"}).encode()
    recorder.add(finished(arguments=arguments, path_slugs=frozenset({"say"}), inputs=(PATH,)))
    await recorder.flush()
    [(_, event)] = await read_calls(log, "me", limit=9)
    assert {(at, text) for at, text, _ in event.why} >= {("c", PATH)}
    assert "a" not in [at for at, _, _ in event.why]
    assert "12345" not in repr(event)


async def test_the_log_is_written_in_the_background(log: FickleLog) -> None:
    recorder = recorder_of(log, pause=0.001)
    async with asyncio.timeout(60), anyio.create_task_group() as tasks:
        tasks.start_soon(recorder.run)
        for total in (1, 2):
            recorder.add(finished())
            while len(await read_calls(log, "me", limit=9)) < total:
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


def call_of(arguments: bytes = b"{}") -> Call:
    return Call(NullChannel(Caller(LOCAL)), "say_mirrored", arguments)


async def recorded(log: FickleLog, call: Call, answer: Any) -> Any:
    recorder = recorder_of(log)
    try:
        stage = ReportStage(Audit(), recorder, PathHasher(b"key"), iter([1.0, 1.5]).__next__)
        return await stage(call, answer)
    finally:
        await recorder.flush()


async def test_the_stage_records_what_the_call_became(log: FickleLog) -> None:
    async def answer(call: Call) -> dict[str, bytes]:
        call.trace.upstream, call.trace.path, call.trace.inputs = "raw", PATH, {"other-1": ""}
        call.trace.sent, call.trace.kept_out = 7, 500
        return {"content": b"[]"}

    call = call_of(b'{"a": null}')
    await recorded(log, call, answer)
    [(_, event)] = await read_calls(log, LOCAL, limit=9)
    assert (event.id, event.tool, event.upstream, event.outcome) == (call.id, "say_mirrored", "raw", "stored")
    assert (event.milliseconds, event.bytes, event.sent, event.kept_out) == (500.0, 2, 7, 500)
    assert (event.path, event.inputs, event.arguments) == (PATH, ("other-1",), '{"a":null}')


async def test_the_stage_records_a_refusal_in_the_words_for_logs(log: FickleLog) -> None:
    async def refuse(call: Call) -> Any:
        call.trace.upstream = "raw"
        error = ToolError("No key. Its keys are x.", RefusalReason.UNKNOWN_PATH)
        return reply_to_error(call, error.with_log_message("No key."))

    await recorded(log, call_of(), refuse)
    [(_, event)] = await read_calls(log, LOCAL, limit=9)
    assert (event.reason, event.why) == ("unknown path", (("", "", "No key."),))


async def test_the_stage_records_refusals_errors_and_cancellations(log: FickleLog) -> None:
    async def refuse(call: Call) -> Any:
        return reply_to_error(call, ToolError("It is busy. Wait.", RefusalReason.BUSY))

    async def fail(_call: Call) -> Any:
        raise StoreError("It is away.")

    async def crash(_call: Call) -> Any:
        raise ValueError

    async def cancel(_call: Call) -> Any:
        raise asyncio.CancelledError

    await recorded(log, call_of(b'{"a": "%s"}' % (b"x" * MAX_ARGUMENTS)), refuse)
    for answer, error in ((fail, StoreError), (crash, ValueError), (cancel, asyncio.CancelledError)):
        with pytest.raises(error):
            await recorded(log, call_of(), answer)
    events = [event for _, event in await read_calls(log, LOCAL, limit=9)]
    assert [event.outcome for event in events] == ["cancelled", "error", "error", "refused"]
    assert events[-1].tool == "(unknown)"
    assert events[-1].why == (("", "", "No tool has the name that the client called."),)  # which the error repeats
    assert events[-1].arguments == f'"<arguments, {MAX_ARGUMENTS + 9:,} bytes>"'
