"""One run: a folder, servers, a conversation, its checks, and the record for the log."""

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import msgspec

from mcp_mirror import OWN_TOOLS
from mcp_mirror.config import NoticeStyle
from mcp_mirror.errors import MirrorError, UpstreamError
from mcp_mirror.evals.cases import Case
from mcp_mirror.evals.conversation import CALL_TOOL, Call, Entry, MadeCall, Reply, Transcript, User
from mcp_mirror.evals.dialects import DIALECTS, function_of, write_messages
from mcp_mirror.evals.endpoint import Endpoint
from mcp_mirror.evals.example_notices import write_notices
from mcp_mirror.evals.few_shot import with_paths, write_example
from mcp_mirror.evals.judge import Run, Verdict, judge
from mcp_mirror.evals.log import Record
from mcp_mirror.evals.loop import ConversationSetup, run_conversation
from mcp_mirror.evals.matrix import Setting
from mcp_mirror.evals.pointers import bases_in_results
from mcp_mirror.evals.servers import RunFolder, Servers, start_servers
from mcp_mirror.tokens import estimate_tokens

SYSTEM: Final = (
    "You carry out tasks with tools. Call tools until the task is done, then answer in one or two sentences with what "
    "was asked for. Use only what tools gave you."
)
_KEPT: Final = 4000
"""Characters of a text in the log; longer texts are cut."""


async def run_setting(setting: Setting, endpoint: Endpoint) -> Record:
    """Perform one run; ConfigError if the configuration of the case's servers cannot be used."""
    done: list[Record] = []
    with TemporaryDirectory(prefix="mcp-mirror-eval-", ignore_cleanup_errors=True) as folder:
        run_folder = RunFolder(Path(folder), Path(setting.case.file).parent)
        config = run_folder.prepare(setting.config, setting.case.files.given)
        try:
            async with start_servers(
                run_folder, config, gateway=setting.gateway, elicitation=setting.case.elicitation
            ) as servers:
                try:
                    done.append(await run_on(servers, setting, endpoint))
                except MirrorError as error:  # it would leave the context of the servers as a group
                    done.append(_void(setting, error))
        except UpstreamError as error:
            done.append(_void(setting, error))
        except ExceptionGroup:  # a server that fails while it stops does not affect the run
            if not done:
                raise
    return done[0]


def _void(setting: Setting, error: MirrorError) -> Record:
    return record(setting, Transcript((), (), "error", detail=str(error)), Verdict(()))


async def run_on(servers: Servers, setting: Setting, endpoint: Endpoint) -> Record:
    """Perform one run on running servers; UpstreamError if a tool of the case is missing or an earlier call failed."""
    case, dialect = setting.case, DIALECTS[setting.model.tools]
    _check_listed(case, servers)
    before, earlier, shown = await _make_earlier_calls(case, servers)
    # The first path in the result of each call that has one.
    paths = [base for made in earlier for base in sorted(bases_in_results([made]), key=made.result.text.index)[:1]]
    turns = case.few_shot if setting.few_shot else ()
    notices = await write_notices(turns, cast("NoticeStyle", setting.style)) if setting.gateway and turns else None
    example = write_example(turns, notices, servers.listed_as)
    sampling = {"temperature": setting.model.temperature, "max_tokens": setting.model.max_tokens, "seed": setting.seed}
    setup = ConversationSetup(
        system="\n\n".join(filter(None, (setting.model.system or SYSTEM, servers.instructions))),
        tools=servers.tools,
        entries=(*example, *before, User(with_paths(case.prompt, paths))),
        dialect=dialect,
        sampling={key: value for key, value in sampling.items() if value is not None},
        limits=case.limits,
        with_images=setting.model.vision,
    )
    transcript = await run_conversation(setup, endpoint.complete, servers.make_call)
    paths_by_name = {name: servers.run_folder.files / name for name in case.files.expected}
    files = {name: path.read_bytes() if path.is_file() else None for name, path in paths_by_name.items()}
    run = Run(transcript, files, servers.name_of, setting.gateway, tuple(earlier), bases_in_results(shown))
    messages = write_messages(dialect, "", transcript.entries)
    costs = {
        "definitions": estimate_tokens(json.dumps([function_of(tool) for tool in servers.tools]).encode()),
        # Each message once, without definitions and instructions.
        "conversation": sum(estimate_tokens(json.dumps(one, ensure_ascii=False).encode()) for one in messages),
    }
    return record(setting, transcript, judge(case, run), costs, len(servers.user.requests))


def _check_listed(case: Case, servers: Servers) -> None:
    """Check that the expected tools are listed: a failed server or a mistyped name is not a failure of the model."""
    names = [tool.name for tool in servers.tools]
    if CALL_TOOL in names:  # the model searches for the others
        return
    for expected in case.calls:
        is_own = OWN_TOOLS.issuperset(expected.tool)
        if not is_own and not any(servers.listed_as(tool) in names for tool in expected.tool):
            output = servers.run_folder.server_output
            raise UpstreamError(f"{case.file}: no server lists {expected.tool[0]!r}. {output}".strip())


async def _make_earlier_calls(case: Case, servers: Servers) -> tuple[list[Entry], list[MadeCall], list[MadeCall]]:
    """Return the conversation before the prompt, all its calls, and those that the model sees."""
    entries: list[Entry] = []
    made_calls: list[MadeCall] = []
    shown: list[MadeCall] = []
    for index, turn in enumerate(case.earlier):
        if not turn.tool:
            entries.append(User(turn.user) if turn.user else Reply(answer=turn.answer))
            continue
        call = Call(f"earlier_{index}", servers.listed_as(turn.tool), turn.arguments)
        made = await servers.make_call(call)
        if made.result.is_error:
            raise UpstreamError(f"{case.file}: earlier: {call.name} failed: {made.result.text}")
        made_calls.append(made)
        if turn.told:
            shown.append(made)
            entries += [Reply(calls=(call,)), made.result]
    return entries, made_calls, shown


def record(
    setting: Setting,
    transcript: Transcript,
    verdict: Verdict,
    costs: Mapping[str, int] | None = None,
    elicitations: int = 0,
) -> Record:
    """Build the record of a run for the log."""
    messages = write_messages(DIALECTS[setting.model.tools], "", transcript.entries)
    return {
        "key": setting.key,
        **setting.labels,
        "end": transcript.end,
        "success": verdict.passed and transcript.end == "answered",
        "exact": verdict.exact,
        "received": verdict.received,
        "calls": len(transcript.made_calls),
        "failed_calls": sum(made.result.is_error for made in transcript.made_calls),
        "prompt_tokens": transcript.usage.prompt,
        "cached_tokens": transcript.usage.cached,
        "completion_tokens": transcript.usage.completion,
        "steps": transcript.usage.steps,
        "estimated_tokens": dict(costs or {}),
        "elicitations": elicitations,
        "seconds": round(transcript.seconds, 3),
        "checks": [msgspec.structs.asdict(check) for check in verdict.checks],
        "detail": transcript.detail,
        "answer": transcript.answer[:_KEPT],
        "messages": [_shorten(message) for message in messages],
        "made": [
            {
                "tool": made.call.name,
                "arguments": _shorten(dict(made.call.arguments)),
                "result": made.result.text[:_KEPT],
                "is_error": made.result.is_error,
                "seconds": round(made.seconds, 3),
            }
            for made in transcript.made_calls
        ],
    }


def _shorten(value: Any) -> Any:
    """A JSON value with long texts cut, because copied values can have many megabytes."""
    if isinstance(value, Mapping):
        return {key: _shorten(part) for key, part in value.items()}
    if isinstance(value, str) and len(value) > _KEPT:
        return f"{value[:_KEPT]}... ({len(value):,} characters)"
    if isinstance(value, list):
        text = json.dumps(value)
        if len(text) > _KEPT:
            return f"{text[:_KEPT]}... ({len(text):,})"
        return [_shorten(part) for part in value]
    return value
