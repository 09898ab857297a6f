"""Produces one fault and measures its cost: the client's error, its time, and the time until recovery."""

import asyncio
import math
import os
import re
import signal
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tests.faults import proxy
from tests.faults.stage import HANG, Answer, Stage, staging
from tests.load import slowness

SAMPLES = int(os.environ.get("FAULTS_SAMPLES", "5"))
"""Calls to the neighbour, before and during a fault. They only fill the tables of `make faults`, which makes 300."""
CASE = 120.0
"""Seconds that one case may take."""
GIVEN_UP = 30.0
"""Seconds after which the harness stops waiting for an upstream that does not come back."""
REFUSALS = 5
"""Calls that are made to an upstream that is away."""

Loses = Literal["nothing", "the call", "all in flight"]
Transport = Literal["stdio", "http"]


@dataclass(frozen=True)
class Fault:
    """One row: what is done, and what it may cost."""

    transport: Transport
    what: str
    tool: str = "echo"
    """Of the scripted upstream's: the call that meets the fault."""
    via: proxy.Fault | None = None
    """What the proxy does to the connection, where the fault is the network's."""
    loses: Loses = "the call"
    says: str = ""
    """A pattern of the error that the client gets."""
    waits: float = 0.0
    """Seconds that the gateway must let pass, since it cannot know better."""
    frozen: bool = False
    """The upstream's process is stopped, and continues after the call is answered."""
    away: bool = False
    """The upstream stays away for a while before it returns."""

    @property
    def ends(self) -> bool:
        """Whether the upstream's process is gone."""
        return self.loses == "all in flight" and self.via is None


@dataclass(frozen=True)
class Seen:
    """What came of it. Times are seconds."""

    text: str
    """What the client saw of the call that met the fault."""
    failed: bool
    lost: int
    """Calls in flight on the same upstream that failed, that one included."""
    refused_slowest: float
    """The longest that a call took which was made while the upstream was away."""
    answered: float
    """From the fault until the last call that it cost was answered."""
    back: float
    """Seconds from the upstream's return until a call succeeded; infinite if no call did within the limit."""
    tries: int
    """Calls until one worked."""
    idle: float = 0.0
    beside: float = 0.0
    """The neighbour's p99, before and during the fault."""
    repeated: tuple[str, ...] = ()
    slowness: float = 1.0
    """The slowdown of programs during the measurement, compared with an idle machine."""


GONE = r"'bad' closed the connection during '{tool}'"
FAILED = r"'bad' (refused|closed|failed|answered|did not answer)[^']* '{tool}'"
INVALID = r"'bad' sent an invalid answer to '{tool}'\. The message is not valid JSON"
OVER = r"over `limits\.max_message_bytes`"
LATE = r"'bad' did not answer '{tool}' within 0\.5 s"

FAULTS: tuple[Fault, ...] = (
    Fault("stdio", "crashes during a call", "crash", loses="all in flight", says=GONE),
    Fault("stdio", "is killed (`kill -9`)", "kill", loses="all in flight", says=GONE),
    Fault("stdio", "crashes in the middle of an answer", "half", loses="all in flight", says=GONE),
    Fault("stdio", "closes its output", "shut", loses="all in flight", says=GONE),
    Fault("stdio", "crashes, then ends at each start", "crash", loses="all in flight", says=GONE, away=True),
    Fault("stdio", "hangs", "hang", says=LATE, waits=HANG),
    Fault("stdio", "is stopped (SIGSTOP) for a while", "freeze", says=LATE, waits=HANG, frozen=True),
    Fault("stdio", "answers 0.3 s late", "late", loses="nothing", waits=0.3),
    Fault("stdio", "writes its answer byte by byte", "drip", loses="nothing", waits=1.0),
    Fault("stdio", "answers under wrong ids", "wrong_id", says=LATE, waits=HANG),
    Fault("stdio", "answers twice", "twice", loses="nothing"),
    Fault("stdio", "writes lines of garbage, then the answer", "garbage", loses="nothing"),
    Fault("stdio", "answers with what is no JSON", "no_json", says=INVALID),
    Fault("stdio", "100 MB on standard error", "stderr_flood", loses="nothing", waits=5.0),
    Fault("stdio", "a line of 16 MB where 2 are the bound", "endless", says=OVER, waits=1.0),
    Fault("stdio", "a line that never ends", "never_ending", loses="all in flight", says="does not end", waits=HANG),
    Fault("http", "crashes during a call", "crash", loses="all in flight", says=FAILED),
    Fault("http", "is killed (`kill -9`)", "kill", loses="all in flight", says=FAILED),
    Fault("http", "crashes, then refuses connections", "crash", loses="all in flight", says=FAILED, away=True),
    Fault("http", "hangs", "hang", says=LATE, waits=HANG),
    Fault("http", "is stopped (SIGSTOP) for a while", "freeze", says=LATE, waits=HANG, frozen=True),
    Fault("http", "answers 0.3 s late", "late", loses="nothing", waits=0.3),
    Fault("http", "answers under a wrong id", "wrong_id", says="'bad'", waits=HANG),
    Fault("http", "events under wrong ids", "wrong_ids", says="'bad'", waits=HANG),
    Fault("http", "answers twice", "twice", loses="nothing"),
    Fault("http", "events of garbage, then the answer", "garbage", loses="nothing"),
    Fault("http", "answers with what is no JSON", "no_json", says=INVALID),
    Fault("http", "answers with HTTP status 502", "no_mcp", says=FAILED),
    Fault("http", "an event of 16 MB where 2 are the bound", "endless", says=OVER, waits=1.0),
    Fault("http", "a body of 16 MB where 2 are the bound", "endless_body", says=OVER, waits=1.0),
    Fault("http", "network: 0.3 s of latency", via=proxy.delay, loses="nothing", waits=0.3),
    Fault("http", "network: the answer byte by byte", via=proxy.drip, loses="nothing", waits=2.0),
    Fault("http", "network: connection reset before the answer", via=proxy.reset, says=FAILED),
    Fault("http", "network: connection closed before the answer", via=proxy.close, says=FAILED),
    Fault("http", "network: half an answer, then a reset", via=proxy.half_and_reset, says=FAILED),
    Fault("http", "network: half an answer, then the end", via=proxy.half_and_close, says=FAILED),
    Fault("http", "network: garbage for an answer", via=proxy.noise, says=FAILED),
    Fault("http", "network: silence", "brief", via=proxy.silence, says=LATE, waits=HANG),
    Fault("http", "network: an event that never ends", "brief", via=proxy.event_without_end, says="'bad'", waits=HANG),
    Fault("http", "network: a body that never ends", "brief", via=proxy.body_without_end, says="'bad'", waits=HANG),
)  # fmt: skip


async def observe(fault: Fault, folder: Path, version: str = "2025") -> Seen:
    """Let it happen once, with another call in flight on the same upstream and a neighbour that is called all along."""
    before = slowness()
    async with (
        asyncio.timeout(CASE),
        staging(fault.transport, folder, proxied=fault.via is not None, version=version) as on,
    ):
        await on.times(min(20, SAMPLES))
        idle = await on.times(SAMPLES)
        over = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            neighbour = tasks.create_task(on.times_until(over, SAMPLES))
            try:
                seen = await _strike(fault, on)
            finally:
                over.set()
        return replace(
            seen,
            idle=_p99(idle),
            beside=_p99(neighbour.result()),
            repeated=tuple(on.repeated()),
            slowness=max(before, slowness()),
        )


async def _strike(fault: Fault, on: Stage) -> Seen:
    gate = on.folder / "gate"
    other = await on.begin("wait", gate=str(gate))
    if fault.away:
        on.down.touch()
    if fault.via and on.proxy:
        on.proxy.arm(fault.via)
    answer = await on.call(fault.tool)
    word = await on.witness.see("struck")
    if fault.frozen:
        os.kill(word["pid"], signal.SIGCONT)
    if fault.loses != "all in flight":
        gate.touch()
    beside = await other
    refused = await _call_while_away(fault, on)
    returned = await _return(fault, on, word["at"] if fault.ends else max(answer.at, beside.at))
    back, tries = await _await_return(on)
    lost = [one for one in (answer, beside) if one.failed]
    last = max(one.at for one in (lost or [answer]))
    return Seen(
        text=answer.text,
        failed=answer.failed,
        lost=len(lost),
        refused_slowest=refused,
        answered=last - word["at"],
        back=math.inf if back.failed else back.at - returned,
        tries=tries,
    )


async def _call_while_away(fault: Fault, on: Stage) -> float:
    """Calls to an upstream that is away are refused, each in its time; the longest of them."""
    taken = [0.0]
    for _ in range(REFUSALS if fault.away else 0):
        began = time.monotonic()
        answer = await on.call("echo")
        assert answer.failed
        assert "'bad'" in answer.text
        taken.append(time.monotonic() - began)
    return max(taken)


async def _return(fault: Fault, on: Stage, since: float) -> float:
    """The upstream comes back; when it did. Over stdio the gateway starts it: the time counts from the fault."""
    if not fault.ends:
        return since
    if on.upstream:
        await on.upstream.stop()
        return await on.upstream.start()
    if fault.away:
        on.down.unlink()
        return time.monotonic()
    return since


async def _await_return(on: Stage) -> tuple[Answer, int]:
    tries, until = 1, time.monotonic() + GIVEN_UP
    while (answer := await on.call("echo")).failed and answer.at < until:
        tries += 1
    return answer, tries


def _p99(times: list[float]) -> float:
    return sorted(times)[int(0.99 * len(times))]


def pattern(fault: Fault) -> "re.Pattern[str]":
    return re.compile(fault.says.format(tool=fault.tool))
