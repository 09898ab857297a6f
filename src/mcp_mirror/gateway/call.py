"""One tool call as the stages see it, how it ended, and the state of the gateway that answers it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from secrets import token_hex
from typing import Any, Final, NamedTuple

import msgspec

from mcp_mirror.callers import OWN_UPSTREAM, Caller, ClientChannel
from mcp_mirror.core.catalog import Catalog
from mcp_mirror.core.replies import ToolResult, build_error_reply
from mcp_mirror.errors import MirrorError, RefusalReason, RefusedError, drop_tracebacks
from mcp_mirror.gateway.contents import ContentCapture
from mcp_mirror.gateway.context_budgets import UNLIMITED, Conversation, Reservation
from mcp_mirror.gateway.tool_search import SEARCH_TOOLS
from mcp_mirror.memory.tools.tool import MemoryTool
from mcp_mirror.observability.audit import UNKNOWN, CallTrace
from mcp_mirror.payload.json_rpc import is_input_required
from mcp_mirror.security.flows import Flows
from mcp_mirror.security.pins import Pins
from mcp_mirror.settings.labels import Labels
from mcp_mirror.settings.policies import Config, MemoryToolsPolicy
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.elicitation import InputRound

CANCELLED: Final = "cancelled"
"""The outcome of a cancelled call."""
_MINIMAL: Final = MemoryToolsPolicy("minimal")
_NO_TOOLS: Final = Catalog({}, frozenset())


class ScriptOrigin(msgspec.Struct, frozen=True):
    """The labels and the visibility of everything that a script has received, which its arguments may contain."""

    labels: Labels
    """The joined flow labels of all values that the script has received."""
    preview: bool
    """The model may see parts of all of these values."""
    span: Any
    """The span of the call that runs the script; None without traces."""


@dataclass(frozen=True, slots=True)
class Call:
    """One tool call. It is built once; a stage that changes it passes a copy, `dataclasses.replace(call, ...)`.

    Stages of a program read `name`, `arguments` and `namespace`.
    """

    channel: ClientChannel
    """Sends notifications and requests to the client."""
    name: str
    """The name of the tool, as the client wrote it; for a `call_tool` call the one in its arguments."""
    arguments: Buffer
    """A JSON object: its text as `bytes` or, in a call of an MCP client, often as a `memoryview`."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """Members of `_meta` for the upstream."""
    input_round: InputRound | None = None
    """The client's answers, if this call repeats one that required input."""
    conversation: Conversation | None = None
    """The conversation that the reply goes into, if it is known."""
    is_limited: bool = False
    """Whether the principal's rate and concurrency limits apply. They do not apply to the program's own calls."""
    config: Config = field(default_factory=Config)
    """The configuration at the start of the call."""
    catalog: Catalog = _NO_TOOLS
    """The caller's catalog at the start of the call."""
    own_tools: Mapping[str, MemoryTool] = field(default_factory=dict)
    """The gateway's own tools at the start of the call."""
    reservation: Reservation = UNLIMITED
    """Tokens that the reply may take."""
    granted_flow: str | None = None
    """The one flow that the user allowed for this call."""
    round_state: Mapping[str, str] = field(default_factory=dict)
    """State that the client returns with its answers, if the upstream requires input."""
    script: ScriptOrigin | None = None
    """Set if a script made the call: the model does not see the reply, and the script's values count as arguments."""
    id: str = field(default_factory=partial(token_hex, 8))
    """The correlation id in the audit log."""
    trace: CallTrace = field(default_factory=CallTrace, compare=False)
    """Facts about the call for the audit log, the log and the usage counts."""

    @property
    def caller(self) -> Caller:
        """The client that made the call."""
        return self.channel.caller

    @property
    def namespace(self) -> str:
        """The memory that the call uses."""
        return self.channel.caller.namespace


Next = Callable[[Call], Awaitable[ToolResult]]
"""Answers a call: the rest of the pipeline."""
Stage = Callable[[Call, Next], Awaitable[ToolResult]]
"""One step of the pipeline: it answers a call itself or passes it to the next stage."""


class RuntimeState(msgspec.Struct, frozen=True):
    """Everything that a reload or a changed list replaces. The gateway swaps it as a whole."""

    config: Config
    pins: Pins
    """The pinned tool definitions."""
    flows: Flows
    """The flow policy."""
    own_tools: Mapping[str, MemoryTool]
    """The gateway's own tools; empty if nothing is stored."""
    contents: ContentCapture
    """Captures resources and prompts."""
    answer: Next
    """The pipeline: errors become results with `isError`, except a `RefusedError`, which is for the client."""
    catalog: Catalog
    """The tools that clients see."""
    catalogs: Mapping[str, Catalog] = msgspec.field(default_factory=dict)
    """Catalogs of owners whose connections list other tools: sessions, and principals (`Caller.principal_key`)."""

    def catalog_for(self, caller: Caller) -> Catalog:
        """Return the tools that this client sees."""
        catalog = self._own_catalog_of(caller) if self.catalogs else self.catalog
        if caller.upstream is not None:
            catalog = catalog.of_upstream(caller.upstream, self.own_tools_for(caller))
        return catalog if caller.scopes is None else catalog.visible_to(caller)

    def _own_catalog_of(self, caller: Caller) -> Catalog:
        """Return the tools on the connections of a client's session, else on those of its principal.

        A session has connections of its own unless `scope` is `principal`; see `ServerUpstream.listing_for`.
        """
        if (own := self.catalogs.get(caller.session or "")) is not None:
            return own
        if caller.session is None or any(upstream.scope == "principal" for upstream in self.config.upstreams):
            return self.catalogs.get(caller.principal_key, self.catalog)
        return self.catalog

    def own_tools_for(self, caller: Caller) -> Mapping[str, MemoryTool]:
        """Return the gateway's own tools that this client sees: at the endpoint of one upstream, those of `minimal`."""
        if caller.upstream in (None, OWN_UPSTREAM):
            return self.own_tools
        return {name: tool for name, tool in self.own_tools.items() if _MINIMAL.admits(name) or name in SEARCH_TOOLS}


class CallEnd(NamedTuple):
    """How a call ended."""

    reply: ToolResult
    """Empty if the call failed or was cancelled."""
    outcome: str
    milliseconds: float
    error: Exception | None
    """Why the call failed; None if it was answered or cancelled."""


async def answer_errors(call: Call, call_next: Next) -> ToolResult:
    """Answer a call; errors become replies with `isError`.

    Raises:
        RefusedError: The client, not the model, must see the upstream's JSON-RPC error.
    """
    try:
        return await call_next(call)
    except RefusedError:
        raise
    except MirrorError as error:
        return reply_to_error(call, error)


def reply_to_error(call: Call, error: MirrorError) -> ToolResult:
    """Return the reply of a call that failed, a tool error, and note in the call's trace why it was refused."""
    if error.reason:
        call.trace.refusal = error
    drop_tracebacks(error)
    return build_error_reply(str(error))


async def answer_and_report(
    call: Call, call_next: Next, clock: Callable[[], float], report: Callable[[Call, CallEnd], None]
) -> ToolResult:
    """Answer a call, and report how it ended, also if it failed or was cancelled; the clock returns seconds."""
    began, outcome = clock(), CANCELLED
    reply: ToolResult = {}
    failure: Exception | None = None
    try:
        reply = await call_next(call)
        outcome = _describe_outcome(reply, call.trace)
    except Exception as error:
        outcome, failure = "error", error
        raise
    finally:
        report(call, CallEnd(reply, outcome, max(1000 * (clock() - began), 0.0), failure))
    return reply


def _describe_outcome(reply: ToolResult, trace: CallTrace) -> str:
    """Return the outcome of an answered call in one word."""
    if "inputRequests" in reply and is_input_required(reply):
        return "asked"
    if reply.get("isError", b"false") != b"false":
        return "error"
    return "stored" if trace.path else "ok"


def name_tool(call: Call) -> str:
    """Return the name of the called tool, or a placeholder for a name that no tool has."""
    is_known = call.trace.upstream or find_refusal(call, call.catalog) is not RefusalReason.UNKNOWN_TOOL
    return call.name if is_known else UNKNOWN


def find_refusal(call: Call, catalog: Catalog) -> RefusalReason | None:
    """Return why a catalog of the caller has no tool of this name; None if it has one."""
    if call.name in catalog.entries or call.name in call.own_tools:
        return None
    if call.name in catalog.quarantined:
        return RefusalReason.QUARANTINED
    return RefusalReason.INSUFFICIENT_SCOPE if call.name in catalog.hidden_names else RefusalReason.UNKNOWN_TOOL
