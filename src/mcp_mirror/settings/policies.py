"""The settings of a configuration: one frozen class per section.

Each field declares its key once: type and bounds (see `declarations`), default, and documentation as the docstring
below it. `config` reads a file into these objects, and generates the JSON Schema, the reference page and the example
file from them. Every other module receives only the objects that it needs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import PurePath
from types import MappingProxyType
from typing import Annotated, Final, Literal

from mcp_mirror.settings.access import AuthPolicy, OAuthPolicy
from mcp_mirror.settings.dashboard import DashboardPolicy
from mcp_mirror.settings.declarations import (
    FILE_ONLY,
    INLINE,
    INTERNAL,
    NAME,
    REQUIRED,
    SINGLE,
    Address,
    AtLeast,
    Bytes,
    Command,
    Count,
    Duration,
    Environment,
    Example,
    FilePath,
    Globs,
    Group,
    Headers,
    Host,
    Line,
    Listener,
    Origin,
    Part,
    Pause,
    Roots,
    Scopes,
    Seconds,
    Secret,
    Secrets,
    Shorthand,
    Suffix,
    Tokens,
    UrlPath,
    Whole,
    Words,
)
from mcp_mirror.settings.labels import FlowsPolicy, PlacePolicy
from mcp_mirror.settings.limits import MAX_DEPTH, Depth, PrincipalLimits, TrafficPolicy, UpstreamBounds, find_limits

CaptureMode = Literal["auto", "large", "always", "never"]
MemoryToolSet = Literal["minimal", "standard", "all"]
ListingMode = Literal["full", "search", "auto"]
NoticeStyle = Literal["compact", "paper", "json", "opaque"]
TokenProvider = Literal["default", "openai", "anthropic", "anthropic-4.6", "google", "llama", "mistral"]
ProtocolVersion = Literal["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
"""The published versions in their order."""
Scope = Literal["shared", "principal", "session"]
Transport = Literal["stdio", "streamable-http", "sse"]
StoreKind = Literal["memory", "disk", "redis"]
ClearMode = Literal["read", "refuse"]
ScriptAccess = Literal["read_only", "listed", "all", "none"]
LogFormat = Literal["text", "json"]
LockMode = Literal["off", "warn", "block"]
ArgumentDetail = Literal["shape", "values"]

_SHARES = 4
"""By default, one principal of several stores at most one of these shares."""
_LIFETIMES: Mapping[str, float] = MappingProxyType({"disk": 7 * 86_400.0})
_HTTP_LIMIT = 4 << 20
_NODE_LIMIT = 10 << 20
_NODE_RUNNERS = frozenset({"node", "npx", "npm", "pnpm", "yarn", "bun", "bunx", "deno", "tsx", "ts-node"})
_NONE: Mapping[str, str] = MappingProxyType({})
_TOOLS = Group("tools", "The tools of this upstream that the gateway serves.")
_AUTH = Group(
    "auth", "How the gateway authenticates to this upstream; it never uses a client's token.", is_required=True
)


@dataclass(frozen=True, slots=True)
class StdioEndpoint:
    """A program to start. Arguments and environment may contain secrets, so `repr` omits them."""

    command: Annotated[Command, Example("npx")]
    """The program to start; it speaks MCP on its stdin and stdout. `${PYTHON}` is the gateway's own Python."""
    args: Annotated[Words, Example(("-y", "@modelcontextprotocol/server-filesystem", "${HOME:-.}"))] = field(
        default=(), repr=False
    )
    """Arguments of the program."""
    env: Annotated[Environment, Example({"NODE_ENV": "production"})] = field(default_factory=lambda: _NONE, repr=False)
    """Environment variables of the program. Keep secrets out of the file with `${VAR}`."""
    cwd: Annotated[FilePath | None, Example("~")] = None
    """Folder to start the program in, relative to this file's folder. Default: the gateway's own."""
    is_wrapped: Annotated[bool, INTERNAL] = False
    """The gateway replaces the program in the client: `env` is the program's whole environment, and its standard error
    is passed on."""


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """An address to connect to. Address and headers may contain secrets, so `repr` omits them."""

    url: Annotated[Address, Example("https://api.githubcopilot.com/mcp/")] = field(repr=False)
    """Address of a remote MCP server."""
    headers: Annotated[Headers, Example({"Authorization": "Bearer ${GITHUB_TOKEN}"})] = field(
        default_factory=lambda: _NONE, repr=False
    )
    """HTTP headers to send with every request."""
    legacy_sse: Annotated[bool, INTERNAL] = False
    """Use the HTTP+SSE transport of 2024-11-05 instead of Streamable HTTP."""
    is_wrapped: Annotated[bool, INTERNAL] = False
    """The gateway replaces the server in the client, and no configuration names the server."""
    oauth: Annotated[OAuthPolicy | None, _AUTH] = None
    """Tokens by OAuth 2.1."""
    allow_private: bool = False
    """Allow names of this upstream, and of servers that it refers to, to resolve to private addresses: this machine, a
    local network, cloud metadata. An address that `url` itself contains is always allowed."""


@dataclass(frozen=True, slots=True)
class LocalEndpoint:
    """Functions of the program that the gateway runs in: nothing to start, nowhere to connect."""


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """Settings of the tools that match a glob. If several globs match, later ones win key by key, and scopes add up."""

    capture: Annotated[CaptureMode | None, Example("always")] = None
    """As `mirror.capture`, for these tools."""
    inline_budget: Annotated[Whole | None, Example(200)] = None
    """As `mirror.inline_budget`, for these tools, in tokens."""
    timeout: Annotated[Seconds | None, Example(10)] = None
    """Seconds that one call of these tools may take. Default: the upstream's `timeout`."""
    description: Annotated[Line | None, Example("Read one text file whole.")] = None
    """Replaces the upstream's description of these tools."""
    listed: Annotated[bool | None, Example(value=True)] = None
    """True: clients see these tools in `tools/list` also where `mirror.listing` makes them search for the others."""
    required_scopes: Annotated[Scopes | None, Example(("files.write",))] = None
    """Scopes that a principal's token needs to see and call these tools, in addition to the upstream's. Needs
    `auth`."""


_TOOL_FIELDS = tuple(ToolPolicy.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class UpstreamPolicy:
    """One MCP server: a program to start (`command`) or an address to connect to (`url`)."""

    name: Annotated[str, NAME]
    endpoint: Annotated[StdioEndpoint | HttpEndpoint | LocalEndpoint, INLINE]
    timeout: Annotated[Seconds, Example(120)] = 60.0
    """Seconds that one request may take. There is always a limit."""
    startup_timeout: Seconds = 60.0
    """Seconds that connecting and listing the tools may take."""
    required: bool = False
    """True: the gateway is ready (`/readyz`) only while this upstream is connected."""
    allow: Annotated[Globs, _TOOLS, Example(("read_*", "list_*"))] = ("*",)
    """Globs (`*`, `?`, `[...]`) of the tools that the gateway serves. Case matters."""
    deny: Annotated[Globs, _TOOLS, Example(("write_*",))] = ()
    """Globs of the tools that the gateway does not serve, even if allowed."""
    overrides: Annotated[tuple[tuple[str, ToolPolicy], ...], Example("read_*")] = ()
    """Settings of single tools, by globs of their names."""
    oldest_protocol: Annotated[ProtocolVersion | None, Example("2025-06-18")] = None
    """The oldest protocol version to accept. Default: any."""
    required_scopes: Annotated[Scopes, Example(("crm.read",))] = ()
    """Scopes that a principal's token needs to see and use this upstream; to other principals it does not exist.
    Needs `auth`."""
    scope: Annotated[Scope | None, Example("session")] = None
    """Who shares a connection to this upstream: all clients (shared), the clients of one principal, or one client
    session. Default: shared for protocol version 2026-07-28, else session, because requests and log messages of older
    servers do not name the call that caused them."""
    repeat_read_only: bool = False
    """Repeat a call once if its connection was lost and the server marks the tool read-only. Other calls are never
    repeated."""
    progress_resets_timeout: bool = False
    """Restart a request's timeout at each progress notification."""
    max_request_bytes: Annotated[Bytes | None, Example("32MiB")] = None
    """Bytes of the largest arguments to send. Default: the known limit of its kind: 4 MiB over HTTP, 10 MiB for a
    program that Node runs, none for other programs."""
    lock: Annotated[LockMode | None, Example("block")] = None
    """As `lock.mode`, for this upstream."""
    preview: bool = True
    """As `mirror.preview`, for this upstream, which is also the default."""
    place: Annotated[PlacePolicy, INLINE] = field(default_factory=PlacePolicy)
    bounds: Annotated[UpstreamBounds, INTERNAL] = field(default_factory=UpstreamBounds)
    """The limits of its requests and lists: `limits`."""
    transport: Annotated[Transport | None, FILE_ONLY, Example("stdio")] = None
    """Transport. Default: stdio for `command`, streamable-http for `url`."""
    enabled: Annotated[bool, FILE_ONLY] = True
    """False leaves this upstream out; its variables may then be unset."""

    @property
    def request_limit(self) -> int | None:
        """The largest arguments that the upstream accepts, in bytes, as configured or known; None: no limit.

        The MCP SDKs' HTTP servers accept bodies up to 4 MiB. The TypeScript SDK's stdio servers end at messages over
        10 MiB; the program that runs them identifies them.
        """
        if self.max_request_bytes is not None:
            return self.max_request_bytes
        if isinstance(self.endpoint, HttpEndpoint):
            return _HTTP_LIMIT
        command = self.endpoint.command if isinstance(self.endpoint, StdioEndpoint) else ""
        return _NODE_LIMIT if PurePath(command).stem.lower() in _NODE_RUNNERS else None

    def admits(self, tool: str) -> bool:
        """Return whether a tool of this name is served: a glob allows it and none denies it (case matters)."""
        return _is_admitted(tool, self.allow, self.deny)

    @property
    def is_wrapped(self) -> bool:
        """Whether the gateway replaces this upstream in the client, and no configuration names the upstream."""
        return not isinstance(self.endpoint, LocalEndpoint) and self.endpoint.is_wrapped

    @property
    def is_scoped(self) -> bool:
        """Whether some principals may see what others do not."""
        return bool(self.required_scopes) or any(policy.required_scopes for _, policy in self.overrides)

    def scopes_of(self, tool: str) -> frozenset[str]:
        """Return the scopes that a tool requires: the upstream's and those of every matching glob."""
        each = (policy.required_scopes or () for glob, policy in self.overrides if fnmatchcase(tool, glob))
        return frozenset((*self.required_scopes, *chain.from_iterable(each)))

    @property
    def may_capture(self) -> bool:
        """Whether results may be stored regardless of `mirror.capture`: by an override, or without previews."""
        return not self.preview or any(policy.capture not in (None, "never") for _, policy in self.overrides)

    def tool_policy(self, tool: str) -> ToolPolicy:
        """Return the joined overrides whose globs match `tool`."""
        joined: dict[str, object] = {}
        for glob, policy in self.overrides:
            if fnmatchcase(tool, glob):
                joined |= {name: value for name in _TOOL_FIELDS if (value := getattr(policy, name)) is not None}
        return ToolPolicy(**joined)  # type: ignore[arg-type]  # names and values are ToolPolicy's own


@dataclass(frozen=True, slots=True)
class MirrorPolicy:
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
    """The tools that `tools/list` returns. full: all. search: `find_tools`, `call_tool`, the memory tools and the tools
    with `listed: true`; the model searches for the others. auto: search for clients whose tools cost more tokens than
    `listing_budget`, else full."""
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
    google, llama or mistral. default: never too few for any of them."""
    read_budget: Whole = 2_500
    """Tokens of a stored value that a memory tool returns at once; `memory_tools.read_characters` applies too."""
    startup_wait: Pause = 10.0
    """Seconds that the first `tools/list` waits for upstreams that are still starting."""
    stages: Annotated[Words, Example(("quota",))] = ()
    """Names of your own stages of tool calls, the outermost first: entry points in the group `mcp_mirror.stages`."""


@dataclass(frozen=True, slots=True)
class MemoryToolsPolicy:
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
    timeout: Seconds = 20.0
    """Seconds that one operation on a value may take."""
    read_characters: Whole = 10_000
    """Characters that a memory tool returns at once, regardless of `mirror.read_budget`: some clients cut longer
    results."""
    query_bytes: Bytes = 256 << 20
    """Bytes of the largest value that memory_query reads or returns; with SQL, of all inputs together."""

    def admits(self, tool: str) -> bool:
        """Return whether a tool of this name may be served: `set` or a glob of `allow` has it, and none denies it."""
        allow = _MEMORY_TOOL_SETS[self.set] if self.allow is None else self.allow
        return _is_admitted(tool, allow, self.deny)


@dataclass(frozen=True, slots=True)
class CodePolicy:
    """Scripts that `memory_run` runs in a sandbox. Needs the extra `code`: pip install 'mcp-mirror[code]'."""

    tools: ScriptAccess = "read_only"
    """The tools that scripts call without a question. read_only: tools that their servers annotate as read-only, and
    functions of a program. listed: those that `allow` names. all, none. For other tools the client asks the user, who
    sees the arguments; a client without elicitation gets an error. With none, every call is an error."""
    allow: Annotated[Globs, Example(("search_*",))] = ()
    """Globs of the tools for `tools: listed`, by their own names. Case matters."""
    seconds: Seconds = 10.0
    """Seconds that a script may compute. Waiting for tools does not count."""
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
        by_mode = {"read_only": is_read_only, "listed": _is_admitted(tool, self.allow, ()), "all": True}
        return by_mode.get(self.tools, False)


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """The part of a conversation's context window that tool results may fill. Off without a window."""

    window: Annotated[Tokens | None, Example(200_000)] = None
    """Tokens of the model's context window. Default: conversations have no budget."""
    reserve: Part = 0.2
    """The part of the window that is reserved for users and models."""


@dataclass(frozen=True, slots=True)
class WirePolicy:
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
    traffic: Annotated[TrafficPolicy, INLINE] = field(default_factory=TrafficPolicy)
    bounds: Annotated[UpstreamBounds, INLINE] = field(default_factory=UpstreamBounds)


@dataclass(frozen=True, slots=True)
class EncryptionPolicy:
    """Encryption of values at rest, on disk and in Redis. Each value is bound to its owner and path."""

    keys: Annotated[
        tuple[Secret, ...], REQUIRED, AtLeast(1, "a list of one secret or more"), Example(("${STORE_KEY}",))
    ] = field(default=(), repr=False)
    """The first key encrypts, all keys decrypt: to rotate keys, put the new one first. 32 bytes in base64 each
    (`openssl rand -base64 32`), or another unguessable secret of 32 characters or more."""
    enabled: bool = True
    """False stores new values unencrypted and still reads encrypted ones."""
    clear: ClearMode = "read"
    """Whether unencrypted values, such as older ones, are readable. With refuse, a value that someone else writes into
    the store is not."""


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """Where values are stored, how many, and for how long."""

    kind: Annotated[StoreKind | None, Example("disk")] = None
    """disk: files, which survive the gateway. memory: this process. redis: a Redis or Valkey server, for several
    gateways. Default: disk with stdio, memory over HTTP."""
    path: Annotated[FilePath | None, Example("~/.local/share/mcp-mirror")] = None
    """Folder of the disk store, relative to this file's folder. Default: the user's data folder."""
    url: Annotated[Line | None, Example("rediss://user:${REDIS_PASSWORD}@redis.example.com:6379/0")] = field(
        default=None, repr=False
    )
    """Address of the Redis or Valkey server: redis://, rediss:// for TLS, or unix://."""
    prefix: Line = "mcp-mirror:"
    """Prefix of the keys in Redis."""
    blobs: Annotated[Line | None, Example("s3://my-bucket/mcp-mirror")] = None
    """With redis: a bucket of an S3-compatible server for values over 64 KiB, s3://BUCKET or s3://BUCKET/PREFIX.
    Credentials, region and endpoint come from the environment. Default: all values are in Redis."""
    encryption: EncryptionPolicy | None = field(default=None, repr=False)
    """Encryption at rest. Default: none."""
    fsync: bool = True
    """Write a value to the disk before its path is returned. Without, a crash of the machine may lose values; a crash
    of the gateway does not."""
    ttl: Annotated[Duration | None, Example("7d")] = None
    """Time since its last use after which a value expires, in seconds or with s, m, h or d. Default: 7 days on disk,
    else 24 hours."""
    max_value_bytes: Bytes = 2 << 30
    """Bytes of one value."""
    max_bytes: Bytes = 8 << 30
    """Bytes of all values together."""
    max_values: Whole = 100_000
    """Number of all values together."""
    namespace_bytes: Annotated[Bytes | None, Example("1GiB")] = None
    """Bytes of one principal's values. Default: a quarter of `max_bytes` with `auth`, else all of it."""
    namespace_values: Annotated[Whole | None, Example(10_000)] = None
    """Number of one principal's values. Default: a quarter of `max_values` with `auth`, else all of them."""
    principals: Annotated[tuple[PrincipalLimits, ...], INTERNAL] = ()
    """The limits of single principals, from `auth.principals`."""

    def shared(self) -> "StorePolicy":
        """Return the policy for several principals, each with a limit of its own."""
        size, values = self.namespace_bytes, self.namespace_values
        return replace(
            self,
            namespace_bytes=-(-self.max_bytes // _SHARES) if size is None else size,
            namespace_values=-(-self.max_values // _SHARES) if values is None else values,
        )

    @property
    def share_bytes(self) -> int:
        """The limit of one principal's values in bytes."""
        return self.max_bytes if self.namespace_bytes is None else self.namespace_bytes

    @property
    def share_values(self) -> int:
        """The limit of one principal's number of values."""
        return self.max_values if self.namespace_values is None else self.namespace_values

    def for_namespace(self, namespace: str) -> "StorePolicy":
        """Return the policy with the limits of one principal."""
        own = find_limits(self.principals, namespace)
        if own is None:
            return self
        size, values = own.namespace_bytes, own.namespace_values
        return replace(
            self,
            namespace_bytes=self.namespace_bytes if size is None else size,
            namespace_values=self.namespace_values if values is None else values,
        )

    @property
    def lifetime(self) -> float:
        """Seconds since last use after which a value expires."""
        return self.ttl if self.ttl is not None else _LIFETIMES.get(self.kind or "memory", 86_400.0)


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """How the gateway presents itself to clients."""

    name: Line = "mcp-mirror"
    """The server name that clients see."""
    instructions: Annotated[Line | None, Example("Prefer tables to prose.")] = None
    """Text for the model, placed before the gateway's own instructions."""
    path: UrlPath = "/mcp"
    """Path of the HTTP endpoint."""
    answer_timeout: Seconds = 600.0
    """Seconds that a call waits for the user's answer to an elicitation, sampling or roots request."""
    state_keys: Annotated[Secrets, Example(("${STATE_KEY}",))] = field(default=(), repr=False)
    """Secrets that encrypt the state that clients hold between two rounds of a call; the first encrypts, all decrypt.
    Replicas need the same. Default: a random key of this process."""
    session_idle: Seconds = 300.0
    """Seconds without an open request or stream after which an HTTP session of a 2025-11-25 client ends, with its
    dedicated upstream connections."""
    drain: Pause = 10.0
    """Seconds that calls in flight have to end during a graceful shutdown. 0: none."""
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


@dataclass(frozen=True, slots=True)
class LockPolicy:
    """The tool definitions that `mcp-mirror lock` recorded, and what happens to tools that differ."""

    mode: Annotated[LockMode | None, Example("off")] = None
    """The action for a tool that differs from the lock file or is not in it. block: it is not served. warn: the
    gateway logs a warning. off: nothing, regardless of the upstreams' `lock`. Default: block if the lock file exists,
    else off."""
    file: Annotated[FilePath | None, Example("mirror.lock.json")] = None
    """The lock file, relative to this file's folder. Default: this file's name with the ending `.lock.json`."""


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """An audit log of calls, reads and refusals, one JSON object a line."""

    path: Annotated[FilePath | None, Example("audit.jsonl")] = None
    """The file of the audit log, relative to this file's folder; a new file is readable only by this user. Default: no
    audit log."""
    required: bool = False
    """Refuse a call if its audit record cannot be written. Otherwise the call proceeds, and the log counts lost
    records."""
    key: Annotated[Secret | None, Example("${AUDIT_KEY}")] = field(default=None, repr=False)
    """A secret of 32 characters or more for the hashes of memory paths, which makes those of several gateways and
    starts comparable. Default: a random key of this process."""


@dataclass(frozen=True, slots=True)
class EventsPolicy:
    """The log of calls in the store, for the dashboard, `mcp-mirror usage` and `mcp-mirror values lineage`."""

    enabled: bool = True
    """Whether the gateway logs calls. A gateway that stores no values never does."""
    max_calls: Count = 10_000
    """Calls of one principal that the log keeps; the oldest are removed first. With more than ten principals, each
    keeps a smaller number."""
    arguments: ArgumentDetail = "shape"
    """What the log keeps of the arguments of a call. shape: their keys and memory paths; a text or a number is replaced
    by its kind and length. values: also texts and numbers. Both up to 2,000 characters."""


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration of mcp-mirror."""

    upstreams: tuple[UpstreamPolicy, ...] = ()
    """The MCP servers to connect to, by names of A-Z, a-z, 0-9, _, - and dots."""
    mirror: MirrorPolicy = field(default_factory=MirrorPolicy)
    """The twins, and which results stay out of the model's context."""
    memory_tools: Annotated[MemoryToolsPolicy, Shorthand("set")] = field(default_factory=MemoryToolsPolicy)
    """The gateway's own tools, which work on stored values. A name is short for `set`."""
    code: CodePolicy = field(default_factory=CodePolicy)
    """Scripts over stored values, in a sandbox."""
    context: ContextPolicy = field(default_factory=ContextPolicy)
    """The token budget of one conversation; off by default."""
    store: StorePolicy = field(default_factory=StorePolicy)
    """Where values are stored."""
    server: ServerPolicy = field(default_factory=ServerPolicy)
    """How the gateway presents itself to clients."""
    limits: WirePolicy = field(default_factory=WirePolicy)
    """Limits of the messages, requests and lists of clients and upstreams."""
    lock: LockPolicy = field(default_factory=LockPolicy)
    """Pinned tool definitions."""
    auth: AuthPolicy = field(default_factory=AuthPolicy)
    """Authentication over HTTP."""
    flows: Annotated[FlowsPolicy, Shorthand("allow")] = field(default_factory=FlowsPolicy)
    """Which values may flow where, by their labels. A list is short for `allow`."""
    audit: AuditPolicy = field(default_factory=AuditPolicy)
    """The audit log."""
    events: EventsPolicy = field(default_factory=EventsPolicy)
    """The log of calls in the store."""
    dashboard: DashboardPolicy = field(default_factory=DashboardPolicy)
    """The web page for people."""
    warnings: Annotated[tuple[str, ...], INTERNAL] = ()
    """A sentence for each setting that has no effect."""

    @property
    def has_call_quotas(self) -> bool:
        """Whether any principal has a quota of calls."""
        traffic = self.limits.traffic
        return any(any(traffic.quota_for(own)) for own in (None, *self.auth.principals))

    @property
    def is_transparent(self) -> bool:
        """Whether clients see only the upstreams' own tools, because nothing is renamed or stored."""
        return (
            not self.mirror.suffix
            and self.mirror.capture == "never"
            and not any(upstream.may_capture for upstream in self.upstreams)
        )


_FILE_TOOLS: Final = ("memory_import", "memory_export")
"""Tools that only `memory_tools.roots` switches on."""
_MINIMAL: Final = ("retrieve_final_answer_from_memory", "memory_read", *_FILE_TOOLS)
_MEMORY_TOOL_SETS: Final[Mapping[MemoryToolSet, tuple[str, ...]]] = {
    "minimal": _MINIMAL,
    "standard": (*_MINIMAL, "memory_grep", "memory_query", "memory_edit", "memory_run"),
    "all": ("*",),
}


def _is_admitted(tool: str, allow: tuple[str, ...], deny: tuple[str, ...]) -> bool:
    return any(fnmatchcase(tool, glob) for glob in allow) and not any(fnmatchcase(tool, glob) for glob in deny)
