"""The gateway for servers, the library and the commands: answers tool calls, lists tools, opens the memory."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final, TypedDict, Unpack

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.core.replies import ToolResult
from mcp_mirror.gateway.call import Call, RuntimeState
from mcp_mirror.gateway.context_budgets import Conversation
from mcp_mirror.gateway.linked_resources import LinkedResources
from mcp_mirror.gateway.tool_search import CALL_TOOL, ToolListing, choose_listing, complete_name, unwrap_call
from mcp_mirror.memory.code.sandbox import Sandbox
from mcp_mirror.memory.memory import Memory, MemoryServices
from mcp_mirror.observability.audit import Audit, CallTrace
from mcp_mirror.paths import URI_TEMPLATE, parse_uri
from mcp_mirror.security.sanitize import PathHasher, sanitize
from mcp_mirror.settings.policies import Config
from mcp_mirror.system.slices import Steps
from mcp_mirror.tokens import expected_estimator
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.elicitation import InputRound, SuspendedCalls
from mcp_mirror.upstreams.registry import Upstream, UpstreamRegistry
from mcp_mirror.workers.schemas import SchemaWorkers

STATUS_URI: Final = "mcp-mirror://upstreams"
"""The resource that reports the state of each upstream."""
VIEW_URI: Final = "ui://mcp-mirror/memory"
"""The resource with the view of `memory_list`, for clients that show MCP Apps."""

_IDENTITY: Final = ("name", "title", "version")
_DESCRIPTION: Final = ("description", "websiteUrl", "icons")
"""Members of a server's description that only handshakes have."""
_MAX_CHARACTERS: Final = 200
"""Characters of a name, a title or a version."""


class CallOptions(TypedDict, total=False):
    """Optional members of a call; see `Call`."""

    meta: Mapping[str, Any]
    input_round: InputRound | None
    conversation: Conversation | None
    is_limited: bool
    trace: CallTrace


@dataclass(slots=True, eq=False)
class Gateway:
    """What all calls share: upstreams, memory, worker processes and logs, and the current state."""

    upstreams: UpstreamRegistry
    services: MemoryServices
    schema_workers: SchemaWorkers
    path_hasher: PathHasher
    """Hashes paths for the log."""
    audit: Audit
    sandbox: Sandbox | None
    """Runs scripts; None without the extra `code`."""
    suspended_scripts: SuspendedCalls[tuple[ToolResult, CallTrace]]
    """Scripts that wait for the answer of a user whose client repeats the call with it, each with the trace of the call
    that began it."""
    linked_resources: LinkedResources = field(init=False, default_factory=LinkedResources)
    state: RuntimeState = field(init=False)
    """The configuration, catalogs and pipeline, all that a reload replaces. Set before the first call: the pipeline's
    innermost step refers to this object."""

    def new_call(self, channel: ClientChannel, name: str, arguments: Buffer, **options: Unpack[CallOptions]) -> Call:
        """Return a call of a tool, or of the tool that `call_tool` or a view names; see `Call` for the arguments."""
        state = self.state
        own_tools = state.own_tools_for(channel.caller)
        catalog = state.catalog_for(channel.caller)
        if name not in catalog.entries:
            name, arguments = self._find_named(channel.caller, name, arguments)
        return Call(channel, name, arguments, **options, config=state.config, catalog=catalog, own_tools=own_tools)

    def _find_named(self, caller: Caller, name: str, arguments: Buffer) -> tuple[str, Buffer]:
        """Return the tool that a call names, and its arguments. Views (MCP Apps) know only their server's own names."""
        state = self.state
        own_tools, catalog, suffix = state.own_tools_for(caller), state.catalog_for(caller), state.config.mirror.suffix
        if name == CALL_TOOL and CALL_TOOL in own_tools:
            return unwrap_call(arguments, own_tools, catalog, suffix)
        return complete_name(name, own_tools, catalog, suffix) if caller.shows_views else name, arguments

    async def wait_for_tool(self, caller: Caller, name: str, arguments: Buffer) -> None:
        """Wait for upstreams that are starting if a call names an unknown tool by `call_tool` or from a view."""
        state = self.state
        if name != CALL_TOOL and (name in state.catalog.entries or not caller.shows_views):
            return
        named, _ = self._find_named(caller, name, arguments)
        if named not in state.own_tools_for(caller) and named not in state.catalog_for(caller).entries:
            await self.upstreams.wait_for_listings(state.config.mirror.startup_wait, caller)

    def listing_for(self, caller: Caller) -> Steps[ToolListing]:
        """Return the tools that a client sees in `tools/list`, in steps of one tool."""
        state = self.state
        return choose_listing(state.config.mirror, state.catalog_for(caller), state.own_tools_for(caller))

    def may_show(self, upstream: str) -> bool:
        """Whether the model may see texts of an upstream that do not depend on a stored value."""
        flows = self.state.flows
        return self.upstreams.may_show(upstream) and flows.may_show(flows.labels_of_result(upstream, flows.lowest))

    def owns_uri(self, uri: str) -> bool:
        """Whether the gateway itself has this resource or resource template."""
        if self.state.config.is_transparent:
            return False
        return uri in (STATUS_URI, VIEW_URI, URI_TEMPLATE) or parse_uri(uri) is not None

    def has_resources(self, caller: Caller) -> bool:
        """Whether a client sees the gateway's own resources: stored values, and the state of the upstreams."""
        return not self.state.config.is_transparent and self.find_only_upstream(caller) is None

    def find_only_upstream(self, caller: Caller) -> Upstream | None:
        """Return the upstream that the gateway replaces, for this client; None if it serves several."""
        name = caller.upstream or self.state.config.server.wraps
        return next((upstream for upstream in self.upstreams if upstream.policy.name == name), None) if name else None

    def find_identity(self, caller: Caller, *, is_whole: bool = False) -> dict[str, Any] | None:
        """Return the `serverInfo` of the upstream that the gateway replaces, for this client.

        It has name, title and version; for a handshake (`is_whole`) also description, website and icons. None if the
        gateway replaces no upstream, or its texts may not be shown.
        """
        upstream = self.find_only_upstream(caller)
        if upstream is None or upstream.listing is None or not self.may_show(upstream.policy.name):
            return None
        info = upstream.listing.info
        shown = {key: sanitize(str(info[key]))[:_MAX_CHARACTERS] for key in _IDENTITY if key in info}
        if not shown.get("name"):
            return None
        described = {key: info[key] for key in _DESCRIPTION if key in info} if is_whole else {}
        return {"version": "", **shown, **described}

    @property
    def memory(self) -> Memory:
        """The memory for the gateway's own resources and for the program that runs it, without a token budget."""
        return self.open_memory(self.state.config, token_hex(8))

    def open_memory(self, config: Config, correlation: str) -> Memory:
        """Return what the gateway's own tools and resources work on."""
        return Memory(
            services=self.services,
            mirror=config.mirror,
            tools=config.memory_tools,
            estimate=expected_estimator(config.mirror.provider),
            audit=self.audit.with_correlation(correlation),
            flows=self.state.flows,
        )
