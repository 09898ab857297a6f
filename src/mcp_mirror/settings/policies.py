"""The settings of a configuration: one frozen class per section.

Each field declares its key once: type and bounds (see `declarations`), default, and documentation as the docstring
below it. `config` reads a file into these objects, and generates the JSON Schema, the reference page and the example
file from them. Every other module receives only the objects that it needs.
"""

from collections.abc import Mapping
from typing import Annotated, Final, Literal

from mcp_mirror.settings.access import AuthPolicy
from mcp_mirror.settings.declarations import (
    INLINE,
    INTERNAL,
    NAME,
    SECRET,
    SINGLE,
    Bytes,
    Count,
    Duration,
    Example,
    FilePath,
    Globs,
    Host,
    Line,
    Listener,
    Number,
    Origin,
    Part,
    Pause,
    Roots,
    Scopes,
    Secret,
    Secrets,
    Section,
    Shorthand,
    Suffix,
    Tokens,
    UrlPath,
    Whole,
    Words,
)
from mcp_mirror.settings.labels import FlowsPolicy
from mcp_mirror.settings.limits import MAX_DEPTH, CallQuota, Depth, TrafficPolicy, UpstreamBounds, find_limits
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.settings.upstreams import CaptureMode, LockMode, UpstreamPolicy, is_admitted

Price = Annotated[float, Number("a price in USD per million tokens, 0 or more", minimum=0)]


class PricePolicy(Section, frozen=True):
    """The price of one model's input, in USD per million tokens."""

    name: Annotated[str, NAME]
    input: Annotated[Price, Example(3)]
    """Input that the provider reads for the first time."""
    cached_input: Annotated[Price | None, Example(0.3)] = None
    """Input that the provider has cached. Default: a tenth of `input`."""

    @property
    def cached(self) -> float:
        """The price of cached input."""
        return self.input / 10 if self.cached_input is None else self.cached_input


class DashboardPolicy(Section, frozen=True):
    """The web page at `/` of the HTTP server, and `mcp-mirror dashboard`: calls, values, lineage and savings."""

    enabled: bool = True
    """Serve the page at `/` of the HTTP server, behind its authentication. A gateway on stdio never serves it;
    `mcp-mirror dashboard` shows its store."""
    operator_scopes: Annotated[Scopes, Example(("mirror.operator",))] = ()
    """The scopes that a token needs to see the calls and the metadata of all principals. Needs `auth`. Default: each
    principal sees only its own."""
    operators_read_values: bool = False
    """Operators may also read the values, arguments and notices of others. The audit log records each read."""
    prices: Annotated[tuple[PricePolicy, ...], Example("claude-sonnet")] = ()
    """Prices by the name of the model, in addition to those that the page contains; the same name replaces one."""


MemoryToolSet = Literal["minimal", "standard", "all"]
ListingMode = Literal["full", "search", "auto"]
NoticeStyle = Literal["compact", "paper", "json", "opaque"]
TokenProvider = Literal["default", "openai", "anthropic", "anthropic-4.6", "google", "llama", "mistral"]
ScriptAccess = Literal["read_only", "listed", "all", "none"]
LogFormat = Literal["text", "json"]
ArgumentDetail = Literal["shape", "values"]


class MirrorPolicy(Section, frozen=True):
    """The twins, and which results stay out of the model's context. Budgets are estimated tokens."""

    suffix: Suffix = "_mirrored"
    """Added to a tool's name to form its twin's name. With "" and `capture: never` the gateway is transparent: clients
    see only the upstreams' own tools."""
    capture: CaptureMode = "auto"
    """Which results to store. auto: objects of any size, and other results of 300 tokens or more; those within the
    inline budget are shown with their path. large: only results over the inline budget. always: all. never: none."""
    inline_budget: Whole = 2_500
    """Tokens up to which the model sees a result whole: expected tokens, not an upper bound."""
    answer_budget: Whole = 20_000
    """Tokens up to which `retrieve_final_answer_from_memory` returns a value whole."""
    error_budget: Whole = 2_000
    """Tokens up to which the model sees an error result whole."""
    notice: NoticeStyle = "compact"
    """The style of the text that replaces a stored result."""
    listing: ListingMode = "full"
    """The tools that `tools/list` returns. full: all. search: `find_tools`, `call_tool`, a few memory tools and
    the tools with `listed: true`; the model searches for the others. auto: search for clients whose tools cost more
    tokens than `listing_budget`, else full."""
    listing_budget: Whole = 20_000
    """Tokens of definitions up to which `listing: auto` lists all tools."""
    expose_originals: bool = False
    """List each original tool beside its twin. Needs a suffix."""
    capture_resources: bool = False
    """Store resources and prompts over the inline budget like results; otherwise they pass unchanged."""
    resource_links: bool = False
    """Add a link to the stored value as a resource (`memory://...`) after a notice."""
    preview: bool = True
    """False: store everything that tools return, including errors, and show none of it; notices describe keys by
    position and values by type and size."""
    provider: TokenProvider = "default"
    """The model provider whose tokens the budgets count: openai, anthropic, anthropic-4.6 (Claude 3 to Opus 4.6),
    google, llama or mistral. default: the largest of these estimates."""
    read_budget: Whole = 2_500
    """Tokens of a stored value that a memory tool returns at once; `memory_tools.read_characters` applies too."""
    startup_wait: Pause = 10.0
    """Time that the first `tools/list` waits for upstreams that are still starting."""
    stages: Annotated[Words, Example(("quota",))] = ()
    """Names of your own stages of tool calls, the outermost first: entry points in the group `mcp_mirror.stages`."""


class MemoryToolsPolicy(Section, frozen=True):
    """The gateway's own tools, which read, search and change stored values."""

    set: MemoryToolSet = "standard"
    """The memory tools that the gateway serves. minimal: retrieve_final_answer_from_memory and memory_read. standard:
    also memory_grep, memory_query, memory_edit, and with the extra `code` memory_run. all: every memory tool."""
    allow: Annotated[Globs | None, Example(("memory_read", "memory_list"))] = None
    """Globs of the memory tools that the gateway serves in place of `set`. Case matters."""
    deny: Annotated[Globs, Example(("memory_edit",))] = ()
    """Globs of the memory tools that the gateway does not serve, even if `set` or `allow` has them. Case matters."""
    roots: Annotated[Roots, Example(("exchange",))] = ()
    """Folders, relative to this file's folder, in which memory_import may read and memory_export may write files.
    Default: none, and neither tool is served."""
    timeout: Duration = 20.0
    """Time that one operation on a value may take."""
    read_characters: Whole = 10_000
    """Characters that a memory tool returns at once, regardless of `mirror.read_budget`: some clients cut longer
    results."""
    query_bytes: Bytes = 256 << 20
    """Bytes of the largest value that memory_query reads or returns; with SQL, of all inputs together."""

    def admits(self, tool: str) -> bool:
        """Return whether a tool of this name may be served: `set` or a glob of `allow` has it, and none denies it."""
        allow = _MEMORY_TOOL_SETS[self.set] if self.allow is None else self.allow
        return is_admitted(tool, allow, self.deny)


class CodePolicy(Section, frozen=True):
    """Scripts that `memory_run` runs in a sandbox. Needs the extra `code`: pip install 'mcp-mirror[code]'."""

    tools: ScriptAccess = "read_only"
    """The tools that scripts call without asking the user. read_only: tools that their servers annotate as read-only,
    and functions of a program. listed: those that `allow` names. all, none. For other tools the client asks the user,
    who sees the arguments; a client without elicitation gets an error. With none, every call is an error."""
    allow: Annotated[Globs, Example(("search_*",))] = ()
    """Globs of the tools for `tools: listed`, by their own names. Case matters."""
    seconds: Duration = 10.0
    """Time that a script may compute. Waiting for tools does not count."""
    memory: Bytes = 256 << 20
    """Bytes of memory that a script may use. The gateway may need several times as much to pass the largest values."""
    calls: Count = 1_000
    """Tool calls of one script."""
    output: Count = 8_000
    """Characters of printed text that are shown; more is dropped."""
    values: Bytes = 64 << 20
    """Bytes of all values together that a script reads, receives from tools and returns."""

    def admits(self, tool: str, *, is_read_only: bool) -> bool:
        """Return whether scripts may call a tool without asking the user."""
        by_mode = {"read_only": is_read_only, "listed": is_admitted(tool, self.allow, ()), "all": True}
        return by_mode.get(self.tools, False)


class ContextPolicy(Section, frozen=True):
    """The part of a conversation's context window that tool results may fill. Off without a window."""

    window: Annotated[Tokens | None, Example(200_000)] = None
    """Tokens of the model's context window. Default: conversations have no budget."""
    reserve: Part = 0.2
    """The part of the window that is reserved for users and models."""


class WirePolicy(Section, frozen=True):
    """Limits of the messages, requests and lists of clients and upstreams."""

    max_message_bytes: Bytes = 2 << 30
    """Bytes of the largest message; a larger one is discarded and its call fails."""
    spool_bytes: Bytes = 1 << 20
    """Bytes above which a message goes to a file while it arrives instead of into memory."""
    max_key_bytes: Bytes = 64 << 10
    """Bytes of the longest key on the top level of a value."""
    max_depth: Depth = MAX_DEPTH
    """Levels of nesting in one message."""
    max_envelope_bytes: Bytes = 16 << 20
    """Bytes of a message without its payload: all but a call's arguments and a result's content."""
    max_inflation: Count = 200
    """The largest ratio of inflated to compressed size of a body that inflates to more than `spool_bytes`."""
    traffic: Annotated[TrafficPolicy, INLINE] = TrafficPolicy()
    bounds: Annotated[UpstreamBounds, INLINE] = UpstreamBounds()


class ServerPolicy(Section, frozen=True):
    """How the gateway presents itself to clients."""

    name: Line = "mcp-mirror"
    """The server name that clients see."""
    instructions: Annotated[Line | None, Example("Prefer tables to prose.")] = None
    """Text for the model, placed before the gateway's own instructions."""
    path: UrlPath = "/mcp"
    """Path of the HTTP endpoint."""
    answer_timeout: Duration = 600.0
    """Time that a call waits for the user's answer to an elicitation, sampling or roots request."""
    state_keys: Annotated[Secrets, SECRET, Example(("${STATE_KEY}",))] = ()
    """Secrets that encrypt the state that clients hold between two rounds of a call; the first encrypts, all decrypt.
    Replicas need the same. Default: a random key of this process."""
    session_idle: Duration = 300.0
    """Time without an open request or stream after which an HTTP session of a 2025-11-25 client ends, with its
    dedicated upstream connections."""
    drain: Pause = 10.0
    """Time that calls in flight have to end during a graceful shutdown. 0: none."""
    allowed_hosts: Annotated[tuple[Host, ...], SINGLE, Example(("tools.example.com", "10.0.0.5:*"))] = ()
    """`Host` headers to accept besides those of loopback: a name, a name with a port, or with `:*` for any port."""
    allowed_origins: Annotated[tuple[Origin, ...], SINGLE, Example(("https://app.example.com",))] = ()
    """`Origin` headers to accept besides those of loopback."""
    log_format: LogFormat = "text"
    """The format of log lines on standard error."""
    metrics: Annotated[Listener | None, Example("127.0.0.1:9464")] = None
    """Address for Prometheus, HOST:PORT, without authentication: `/metrics`, `/healthz` and `/readyz`. Each of several
    workers has its own port, from this one on. Default: no metrics."""
    wraps: Annotated[str | None, INTERNAL] = None
    """The name of the only upstream, which the gateway replaces in the client; see `Caller.upstream`."""
    awaits_start: Annotated[bool, INTERNAL] = False
    """A handshake waits until this upstream is ready or has failed; a listing of its last run is not enough."""


class LockPolicy(Section, frozen=True):
    """The tool definitions that `mcp-mirror lock` recorded, and what happens to tools that differ."""

    mode: Annotated[LockMode | None, Example("off")] = None
    """The action for a tool that differs from the lock file or is not in it. block: it is not served. warn: the
    gateway logs a warning. off: nothing, regardless of the upstreams' `lock`. Default: block if the lock file exists,
    else off."""
    file: Annotated[FilePath | None, Example("mirror.lock.json")] = None
    """The lock file, relative to this file's folder. Default: this file's name with the ending `.lock.json`."""


class AuditPolicy(Section, frozen=True):
    """An audit log of calls, reads and refusals, one JSON object a line."""

    path: Annotated[FilePath | None, Example("audit.jsonl")] = None
    """The file of the audit log, relative to this file's folder; a new file is readable only by this user. Default: no
    audit log."""
    required: bool = False
    """Refuse a call if its audit record cannot be written. Otherwise the call proceeds, and the log counts lost
    records."""
    key: Annotated[Secret | None, SECRET, Example("${AUDIT_KEY}")] = None
    """A secret of 32 characters or more for the hashes of memory paths, which makes those of several gateways and
    starts comparable. Default: a random key of this process."""


class EventsPolicy(Section, frozen=True):
    """The log of calls in the store, for the dashboard, `mcp-mirror usage` and `mcp-mirror values lineage`."""

    enabled: bool = True
    """Whether the gateway logs calls. A gateway that stores no values never does."""
    max_calls: Count = 10_000
    """Calls of one principal that the log keeps; the oldest are removed first. With more than ten principals, each
    keeps a smaller number."""
    arguments: ArgumentDetail = "shape"
    """What the log keeps of the arguments of a call. shape: their keys and memory paths; a text or a number is replaced
    by its kind and length. values: also texts and numbers. Both up to 2,000 characters."""


class Config(Section, frozen=True):
    """The configuration of mcp-mirror."""

    upstreams: tuple[UpstreamPolicy, ...] = ()
    """The MCP servers to connect to, by names of A-Z, a-z, 0-9, _, - and dots."""
    mirror: MirrorPolicy = MirrorPolicy()
    """The twins, and which results stay out of the model's context."""
    memory_tools: Annotated[MemoryToolsPolicy, Shorthand("set")] = MemoryToolsPolicy()
    """The gateway's own tools, which work on stored values. A name is short for `set`."""
    code: CodePolicy = CodePolicy()
    """Scripts over stored values, in a sandbox."""
    context: ContextPolicy = ContextPolicy()
    """The token budget of one conversation; off by default."""
    store: StorePolicy = StorePolicy()
    """Where values are stored."""
    server: ServerPolicy = ServerPolicy()
    """How the gateway presents itself to clients."""
    limits: WirePolicy = WirePolicy()
    """Limits of the messages, requests and lists of clients and upstreams."""
    lock: LockPolicy = LockPolicy()
    """Pinned tool definitions."""
    auth: AuthPolicy = AuthPolicy()
    """Authentication over HTTP."""
    flows: Annotated[FlowsPolicy, Shorthand("allow")] = FlowsPolicy()
    """Which values may flow where, by their labels. A list is short for `allow`."""
    audit: AuditPolicy = AuditPolicy()
    """The audit log."""
    events: EventsPolicy = EventsPolicy()
    """The log of calls in the store."""
    dashboard: DashboardPolicy = DashboardPolicy()
    """The web page for people."""
    disabled: Annotated[tuple[str, ...], INTERNAL] = ()
    """The names of upstreams that the file leaves out."""
    warnings: Annotated[tuple[str, ...], INTERNAL] = ()
    """A sentence for each setting that has no effect or needs attention."""
    exposures: Annotated[tuple[str, ...], INTERNAL] = ()
    """The warnings about secrets that other users can read."""

    @property
    def has_call_quotas(self) -> bool:
        """Whether any principal has a quota of calls."""
        traffic = self.limits.traffic
        return any(any(traffic.quota_for(own)) for own in (None, *self.auth.principals))

    def call_quota_of(self, namespace: str) -> CallQuota:
        """Return the quota of calls of a namespace's principal."""
        return self.limits.traffic.quota_for(find_limits(self.auth.principals, namespace))

    @property
    def is_transparent(self) -> bool:
        """Whether clients see only the upstreams' own tools, because nothing is renamed or stored.

        Then the gateway has no memory, so each setting that stores results must be a part of this.
        """
        return (
            not self.mirror.suffix
            and self.mirror.capture == "never"
            and not any(upstream.may_capture for upstream in self.upstreams)
        )


_FILE_TOOLS: Final = ("memory_import", "memory_export")
"""Tools that only `memory_tools.roots` switches on."""
_MINIMAL: Final = ("retrieve_final_answer_from_memory", "memory_read", *_FILE_TOOLS)
_STANDARD: Final = (*_MINIMAL, "memory_grep", "memory_query", "memory_edit", "memory_run")
MEMORY_TOOLS: Final = (*_STANDARD, "memory_describe", "memory_put", "memory_list", "memory_forget")
_MEMORY_TOOL_SETS: Final[Mapping[MemoryToolSet, tuple[str, ...]]] = {
    "minimal": _MINIMAL,
    "standard": _STANDARD,
    "all": MEMORY_TOOLS,
}
