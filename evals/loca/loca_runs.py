"""One run: a task in one arm with one model, its record, and all runs that a log does not have."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from loca_arms import CLAIM, Arm, OpenArm, open_arm
from loca_suite import Environment, Suite, Task, Verdict, build_environment
from mcp_mirror.errors import MirrorError
from mcp_mirror.evals.cases import Limits
from mcp_mirror.evals.conversation import Call, MadeCall, Tool, Transcript, Usage, User
from mcp_mirror.evals.dialects import DIALECTS, Message, ToolsMode
from mcp_mirror.evals.endpoint import Completion
from mcp_mirror.evals.log import VOID, Log, Record
from mcp_mirror.evals.loop import Complete, ConversationSetup, run_conversation
from mcp_mirror.tokens import estimate_tokens

_KEPT: Final = 1500
"""Characters of a text in the log; longer texts are cut."""
_DONE: Final = Completion({"role": "assistant", "content": "Done."}, Usage())


@dataclass(frozen=True, slots=True)
class Player:
    """A model, or the oracle."""

    name: str
    complete_in: Callable[[Task, OpenArm], Complete]
    """Returns the function that replies in a run."""
    can_play: Callable[[Task, Arm], bool]
    """Whether a run is possible."""
    limits: Limits
    count_tokens: Callable[[str], int] = lambda text: estimate_tokens(text.encode())
    """Counts the tokens of the tools' definitions."""
    tools: ToolsMode = "native"
    sampling: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """The runs of an evaluation."""

    suite: Suite
    tasks: Sequence[Task]
    arms: Sequence[Arm]
    player: Player
    repeats: int = 1

    def runs(self) -> list[tuple[Task, Arm, int]]:
        """All runs, in the order in which they are performed."""
        repeats = range(1, self.repeats + 1)
        triples = [(task, arm, repeat) for task in self.tasks for arm in self.arms for repeat in repeats]
        return [triple for triple in triples if self.player.can_play(triple[0], triple[1])]

    def keys(self) -> list[str]:
        """The keys of all runs in the log."""
        return [key_of(self.player, *run) for run in self.runs()]


def key_of(player: Player, task: Task, arm: Arm, repeat: int) -> str:
    """The key of a run in the log."""
    return f"{player.name}/{task.name}/{task.size}/{task.seed}/{arm}/{repeat}"


async def run_missing(plan: Plan, log: Log, done: Callable[[Record], None]) -> None:
    """Perform each run that is not in the log. Each environment is built once.

    Args:
        plan: All runs.
        log: Has earlier runs and gets new ones.
        done: Called with the record of each new run.
    """
    missing = [run for run in plan.runs() if not log.has(key_of(plan.player, *run))]
    for task, group in groupby(missing, key=lambda run: run[0]):
        runs = [(arm, repeat) for _, arm, repeat in group]
        with TemporaryDirectory(prefix="mcp-mirror-loca-", ignore_cleanup_errors=True) as folder:
            try:
                async with build_environment(plan.suite, task, Path(folder) / "task") as environment:
                    for arm, repeat in runs:
                        place = Path(folder) / f"{arm}-{repeat}"
                        place.mkdir()
                        record = await run_arm(plan.player, task, (arm, repeat), environment, place)
                        log.add(record)
                        done(record)
            except MirrorError as error:
                for arm, repeat in runs:
                    if not log.has(key_of(plan.player, task, arm, repeat)):
                        record = _void(plan.player, task, (arm, repeat), error)
                        log.add(record)
                        done(record)


async def run_arm(player: Player, task: Task, run: tuple[Arm, int], environment: Environment, folder: Path) -> Record:
    """Perform one run, from the environment's initial state.

    Raises:
        UpstreamError: The suite's process ended.
    """
    await environment.restore()
    finished: list[tuple[_Watch, OpenArm, Transcript]] = []
    try:
        async with open_arm(run[0], environment, folder) as arm:
            watch = _Watch(player.complete_in(task, arm), arm)
            setup = ConversationSetup(
                system=arm.instructions,
                tools=arm.tools,
                entries=(User(environment.prompt),),
                dialect=DIALECTS[player.tools],
                sampling=player.sampling,
                limits=player.limits,
            )
            finished.append((watch, arm, await run_conversation(setup, watch.complete, watch.make_call)))
    except MirrorError as error:
        return _void(player, task, run, error)
    except ExceptionGroup:  # a server that fails while it stops does not affect the run
        if not finished:
            raise
    watch, arm, transcript = finished[0]
    verdict = await environment.judge()
    return {
        **_labels(player, task, run),
        **_outcome(watch, transcript, verdict),
        "context_tokens": watch.context,
        "definition_tokens": player.count_tokens(write_definitions(arm.tools)),
        "tools": len(arm.tools),
        "made": [_call_record(made) for made in transcript.made_calls],
    }


def write_definitions(tools: Sequence[Tool]) -> str:
    """Return the definitions of tools as requests with native tool calls have them, JSON text.

    Requests of the other dialects have them in the prompt.
    """
    definitions = DIALECTS["native"].body(tools).get("tools", [])
    return json.dumps(definitions, ensure_ascii=False, separators=(",", ":"))


@dataclass(slots=True)
class _Watch:
    """Completions and calls of a run: sees the largest context, and ends the run when the model claims to be done."""

    inner: Complete
    arm: OpenArm
    context: int = 0
    is_claimed: bool = False

    async def complete(self, messages: Sequence[Message], body: Mapping[str, Any]) -> Completion:
        if self.is_claimed:
            return _DONE
        completion = await self.inner(messages, body)
        self.context = max(self.context, completion.usage.total)
        return completion

    async def make_call(self, call: Call) -> MadeCall:
        made = await self.arm.make_call(call)
        names = (call.name, str(call.arguments.get("name")))  # the second: of `call_tool`
        self.is_claimed = self.is_claimed or (any(CLAIM in name for name in names) and not made.result.is_error)
        return made


def _labels(player: Player, task: Task, run: tuple[Arm, int]) -> dict[str, Any]:
    arm, repeat = run
    return {
        "key": key_of(player, task, arm, repeat),
        "model": player.name,
        "task": task.name,
        "size": task.size,
        "seed": task.seed,
        "arm": arm,
        "repeat": repeat,
    }


def _void(player: Player, task: Task, run: tuple[Arm, int], error: MirrorError) -> Record:
    return {**_labels(player, task, run), "end": VOID, "success": False, "detail": str(error)[:_KEPT]}


def _outcome(watch: _Watch, transcript: Transcript, verdict: Verdict) -> dict[str, Any]:
    usage = transcript.usage
    return {
        "end": transcript.end,
        "success": verdict.success,
        "feedback": "" if verdict.success else verdict.feedback,
        "claimed": watch.is_claimed,
        "steps": usage.steps - (transcript.end == "answered" and watch.is_claimed),
        "calls": len(transcript.made_calls),
        "failed_calls": sum(made.result.is_error for made in transcript.made_calls),
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "completion_tokens": usage.completion,
        "seconds": round(transcript.seconds, 3),
        "detail": transcript.detail[:_KEPT],
        "answer": transcript.answer[:_KEPT],
    }


def _call_record(made: MadeCall) -> dict[str, Any]:
    return {
        "tool": made.call.name,
        "arguments": {key: _shorten(value) for key, value in made.call.arguments.items()},
        "result": made.result.text[:_KEPT],
        "is_error": made.result.is_error,
        "seconds": round(made.seconds, 3),
    }


def _shorten(value: Any) -> Any:
    text = value if isinstance(value, str) else str(value)
    return value if len(text) <= _KEPT else f"{text[:_KEPT]}... ({len(text):,} characters)"
