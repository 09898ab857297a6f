"""The command `mcp-mirror call`: one tool call without a client."""

import json
import sys
from collections.abc import Mapping
from time import perf_counter
from typing import Annotated, Any, Final

import anyio
import msgspec
import typer

from mcp_mirror.app import Application, open_application
from mcp_mirror.callers import LOCAL, Caller, NullChannel
from mcp_mirror.cli.check import explain_all_down
from mcp_mirror.cli.console import can_show_progress, describe_progress, open_console, print_problems, show_progress
from mcp_mirror.cli.options import ConfigOption, VerboseOption
from mcp_mirror.cli.run import load, mute_upstream_warnings, print_note, run_until_signal
from mcp_mirror.core.schemas.accepted_types import types_at
from mcp_mirror.core.schemas.references import Schema
from mcp_mirror.errors import MirrorError
from mcp_mirror.functions.reply import Reply, read_reply
from mcp_mirror.gateway.call import Call
from mcp_mirror.gateway.tool_search import SEARCH_TOOLS, complete_name
from mcp_mirror.paths import find_bases
from mcp_mirror.payload.json_spans import kind_at, trim
from mcp_mirror.security.sanitize import sanitize_to_lines
from mcp_mirror.settings.policies import Config
from mcp_mirror.upstreams.registry import Upstream

_VALUE_LOST: Final = (
    "mcp-mirror: the path above ended with this command, because each `call` runs a gateway of its own. With "
    "`store: {kind: disk}` the next command finds it; with `mirror: {capture: never}` the whole result is printed."
)
_VALUE_ELSEWHERE: Final = (
    "mcp-mirror: this command does not see the values of other gateways, because each `call` runs a gateway of its "
    "own. With `store: {kind: disk}` it finds them."
)
_NUMBERS: Final = frozenset({"number", "integer"})
_DECLARED_TYPES: Final = {"text": _NUMBERS, "number": _NUMBERS}
"""The types of which an argument that takes text must declare one for JSON of a kind to count; so "7" can be text."""


def call(
    tool: Annotated[str, typer.Argument(help="A twin's name, as `check` lists it.")],
    arguments: Annotated[
        str, typer.Argument(help="The arguments as a JSON object; --arg replaces single ones.", metavar="JSON")
    ] = "{}",
    arg: Annotated[
        list[str] | None,
        typer.Option(
            help="An argument. The tool's schema decides how VALUE is read: as text or as JSON. Repeatable.",
            metavar="KEY=VALUE",
        ),
    ] = None,
    config: ConfigOption = None,
    verbose: VerboseOption = 0,
) -> None:
    """Call one tool and print the result that a model would read.

    While it waits, a terminal shows the seconds so far and the upstream's progress, on standard error. The exit code
    is 1 if the result is an error.

    Example: mcp-mirror call tika_mirrored --arg pdf_path=sheet.pdf

    Example: mcp-mirror call tika_mirrored '{"pdf_path": "sheet.pdf"}'
    """
    loaded = load(config, verbose)
    if not verbose:
        mute_upstream_warnings()
    members = _read_object(arguments)
    given = dict(_split_argument(text) for text in arg or ())
    is_error = run_until_signal(_call_tool(loaded, tool, members, given))
    raise typer.Exit(1 if is_error else 0)


async def _call_tool(loaded: Config, tool: str, members: Mapping[str, msgspec.Raw], given: Mapping[str, str]) -> bool:
    """Start the gateway, wait for the tool, call it, and print the result; return whether that is an error.

    `given` has arguments that the tool's schema decides how to read.
    """
    console, status = open_console(is_stderr=True), _Status(tool)
    channel = _ProgressChannel(
        Caller(LOCAL, client_headers=None), wants_progress=can_show_progress(console), status=status
    )
    async with open_application(loaded) as application:
        gateway = application.gateway
        with show_progress(console, status.describe):
            named = _find_name(members, given) if tool in SEARCH_TOOLS else tool
            with anyio.move_on_after(max((one.startup_timeout for one in loaded.upstreams), default=0)):
                await _wait_for_tool(application, named, status)
            is_known = _has_tool(application, named or tool)
            problems = [] if is_known else explain_all_down(application)
            read = read_arguments(given, _find_schema(application, tool))
            request = gateway.new_call(channel, tool, msgspec.json.encode({**members, **read}))
            status.state = "running"
            answer = read_reply(await gateway.state.answer(request))
        _print_answer(answer)
        print_problems(_find_changes(application, named or tool), "warning")
        print_problems(problems)
        if not is_known:
            print_note("mcp-mirror: `mcp-mirror check` lists all tools.")
        if loaded.store.kind in (None, "memory"):
            _print_lifetime_note(request, answer)
        return answer.is_error


def _print_answer(answer: Reply) -> None:
    for text in [_write_block(block) for block in answer.content] or filter(None, [answer.text]):
        # A terminal gets no characters that control it, which an upstream may send.
        print(sanitize_to_lines(text) if sys.stdout.isatty() else text)


def _print_lifetime_note(request: Call, answer: Reply) -> None:
    """Say that a memory path of this call, or one in its arguments, is not known to other gateways."""
    if request.trace.path:
        print_note(_VALUE_LOST)
    elif answer.is_error and find_bases(bytes(request.arguments).decode()):
        print_note(_VALUE_ELSEWHERE)


class _Status(msgspec.Struct):
    """The state of the call, for the line that a terminal shows."""

    tool: str
    state: str = "starting"
    began: float = msgspec.field(default_factory=perf_counter)

    def describe(self) -> str:
        """Return the line that a terminal shows."""
        return f"{self.tool}: {perf_counter() - self.began:.0f} s, {self.state}"


class _ProgressChannel(NullChannel, frozen=True, kw_only=True):
    """A channel to the terminal, which shows the latest progress notification."""

    status: _Status

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Show progress, and drop other notifications."""
        if method == "notifications/progress":
            self.status.state = describe_progress(params)


def _write_block(block: Mapping[str, Any]) -> str:
    text = block.get("text")
    return text if block.get("type") == "text" and isinstance(text, str) else json.dumps(block)


def read_arguments(given: Mapping[str, str], schema: Schema) -> Mapping[str, msgspec.Raw]:
    """Return the JSON text of each argument, read by its schema."""
    types = types_at(schema)
    return {key: msgspec.Raw(_read_argument(value, types((key,)))) for key, value in given.items()}


def _read_object(text: str) -> Mapping[str, msgspec.Raw]:
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, msgspec.Raw])
    except (ValueError, RecursionError):
        example = '{"path": "a.txt"}'
        raise MirrorError(
            f"The arguments must be a JSON object, such as '{example}'; got {text!r}. Or give each as --arg KEY=VALUE."
        ) from None


def _find_name(members: Mapping[str, msgspec.Raw], given: Mapping[str, str]) -> str:
    """Return the argument `name`; empty if it is missing."""
    if "name" in given:
        return given["name"]
    name = msgspec.json.decode(members.get("name", b'""'))
    return name if isinstance(name, str) else ""


def _read_argument(text: str, accepted: frozenset[str]) -> bytes:
    """Keep valid JSON unless the argument takes text and does not declare the JSON's own type; quote the rest."""
    try:
        msgspec.json.decode(raw := text.encode(), type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError):
        return msgspec.json.encode(text)
    kind = kind_at(raw, trim(raw).start)
    declared = _DECLARED_TYPES.get(kind, frozenset({kind}))
    return raw if "string" not in accepted or declared & accepted else msgspec.json.encode(text)


def _split_argument(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals or not key:
        raise MirrorError(f"--arg must be KEY=VALUE; got {text!r}.")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise MirrorError(f"--arg must be UTF-8; got {text!r}.") from None
    return key, value


def _has_tool(application: Application, tool: str) -> bool:
    state = application.gateway.state
    name = complete_name(tool, state.own_tools, state.catalog, state.config.mirror.suffix)
    return name in state.own_tools or name in state.catalog.entries


def _find_changes(application: Application, tool: str) -> list[str]:
    """Return a sentence for each difference of a served tool from the lock file."""
    catalog = application.gateway.state.catalog
    if (entry := catalog.entries.get(tool)) is None:
        return []
    changes = [one for one in catalog.findings if not one.is_blocked]
    return [one.sentence for one in changes if (one.change.upstream, one.change.tool) == (entry.upstream, entry.tool)]


def _find_schema(application: Application, tool: str) -> Schema:
    if own := application.gateway.state.own_tools.get(tool):
        schema: Schema = own.advert["inputSchema"]
        return schema
    entry = application.gateway.state.catalog.entries.get(tool)
    return entry.schema if entry else {}


async def _wait_for_tool(application: Application, tool: str, status: _Status) -> None:
    """Wait until an upstream serves the tool, or until all upstreams have connected or failed.

    A search that names no tool (an empty `tool`) waits for all of them.
    """

    def report_waiting() -> None:
        names = (one.policy.name for one in application.upstreams if not one.settled.is_set())
        status.state = f"waiting for {', '.join(names)}"

    async def wait(upstream: Upstream) -> None:
        await upstream.settled.wait()
        report_waiting()
        if _has_tool(application, tool):
            tasks.cancel_scope.cancel()

    if _has_tool(application, tool):
        return
    report_waiting()
    async with anyio.create_task_group() as tasks:
        for upstream in application.upstreams:
            tasks.start_soon(wait, upstream)
