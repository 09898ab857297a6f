"""Runs scripts in worker processes of `pydantic-monty`, a Python interpreter without files, network and environment.

The pool starts with the first script. A thread drives each script, because the pool's asyncio interface can abort the
process while the interpreter exits, and cannot end a script that computes. A script that is cancelled is ended with its
worker process, which the pool replaces. This module must not know memory, tools and flows.
"""

import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path, PurePosixPath
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, Final

import anyio
import anyio.from_thread
import anyio.to_thread
import msgspec
from anyio.abc import TaskGroup

from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.memory.code.mistakes import find_mistakes, find_unawaited, locate_variable
from mcp_mirror.memory.code.returned import check_encoded, encode_returned
from mcp_mirror.memory.code.script_result import RESULT
from mcp_mirror.security.rate_limits import ConcurrencyLimiter, Limit, Queue
from mcp_mirror.settings.limits import QueuePolicy
from mcp_mirror.settings.policies import CodePolicy
from mcp_mirror.system.resources import check_free_handles, explain_shortage

if TYPE_CHECKING:
    from pydantic_monty import FunctionSnapshot, Monty, MontyCrashedError, MontyError, MontySession

MONTY: Final = "pydantic_monty"
"""The package of the interpreter, an extra."""
CALL_FUNCTION: Final = "_call_tool"
"""The function by which a script's prelude calls tools: its arguments are a name and a JSON object."""
FOLDER: Final = "/memory"

TYPE_CHECK: Final = "type check"
"""The kind of failure of a script that the type check rejected: it did not run."""
UNUSABLE: Final = "result"
"""The kind of failure of a script whose returned value cannot be used."""

INPUT: Final = "input"
"""The kind of failure of a script with an input that cannot be parsed: it did not run."""

_MAX_SCRIPTS: Final = 16
"""Scripts that run at once, also those that wait for tools and users. One principal gets at most half of the
places, and at most as many as it leaves free."""
_LIMITS: Final = {
    "TimeoutError: feed time limit exceeded": "seconds",
    "MemoryError: ": "memory",
    "suspension": "calls",
}
"""Texts of the interpreter's errors, and the configuration keys of the limits."""
_KEPT: Final = 4_000
"""Characters of the beginning and of the end of an exception's message that are kept."""
_SUSPENSIONS: Final = 10_000
"""Times that a script may ask the gateway for anything but a tool call, such as a file."""
_KILL: Final = getattr(signal, "SIGKILL", signal.SIGTERM)
"""The signal that ends a process at once. Windows has no SIGKILL, and ends a process at every signal."""
_HANDLES: Final = 16
"""File handles that must be free when the pool starts. Without a few, its runtime would fail until the process ends."""
_GRACE: Final = 1.0
"""Seconds after its limit in which a worker process must end a script by itself."""
_PRELUDE: Final = "<python-input-0>"
"""The name that the interpreter gives to the code that runs first."""
_FILE_CALLS: Final = ("Path.iterdir", "Path.exists", "Path.is_file", "open", "Path.read_text", "Path.read_bytes")
"""The calls of the operating system that the gateway answers."""

_ASSIGNMENT: Final = f"{RESULT} = "
"""Is not in the scripts of models, so errors do not quote it."""
_LARGE_RESULT: Final = 100_000
"""Characters of JSON text from which a result is encoded in the worker process."""
_READ_RESULT: Final = f"""
import json
{RESULT}_json = None
if not isinstance({RESULT}, str):
    try:
        {RESULT}_json = json.dumps({RESULT}, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError):
        pass
[True, {RESULT}_json] if {RESULT}_json and len({RESULT}_json) > {_LARGE_RESULT} else [False, {RESULT}]
"""
"""Returns whether the result is JSON text, and the result. A large one is encoded in the worker process if JSON has a
form for it: to convert its items keeps the interpreter lock, and takes ten times the memory."""

_NICENESS: Final = 5
"""By how much the priority of scripts is lower than the gateway's. On two cores, eight scripts that compute delay the
calls of other principals by 30 ms without the difference, and by 10 ms with it."""

CallAnswer = Mapping[str, Any]
"""The answer to a call of the sandbox: a value, or an exception."""


class Script(msgspec.Struct, frozen=True):
    """One script."""

    code: str
    prelude: str
    """Code that defines the script's variables and tools; empty if it needs none."""
    inputs: Mapping[str, str | bytes]
    """The texts that the prelude uses."""
    files: Mapping[str, Callable[[], str]]
    """Reads the text of each file in the folder of the inputs."""
    stubs: str | None
    """Types for the check before the script runs; None: no check."""
    policy: CodePolicy
    on_print: Callable[[str], None]


class Failure(msgspec.Struct, frozen=True):
    """Why a script failed."""

    message: str
    """The exception, such as `KeyError: 'x'`; it may contain parts of values."""
    kind: str
    """The class of the exception, or the limit."""
    line: int | None = None
    source: str = ""
    limit: str | None = None
    """The configuration key of the limit that the script exceeded."""


_CANCELLED: Final = Failure("The call was cancelled.", "cancelled")


class Outcome(msgspec.Struct, frozen=True):
    """The end of a script: the returned value as JSON text, or a failure."""

    value: bytes = b"null"
    failure: Failure | None = None


CallTool = Callable[[str, str], Awaitable[CallAnswer]]
"""Calls a tool with JSON arguments; returns `{"return_value": JSON text}`, or an exception by its name."""


class Sandbox:
    """The pool of worker processes."""

    def __init__(self, policy: QueuePolicy) -> None:
        queue = Queue(Limit("queued_calls", policy.queued_calls), policy.queue_timeout)
        self._places = ConcurrencyLimiter(Limit("", _MAX_SCRIPTS), queue, "The sandbox of scripts")
        self._pool: Monty | None = None
        self._opening = anyio.Lock()
        self._threads = anyio.CapacityLimiter(_MAX_SCRIPTS)

    async def run(self, principal: str, script: Script, call_tool: CallTool) -> Outcome:
        """Run a script; cancellation ends its worker process.

        Principals share the worker processes fairly. Calls of tools that the script does not await are cancelled at its
        end.

        Raises:
            BusyError: Too many scripts wait, or this one has waited too long.
            MirrorError: The sandbox cannot start.
        """
        async with self._places.acquire(principal, leaves_room=True):
            async with self._opening:
                if self._pool is None:
                    self._pool = await anyio.to_thread.run_sync(_open_pool)
                pool = self._pool
            tasks = anyio.create_task_group()
            execution = _Execution(pool, script, call_tool, tasks)
            try:
                async with tasks:
                    tasks.start_soon(execution.stop_when_cancelled)
                    outcome = await anyio.to_thread.run_sync(execution.run, limiter=self._threads)
                    tasks.cancel_scope.cancel()
                return outcome
            finally:
                execution.release()

    async def aclose(self) -> None:
        """End the worker processes."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with anyio.CancelScope(shield=True):
                await anyio.to_thread.run_sync(pool.__exit__, None, None, None)


def _open_pool() -> "Monty":
    from pydantic_monty import Monty, MontyError  # noqa: PLC0415  # an extra, and not needed before the first script

    try:
        check_free_handles(_HANDLES)
    except OSError as error:
        raise MirrorError(f"The sandbox cannot start: {explain_shortage(error) or error.strerror}.") from None
    pool = Monty(min_processes=1, max_processes=_MAX_SCRIPTS, feed_duration_limit_grace=_GRACE)
    try:
        return pool.__enter__()
    except (MontyError, OSError) as error:
        raise MirrorError(
            f"The sandbox cannot start: {error}. Install the extra again: pip install 'mcp-mirror[code]'."
        ) from None


def _lower_priority(pid: int | None) -> None:
    """Let a worker process compute when the gateway does not. Linux has a priority for each thread of a process."""
    if pid is None or sys.platform == "win32":
        return
    with suppress(OSError):  # the process has ended
        tasks = Path(f"/proc/{pid}/task")
        threads = [int(task.name) for task in tasks.iterdir()] if sys.platform == "linux" else [pid]
        for thread in threads:
            os.setpriority(os.PRIO_PROCESS, thread, os.getpriority(os.PRIO_PROCESS, 0) + _NICENESS)


class _EndedError(Exception):
    """The call of the script was cancelled, or the check before the run found mistakes."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class _PausedCollector:
    """Pauses the garbage collector while values are converted, which have no cycles.

    No other thread runs during a conversion, and the collector would visit the values again and again in that time.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._was_enabled = False

    def __enter__(self) -> None:
        with self._lock:
            if not self._users:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._was_enabled:
                gc.enable()


_PAUSED_COLLECTOR: Final = _PausedCollector()


class _Execution:
    """One script in a worker process. `run` blocks a thread; tool calls and `stop_when_cancelled` are tasks."""

    def __init__(self, pool: "Monty", script: Script, call_tool: CallTool, tasks: TaskGroup) -> None:
        self._pool, self._script, self._call_tool, self._tasks = pool, script, call_tool, tasks
        self._answers: SimpleQueue[tuple[int, CallAnswer] | None] = SimpleQueue()
        self._results: dict[int, CallAnswer] = {}
        self._lock = threading.Lock()
        self._worker: int | None = None
        """The process id of the worker while it computes; after that, the id may be another's."""
        self._is_stopped = False
        self._is_prepared = False
        self._began = 0.0
        """The processor time of the thread at the start of the script."""

    async def _answer(self, call_id: int, tool: str, arguments: str) -> None:
        """Call a tool, and give the script the result."""
        self._answers.put((call_id, await self._call_tool(tool, arguments)))

    async def stop_when_cancelled(self) -> None:
        """Wait until cancelled, and then end the script if it still runs."""
        try:
            await anyio.sleep_forever()
        finally:
            self._stop()

    def release(self) -> None:
        """Let go of the inputs after the run: the cancelled task keeps this object until a garbage collection."""
        del self._call_tool, self._script, self._tasks

    def _stop(self) -> None:
        with self._lock:
            self._is_stopped = True
            if self._worker is not None:
                with suppress(ProcessLookupError):
                    os.kill(self._worker, _KILL)
        self._answers.put(None)

    def run(self) -> Outcome:
        """Run the script to its end; block the thread."""
        from pydantic_monty import MontyError  # noqa: PLC0415  # an extra

        policy, self._began = self._script.policy, time.thread_time()
        checkout = self._pool.checkout(
            limits={
                "max_feed_duration_secs": policy.seconds,
                "max_memory": policy.memory,
                "max_suspensions": _SUSPENSIONS + 4 * policy.calls,
            },
            type_check=self._script.stubs is not None,
            type_check_stubs=self._script.stubs,
            type_check_format="json",
            os_policy={"sleep": "zero"},
        )
        try:
            with checkout as session:
                return Outcome(self._run_in(session))
        except _EndedError as error:
            return Outcome(failure=error.failure)
        except ToolError as error:
            return Outcome(failure=Failure(str(error), UNUSABLE))
        except MontyError as error:
            return Outcome(failure=_CANCELLED if self._is_stopped else self._explain(error))

    def _run_in(self, session: "MontySession") -> bytes:
        from pydantic_monty import FunctionSnapshot, FutureSnapshot, MontyComplete  # noqa: PLC0415  # an extra

        script, pid = self._script, session.worker_pid
        _lower_priority(pid)
        if script.prelude:
            prepare = partial(session.feed_run, script.prelude, inputs=dict(script.inputs), skip_type_check=True)
            self._compute(pid, prepare)
        self._is_prepared = True
        snapshot = self._start(session, pid)
        while not isinstance(snapshot, MontyComplete):
            if isinstance(snapshot, FunctionSnapshot):
                answer = self._answer_call(snapshot)
                resume = snapshot.resume_not_handled if answer is None else partial(snapshot.resume, answer)
            elif isinstance(snapshot, FutureSnapshot):
                resume = partial(snapshot.resume, self._wait_for(snapshot.pending_call_ids))
            else:
                resume = snapshot.resume_auto
            snapshot = self._compute(pid, resume)
        with _PAUSED_COLLECTOR:
            value = self._read_result(session, pid, snapshot.output)
        if (name := find_unawaited(value, script.code)) is not None:
            raise ToolError(
                f"The script returned a call of `{name}` that was not awaited, so it was not made. Await each call: "
                "await tools.name(...)."
            )
        return value

    def _start(self, session: "MontySession", pid: int | None) -> Any:
        """Check the script's types and start it."""
        from pydantic_monty import MontyTypingError  # noqa: PLC0415  # an extra

        script = self._script
        start = partial(
            session.feed_start,
            script.code,
            inputs={RESULT: None},
            print_callback=lambda _stream, text: script.on_print(text),
        )
        try:
            return self._compute(pid, partial(start, skip_type_check=script.stubs is None))
        except MontyTypingError as error:
            mistakes = find_mistakes(error.display(), script.code)
        if mistakes:
            raise _EndedError(Failure("\n".join(mistakes).replace(_ASSIGNMENT, ""), TYPE_CHECK))
        return self._compute(pid, partial(start, skip_type_check=True))

    def _read_result(self, session: "MontySession", pid: int | None, returned: object) -> bytes:
        """Return the result as JSON text: what the script returned, or else what it kept as `RESULT`."""
        from pydantic_monty import MontyRuntimeError  # noqa: PLC0415  # an extra

        policy, is_encoded = self._script.policy, False
        if returned is None and RESULT in self._script.code:
            feed = partial(session.feed_run, skip_type_check=True)
            try:
                is_encoded, returned = self._compute(pid, partial(feed, _READ_RESULT))
            except MontyRuntimeError as error:  # the script has a variable `len`, or the like
                if key := self._explain(error).limit:
                    raise ToolError(
                        f"The JSON text of the returned value exceeded `code.{key}`. It may have "
                        f"{format_bytes(policy.values)} (`code.values`). Return less, such as a part or a summary."
                    ) from None
                returned = self._compute(pid, partial(feed, RESULT))
        if is_encoded:
            return check_encoded(str(returned).encode(), policy.values)
        return encode_returned(returned, policy.values)

    def _compute(self, pid: int | None, step: Callable[[], Any]) -> Any:
        """Let the worker compute until it needs something; during this time, `_stop` may kill it."""
        with self._lock:
            if self._is_stopped:
                raise _EndedError(_CANCELLED)
            if time.thread_time() - self._began > self._script.policy.seconds:  # to read what the script sends
                raise _EndedError(Failure("TimeoutError", "TimeoutError", limit="seconds"))
            self._worker = pid
        try:
            return step()
        finally:
            with self._lock:
                self._worker = None

    def _answer_call(self, snapshot: "FunctionSnapshot") -> Any:
        """Return the answer to a call of the sandbox; None: the sandbox answers that it is not supported.

        Only used arguments are read: to convert them from the worker process keeps the interpreter lock.
        """
        name = snapshot.function_name
        if snapshot.is_os_function:
            return self._answer_os_call(str(name), snapshot.args) if name in _FILE_CALLS else None
        is_prelude = bool(self._script.prelude) and snapshot.position.filename == _PRELUDE
        if name != CALL_FUNCTION or not is_prelude:
            return {"exc_type": "NameError", "message": f"name '{name}' is not defined"}
        tool, arguments = snapshot.args
        anyio.from_thread.run_sync(self._tasks.start_soon, self._answer, snapshot.call_id, tool, arguments)
        return {"future": ...}

    def _answer_os_call(self, name: str, args: tuple[Any, ...]) -> Any:
        """Answer a file call: only the files of the inputs exist, and none can be written."""
        from pydantic_monty import MontyFileHandle  # noqa: PLC0415  # an extra

        files = {f"{FOLDER}/{name}": read for name, read in self._script.files.items()}
        path = str(getattr(args[0], "path", args[0])) if args else ""
        answer: object = None
        if name == "Path.iterdir" and path == FOLDER:
            answer = [PurePosixPath(path) for path in files]
        elif name in ("Path.exists", "Path.is_file"):
            answer = path in files
        elif name == "open" and path in files and args[1] in ("r", "rb"):
            answer = MontyFileHandle(path, args[1])
        elif name in ("Path.read_text", "Path.read_bytes") and path in files:
            try:
                text = files[path]()
            except ToolError as error:
                return {"exc_type": "OSError", "message": str(error)}
            answer = text if name == "Path.read_text" else text.encode("utf-8", "replace")
        return None if answer is None else {"return_value": answer}

    def _wait_for(self, call_ids: list[int]) -> dict[int, Any]:
        """Wait until one of these tool calls or more have results, and return the results."""
        while not (ready := {call_id: self._results.pop(call_id) for call_id in call_ids if call_id in self._results}):
            if (answer := self._answers.get()) is None:
                raise _EndedError(_CANCELLED)
            self._results[answer[0]] = answer[1]
        return ready

    def _explain(self, error: "MontyError") -> Failure:
        """Return a failure with the last line of the script in the traceback, and the limit that was exceeded."""
        from pydantic_monty import MontyCrashedError, MontyRuntimeError, MontySyntaxError  # noqa: PLC0415  # an extra

        if isinstance(error, MontyCrashedError):
            return _explain_crash(error)
        if not isinstance(error, MontyRuntimeError | MontySyntaxError):
            return Failure(str(error), type(error).__name__)
        message = error.display("type-msg")
        if len(message) > 2 * _KEPT:
            message = f"{message[:_KEPT]}...{message[-_KEPT:]}"
        limit = next((key for text, key in _LIMITS.items() if text in message), None)
        if not self._is_prepared and limit is None:
            return Failure(message, INPUT)
        kind, frames = message.partition(":")[0], error.traceback()
        if self._script.prelude:
            frames = [frame for frame in frames if frame.filename != _PRELUDE]
        if not frames:
            return Failure(message, kind, limit=limit)
        line, source = frames[-1].line, frames[-1].source_line or ""
        if (located := locate_variable(self._script.code, message, line)) != line:
            line, source = located, self._script.code.splitlines()[located - 1]
        return Failure(message, kind, line, source.strip().replace(_ASSIGNMENT, ""), limit)


def _explain_crash(error: "MontyCrashedError") -> Failure:
    if "memory limit" in str(error):
        return Failure("MemoryError", "MemoryError", limit="memory")
    limit = "seconds" if "duration" in str(error) or error.timed_out else None
    return Failure("The worker process of the script died.", "crash", limit=limit)
