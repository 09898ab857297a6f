"""One run: a folder, servers, a conversation, and what came of it as a record for the log."""

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

from mcp_mirror.errors import MirrorError, UpstreamError
from mcp_mirror.evals.cases import Case
from mcp_mirror.evals.conversation import Call, Entry, Made, Reply, Transcript, User
from mcp_mirror.evals.dialects import DIALECTS, function_of, write_messages
from mcp_mirror.evals.endpoint import Endpoint
from mcp_mirror.evals.judge import Run, Verdict, is_own, judge
from mcp_mirror.evals.log import Record
from mcp_mirror.evals.loop import Talk, converse
from mcp_mirror.evals.matrix import Model, Setting
from mcp_mirror.evals.pointers import given_by
from mcp_mirror.evals.samples import tell_example, with_paths
from mcp_mirror.evals.stage import Place, Stage, open_stage
from mcp_mirror.settings.policies import NoticeStyle
from mcp_mirror.tokens import estimate_tokens

SYSTEM: Final = (
    "You carry out tasks with tools. Call tools until the task is done, then answer in one or two sentences with what "
    "was asked for. Use only what tools gave you."
)
_KEPT: Final = 4000
"""Characters of one text that the log keeps."""


async def run_setting(setting: Setting, endpoint: Endpoint) -> Record:
    """Make one run.

    Raises:
        ConfigError: The case's servers cannot be configured so.
    """
    done: list[Record] = []
    with TemporaryDirectory(prefix="mcp-mirror-eval-", ignore_cleanup_errors=True) as folder:
        place = Place(Path(folder), Path(setting.case.file).parent)
        config = place.prepare(setting.config, setting.case.files.given)
        try:
            async with open_stage(place, config, gateway=setting.gateway) as stage:
                done.append(await _run_or_void(stage, setting, endpoint))
        except UpstreamError as error:
            done.append(_void(setting, error))
        except ExceptionGroup:  # what a server did when it was to end says nothing of the run
            if not done:
                raise
    return done[0]


async def _run_or_void(stage: Stage, setting: Setting, endpoint: Endpoint) -> Record:
    """Inside the servers' scope, since what leaves it comes out as a group."""
    try:
        return await run_on(stage, setting, endpoint)
    except MirrorError as error:
        return _void(setting, error)


def _void(setting: Setting, error: MirrorError) -> Record:
    return record(setting, Transcript((), (), "error", detail=str(error)), Verdict(()))


async def run_on(stage: Stage, setting: Setting, endpoint: Endpoint) -> Record:
    """Make one run on servers that are there.

    Raises:
        UpstreamError: A tool of the case's is not there, or a call that it has made before its prompt fails.
    """
    case, dialect = setting.case, DIALECTS[setting.model.tools]
    _check_listed(case, stage)
    earlier, told, made = await _earlier(case, stage)
    paths = _paths_of(made)
    style = cast("NoticeStyle", setting.style) if setting.gateway else None
    example = tell_example(case.few_shot, style, stage.listed_as) if setting.few_shot else ()
    talk = Talk(
        system="\n\n".join(filter(None, (setting.model.system or SYSTEM, stage.instructions))),
        tools=stage.tools,
        entries=(*example, *earlier, User(with_paths(case.prompt, paths))),
        dialect=dialect,
        sampling=_sampling(setting),
        limits=case.limits,
    )
    transcript = await converse(talk, endpoint.complete, stage.make)
    files = {name: _bytes_of(stage.place.files / name) for name in case.files.expected}
    run = Run(transcript, files, stage.name_of, setting.gateway, made, told)
    costs = {
        "definitions": estimate_tokens(json.dumps([function_of(tool) for tool in stage.tools]).encode()),
        "conversation": _weigh(setting.model, transcript),
    }
    return record(setting, transcript, judge(case, run), costs)


def _check_listed(case: Case, stage: Stage) -> None:
    """A server that has not started, and a mistyped name, would be held against the model."""
    names = [tool.name for tool in stage.tools]
    for expected in case.calls:
        ours = all(is_own(tool) for tool in expected.tool)
        if not ours and not any(stage.listed_as(tool) in names for tool in expected.tool):
            raise UpstreamError(f"{case.file}: no server lists {expected.tool[0]!r}. {stage.place.said}".strip())


async def _earlier(case: Case, stage: Stage) -> tuple[tuple[Entry, ...], frozenset[str], tuple[Made, ...]]:
    """The conversation so far, the paths that it gives, and the calls that were made for it."""
    entries: list[Entry] = []
    told: list[Made] = []
    made: list[Made] = []
    for index, part in enumerate(case.earlier):
        if not part.tool:
            entries.append(User(part.user) if part.user else Reply(answer=part.answer))
            continue
        call = Call(f"earlier_{index}", stage.listed_as(part.tool), part.arguments)
        made.append(await stage.make(call))
        if made[-1].result.is_error:
            raise UpstreamError(f"{case.file}: earlier: {call.name} failed: {made[-1].result.text}")
        if part.told:
            told.append(made[-1])
            entries += [Reply(calls=(call,)), made[-1].result]
    return tuple(entries), given_by(told), tuple(made)


def _paths_of(made: tuple[Made, ...]) -> list[str]:
    """The first path that each call gave, in their order."""
    return [base for one in made for base in sorted(given_by([one]), key=one.result.text.index)[:1]]


def _sampling(setting: Setting) -> dict[str, Any]:
    model = setting.model
    given = {"temperature": model.temperature, "max_tokens": model.max_tokens, "seed": setting.seed}
    return {key: value for key, value in given.items() if value is not None}


def _weigh(model: Model, transcript: Transcript) -> int:
    """Tokens of what was said, estimated: each message once, without definitions and instructions."""
    messages = write_messages(DIALECTS[model.tools], "", transcript.entries)
    return sum(estimate_tokens(json.dumps(message, ensure_ascii=False).encode()) for message in messages)


def _bytes_of(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


def record(
    setting: Setting, transcript: Transcript, verdict: Verdict, costs: Mapping[str, int] | None = None
) -> Record:
    """A run as it stands in the log."""
    return {
        "key": setting.key,
        **setting.labels,
        "end": transcript.end,
        "success": verdict.passed and transcript.end == "answered",
        "exact": verdict.exact,
        "received": verdict.received,
        "calls": len(transcript.made),
        "failed_calls": sum(made.result.is_error for made in transcript.made),
        "prompt_tokens": transcript.usage.prompt,
        "completion_tokens": transcript.usage.completion,
        "estimated_tokens": dict(costs or {}),
        "seconds": round(transcript.seconds, 3),
        "checks": [asdict(check) for check in verdict.checks],
        "detail": transcript.detail,
        "answer": transcript.answer[:_KEPT],
        "messages": [_shortened(message) for message in _messages(setting, transcript)],
        "made": [_told(made) for made in transcript.made],
    }


def _messages(setting: Setting, transcript: Transcript) -> list[dict[str, Any]]:
    return write_messages(DIALECTS[setting.model.tools], "", transcript.entries)


def _told(made: Made) -> dict[str, Any]:
    return {
        "tool": made.call.name,
        "arguments": _shortened(dict(made.call.arguments)),
        "result": made.result.text[:_KEPT],
        "is_error": made.result.is_error,
        "seconds": round(made.seconds, 3),
    }


def _shortened(value: Any) -> Any:
    """JSON whose long texts are cut: a log is read, and what was carried whole can be many megabytes."""
    if isinstance(value, Mapping):
        return {key: _shortened(part) for key, part in value.items()}
    if isinstance(value, str):
        return value if len(value) <= _KEPT else f"{value[:_KEPT]}... ({len(value):,} characters)"
    if isinstance(value, list):
        text = json.dumps(value)
        return [_shortened(part) for part in value] if len(text) <= _KEPT else f"{text[:_KEPT]}... ({len(text):,})"
    return value
