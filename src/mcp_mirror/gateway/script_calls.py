"""Calls the tools that a script uses: through the whole pipeline, as if the client called them."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

import msgspec

from mcp_mirror.callers import ClientChannel
from mcp_mirror.core.catalog import is_read_only
from mcp_mirror.core.replies import ToolResult, build_error_reply, read_texts
from mcp_mirror.core.results.capture import CaptureRules, capture
from mcp_mirror.errors import DENIED_BY_USER, MirrorError, RefusalReason, RefusedError, ToolError
from mcp_mirror.gateway.call import Call, ScriptOrigin
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.input_required import read_round
from mcp_mirror.gateway.stages.consent import request_consent, shows_forms
from mcp_mirror.memory.code.scripts import ScriptCall, ScriptTool, ScriptToolResult
from mcp_mirror.memory.value_lookup import look_up
from mcp_mirror.observability.audit import CallTrace
from mcp_mirror.paths import MemoryPath
from mcp_mirror.payload.json_rpc import contiguous, is_input_required
from mcp_mirror.security.sanitize import sanitize
from mcp_mirror.settings.labels import FUNCTIONS, Labels
from mcp_mirror.settings.policies import ScriptAccess
from mcp_mirror.system.slices import run_by_size, run_by_values
from mcp_mirror.tokens import upper_estimator
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.elicitation import InputRound

_WHOLE_BYTES: Final = 2_000
"""Bytes of a call's arguments up to which the user sees all of them."""
_MOST_SHOWN: Final = 20_000
"""Characters of longer arguments that the user sees, with long texts and lists cut. More would hide some of them."""
_LONG_TEXT: Final = 200
"""Characters."""
_LONG_LIST: Final = 40
"""Items."""
_MAX_ROUNDS: Final = 20
"""Input rounds of one call."""
_REASONS: Final[Mapping[ScriptAccess, str]] = {
    "read_only": "its server does not mark it as read-only",
    "listed": "`code.allow` does not contain it",
}
"""Why a tool needs the user's permission. With `all` no tool needs it, and with `none` no call comes here."""
_REMEDY: Final = (
    "Call the tool outside of a script; results have paths. The configuration can permit it in scripts: `code.tools: "
    "listed`, with its own name in `code.allow`."
)
_MISTAKES: Final = frozenset({None, RefusalReason.UNKNOWN_TOOL, RefusalReason.UNKNOWN_PATH})
"""Reasons of failed calls that a corrected script can make; None: the tool failed."""
_NO_MESSAGE: Final = "The tool failed without a message."


class ScriptCalls(msgspec.Struct, frozen=True):
    """The tools of one script."""

    call: Call
    """The call that runs the script."""
    channel: ClientChannel
    """Asks the user."""
    gateway: Gateway

    async def list_tools(self) -> tuple[ScriptTool, ...]:
        """Return the tools of the caller for scripts; originals beside their twins are not among them."""
        caller = self.call.caller
        await self.gateway.upstreams.wait_for_attempts(self.call.config.mirror.startup_wait, caller)
        entries = self.gateway.state.catalog_for(caller).entries.values()
        return tuple(
            ScriptTool(
                entry.name, entry.tool, dict(entry.schema), is_read_only(entry.advert) or entry.upstream == FUNCTIONS
            )
            for entry in entries
            if entry.is_twin
        )

    async def call_tool(self, call: ScriptCall) -> ScriptToolResult:
        """Call a tool; a failure is a result with an error."""
        state, policy = self.gateway.state, self.call.config.code
        if policy.tools == "none":
            return ScriptToolResult(error="Scripts may not call tools here (`code.tools: none`).", is_refused=True)
        nested = Call(
            self.channel,
            call.tool.name,
            call.arguments,
            is_limited=self.call.is_limited,
            config=state.config,
            catalog=state.catalog_for(self.call.caller),
            script=ScriptOrigin(call.labels, call.preview, self.call.trace.span),
            trace=CallTrace(detail={"script_call": self.call.id}),
        )
        is_allowed = policy.admits(call.tool.tool, is_read_only=call.tool.is_read_only)
        try:
            if not is_allowed:
                await self._ask(call)
                is_allowed = True
            reply = await self._answer(nested)
            return await self._read(nested, reply)
        except MirrorError as error:
            return ScriptToolResult(labels=self._labels_of(nested), error=str(error), is_refused=not is_allowed)

    async def _ask(self, call: ScriptCall) -> None:
        """Ask the user to allow a call; raise an error if the user does not, or the client cannot ask."""
        name, mode = call.tool.name, self.call.config.code.tools
        refusal = f"A script may not call {name}: {_REASONS[mode]} (`code.tools: {mode}`)."
        if not shows_forms(self.channel.caller):
            raise ToolError(f"{refusal} The client cannot ask the user. {_REMEDY}")
        may_show = call.preview and self.gateway.state.flows.may_show(call.labels)
        shown: str | None = "(hidden by the gateway's rules)"
        if may_show:
            principal = self.call.namespace
            shown = await run_by_size(len(call.arguments), _describe_arguments, call.arguments, principal=principal)
        if shown is None:
            raise ToolError(f"{refusal} Its arguments are too large to be shown to the user. {_REMEDY}")
        try:
            is_allowed = await request_consent(
                self.channel, f"A script wants to call the tool {name} with these arguments:\n{shown}\nAllow this call?"
            )
        except RefusedError:
            raise ToolError(f"{refusal} The client did not ask the user. {_REMEDY}") from None
        if not is_allowed:
            raise ToolError(f"{refusal} {DENIED_BY_USER}")

    async def _answer(self, call: Call) -> ToolResult:
        """Answer the call through the pipeline, and send the input requests of a 2026-07-28 server to the client."""
        input_round: InputRound | None = None
        for _ in range(_MAX_ROUNDS):
            try:
                reply = await self.gateway.state.answer(replace(call, input_round=input_round))
            except RefusedError as error:
                return build_error_reply(str(error))
            if not is_input_required(reply):
                return reply
            requests: Mapping[str, Any] = msgspec.json.decode(contiguous(reply["inputRequests"]))
            answers = {
                key: dict(await self.channel.request(asked["method"], asked.get("params") or {}))
                for key, asked in requests.items()
            }
            state = msgspec.json.decode(contiguous(reply.get("requestState", b"null")), type=str | None)
            input_round = read_round(msgspec.json.encode(answers), state)
        raise ToolError(f"The tool {call.name} requires input more than {_MAX_ROUNDS} times.")

    async def _read(self, call: Call, reply: ToolResult) -> ScriptToolResult:
        """Return the value of a result: the stored one, or the one that the reply contains."""
        trace, labels = call.trace, self._labels_of(call)
        if contiguous(reply.get("isError", b"false")) == b"true":
            error, is_refused = read_texts(reply) or _NO_MESSAGE, trace.reason not in _MISTAKES
            return ScriptToolResult(labels=labels, path=trace.path, error=error, is_refused=is_refused)
        if trace.path is None:
            return ScriptToolResult(await _read_value(call, reply), labels)
        services = self.gateway.services
        found = await look_up(services.writer.store, services.scanner, call.namespace, MemoryPath(trace.path))
        if found is None:
            return ScriptToolResult(labels=labels, path=trace.path, error="The result was deleted during the call.")
        return ScriptToolResult(found.blob, labels, found.preview, trace.path)

    def _labels_of(self, call: Call) -> Labels | None:
        """Return the joined labels of the result and of the script; None if nothing came from an upstream.

        An error that ends a call before it has a result may quote the values in its arguments.
        """
        if call.script is None or not call.trace.upstream:
            return None
        flows, trace = self.gateway.state.flows, call.trace
        if trace.labels is not None:
            return flows.join(trace.labels, call.script.labels)
        given = flows.join(call.script.labels, trace.input_labels or flows.lowest)
        return flows.labels_of_result(trace.upstream, given)


def _describe_arguments(arguments: bytes) -> str | None:
    """Return the arguments of a call for a person; None if they are too large.

    Each one is there: a script could hide the one that matters behind long ones.
    """
    text = arguments.decode()
    if len(arguments) > _WHOLE_BYTES:
        try:
            text = json.dumps(_cut_long(json.loads(text)), ensure_ascii=False)
        except (ValueError, RecursionError):
            return None
    shown = sanitize(text)
    return shown if len(shown) <= _MOST_SHOWN else None


def _cut_long(value: Any) -> Any:
    """Return a JSON value with the beginnings of long texts and lists, and the number of what is missing."""
    match value:
        case str() if len(value) > _LONG_TEXT:
            return f"{value[:_LONG_TEXT]}... ({len(value):,} characters)"
        case list():
            more = [f"... ({len(value) - _LONG_LIST:,} more)"] if len(value) > _LONG_LIST else []
            return [*map(_cut_long, value[:_LONG_LIST]), *more]
        case dict():
            return {key: _cut_long(member) for key, member in value.items()}
    return value


async def _read_value(call: Call, reply: ToolResult) -> Buffer:
    """Return the value of a result that is not stored, as it would be stored; null if it has none."""
    entry = call.catalog.entries.get(call.name)
    is_wrapped = entry.rules.is_wrapped if entry else False
    rules = CaptureRules("always", inline_budget=0, error_budget=0, is_wrapped=is_wrapped)
    members = {key: contiguous(part) for key, part in reply.items()}
    estimate = upper_estimator(call.config.mirror.provider)
    captured = await run_by_values(members.values(), capture, members, rules, estimate, principal=call.namespace)
    return b"null" if captured.value is None else captured.value.blob
