"""What the user decided, as small frozen policies.

`config` builds them once, at the edge; every other module receives only the ones it obeys. A policy is
data: it knows neither the file it came from nor the module that reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import PurePath
from types import MappingProxyType
from typing import Literal

from mcp_mirror.settings.access import AuthPolicy, OAuthPolicy
from mcp_mirror.settings.labels import FlowsPolicy, PlacePolicy
from mcp_mirror.settings.limits import MAX_DEPTH, TrafficPolicy, UpstreamBounds

CaptureMode = Literal["auto", "large", "always", "never"]
"""`auto`: objects and results over the inline budget are stored; `always`: every result; `never`: none."""

NoticeStyle = Literal["compact", "paper", "json", "opaque"]

TokenProvider = Literal["default", "openai", "anthropic", "anthropic-4.6", "google", "llama", "mistral"]
"""Whose tokenizer tokens are estimated for. `default`: never too few for any; `anthropic-4.6`: Claude 3 to Opus 4.6."""

ProtocolVersion = Literal["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
"""Those that were published, in their order."""
Scope = Literal["shared", "principal", "session"]
"""Whose one connection to an upstream is: everybody's, one principal's, or one client's.

Over a connection of the 2025 era a server's questions, log lines and updates do not say whose they are: by default
each client's session has one of its own. Where one is shared, none of these is offered to the server.
"""

StoreKind = Literal["memory", "disk", "redis"]

ClearMode = Literal["read", "refuse"]

LogFormat = Literal["text", "json"]

LockMode = Literal["off", "warn", "block"]
"""What is done with a tool that is not as it was locked: nothing; it is told of; it is not served either."""

_NONE: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class StdioEndpoint:
    """A child process to start. The environment may hold secrets, so it is never shown."""

    command: str
    args: tuple[str, ...] = field(default=(), repr=False)
    env: Mapping[str, str] = field(default_factory=lambda: _NONE, repr=False)
    cwd: str | None = None


@dataclass(frozen=True, slots=True)
class HttpEndpoint:
    """A URL to connect to. URL and headers may hold secrets, so they are never shown."""

    url: str = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=lambda: _NONE, repr=False)
    legacy_sse: bool = False
    """Speak the HTTP+SSE transport of 2024-11-05 instead of Streamable HTTP."""
    oauth: OAuthPolicy | None = None
    """How tokens for it are had; None: none are."""
    allow_private: bool = False
    """Names that it has may lead to private addresses, though they look public."""


@dataclass(frozen=True, slots=True)
class LocalEndpoint:
    """Functions of the program that the gateway runs in: nothing to start, nowhere to connect."""


@dataclass(frozen=True, slots=True)
class ToolPolicy:
    """What one tool does differently. None: as the upstream and the mirror say."""

    capture: CaptureMode | None = None
    inline_budget: int | None = None
    """Estimated tokens."""
    timeout: float | None = None
    """Seconds."""
    description: str | None = None
    """Replaces the upstream's description on the twin."""
    required_scopes: tuple[str, ...] | None = None
    """What a principal's token must be good for to see it and use it, beside what others require; `scopes_of` joins."""


@dataclass(frozen=True, slots=True)
class UpstreamPolicy:
    """One MCP server of the user's and how it is treated."""

    name: str
    endpoint: StdioEndpoint | HttpEndpoint | LocalEndpoint
    timeout: float = 60.0
    """Seconds that one request may take."""
    startup_timeout: float = 30.0
    """Seconds that connecting and listing may take."""
    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    overrides: tuple[tuple[str, ToolPolicy], ...] = ()
    """Tool name globs with what they change; where several match, a later one wins member by member."""
    oldest_protocol: ProtocolVersion | None = None
    """One that speaks an older version is not used. None: each that the SDK knows."""
    required_scopes: tuple[str, ...] = ()
    """What a principal's token must be good for to see anything of it and use it."""
    scope: Scope | None = None
    """Whose one connection is. None: as its protocol era asks for; see `Scope`."""
    repeat_read_only: bool = False
    """A call of a tool that is marked read-only is made once more where its connection was lost."""
    progress_resets_timeout: bool = False
    """News of a request's progress gives it all its time again."""
    max_request_bytes: int | None = None
    """Largest arguments that are sent to it. None: what servers of its kind are known to take."""
    lock: LockMode | None = None
    """What is done where its tools are not as they were locked. None: as the lock's policy says."""
    preview: bool = True
    """Models are shown what it says. False: all that it answers is stored, and told by position, type and size."""
    place: PlacePolicy = field(default_factory=PlacePolicy)
    """What its results are labelled, and what it may receive."""
    bounds: UpstreamBounds = field(default_factory=UpstreamBounds)
    """What it may list, say and be asked."""

    @property
    def request_limit(self) -> int | None:
        """Bytes of arguments that it takes, as configured or known; None: any.

        The MCP SDKs' HTTP servers take bodies of 4 MiB; the TypeScript SDK's stdio servers end at messages over
        10 MiB, and are told by what runs them.
        """
        if self.max_request_bytes is not None:
            return self.max_request_bytes
        if isinstance(self.endpoint, HttpEndpoint):
            return _HTTP_LIMIT
        command = self.endpoint.command if isinstance(self.endpoint, StdioEndpoint) else ""
        return _NODE_LIMIT if PurePath(command).stem.lower() in _NODE_RUNNERS else None

    def admits(self, tool: str) -> bool:
        """Whether a tool of this name is served: allowed by a glob and denied by none (case matters)."""
        return _is_admitted(tool, self.allow, self.deny)

    @property
    def is_scoped(self) -> bool:
        """Whether some principals may see what others do not."""
        return bool(self.required_scopes) or any(policy.required_scopes for _, policy in self.overrides)

    def scopes_of(self, tool: str) -> frozenset[str]:
        """What a principal's token must be good for to see a tool and use it: what every glob that matches requires."""
        each = (policy.required_scopes or () for glob, policy in self.overrides if fnmatchcase(tool, glob))
        return frozenset((*self.required_scopes, *chain.from_iterable(each)))

    @property
    def may_capture(self) -> bool:
        """Whether results are stored whatever the mirror says: an override has it so, or nothing may be shown."""
        return not self.preview or any(policy.capture not in (None, "never") for _, policy in self.overrides)

    def tool_policy(self, tool: str) -> ToolPolicy:
        """The overrides whose globs match `tool`, joined."""
        joined: dict[str, object] = {}
        for glob, policy in self.overrides:
            if fnmatchcase(tool, glob):
                joined |= {name: value for name in _TOOL_FIELDS if (value := getattr(policy, name)) is not None}
        return ToolPolicy(**joined)  # type: ignore[arg-type]  # names and values are ToolPolicy's own


def _is_admitted(tool: str, allow: tuple[str, ...], deny: tuple[str, ...]) -> bool:
    return any(fnmatchcase(tool, glob) for glob in allow) and not any(fnmatchcase(tool, glob) for glob in deny)


_SHARES = 4
"""One principal of several keeps at most this part of a store, unless the user says otherwise."""
_LIFETIMES: Mapping[str, float] = MappingProxyType({"disk": 7 * 86_400.0})
_HTTP_LIMIT = 4 << 20
_NODE_LIMIT = 10 << 20
_NODE_RUNNERS = frozenset({"node", "npx", "npm", "pnpm", "yarn", "bun", "bunx", "deno", "tsx", "ts-node"})
_TOOL_FIELDS = tuple(ToolPolicy.__dataclass_fields__)


@dataclass(frozen=True, slots=True)
class MirrorPolicy:
    """How twins look and what stays out of the model's context. Budgets are estimated tokens."""

    suffix: str = "_mirrored"
    """Empty: twins have their tools' own names."""
    capture: CaptureMode = "auto"
    inline_budget: int = 2_500
    """A result up to this size is shown to the model whole. Expected tokens, not a bound."""
    answer_budget: int = 20_000
    """`retrieve_final_answer_from_memory` returns a value up to this size."""
    error_budget: int = 2_000
    """An error result up to this size is shown whole."""
    notice: NoticeStyle = "compact"
    expose_originals: bool = False
    """List each original tool beside its twin."""
    capture_resources: bool = False
    """Resources and prompts over the inline budget are stored like results; else they pass as they are."""
    resource_links: bool = False
    """A notice is followed by a link to the stored value as a resource."""
    preview: bool = True
    """Models are shown what upstreams say, where an upstream says nothing else of itself."""
    provider: TokenProvider = "default"
    """Whose tokens the budgets are counted in."""
    read_budget: int = 2_500
    """`memory_read` and `memory_grep` show this much at once, and `memory_tools.read_characters` at most."""
    startup_wait: float = 10.0
    """Seconds that the first `tools/list` waits for upstreams that are still starting."""
    stages: tuple[str, ...] = ()
    """Entry points of the group `mcp_mirror.stages`: the user's own stages of tool calls, the outermost first."""


@dataclass(frozen=True, slots=True)
class MemoryToolsPolicy:
    """Which of our own tools there are and what they may take."""

    allow: tuple[str, ...] = ("*",)
    deny: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    """Folders whose files may be read into memory and written from it. None: neither tool is there."""
    timeout: float = 20.0
    """Seconds that looking into one value may take."""
    read_characters: int = 10_000
    """Characters that a reading tool shows at once, whatever `mirror.read_budget` says: clients cut longer texts."""
    query_bytes: int = 64 << 20
    """Largest value that `memory_query` takes in, and largest that it may find."""

    def admits(self, tool: str) -> bool:
        """Whether a tool of this name is served: allowed by a glob and denied by none (case matters)."""
        return _is_admitted(tool, self.allow, self.deny)


@dataclass(frozen=True, slots=True)
class ContextPolicy:
    """How much of a conversation's context window tools' answers may fill."""

    window: int | None = None
    """Estimated tokens. None: no account is kept."""
    reserve: float = 0.2
    """The part of it, from 0 to 1, that is kept for what users and models write."""


@dataclass(frozen=True, slots=True)
class WirePolicy:
    """Bounds of one message, whoever sends it, and of clients' traffic. Bytes, where nothing else is said."""

    max_message_bytes: int = 2 << 30
    """Past it a message is discarded and its call fails."""
    spool_bytes: int = 16 << 20
    """Past it a message goes to a file as it arrives instead of into memory."""
    max_key_bytes: int = 64 << 10
    """Longest key on the top level of a value."""
    max_depth: int = MAX_DEPTH
    """Levels of nesting."""
    max_envelope_bytes: int = 16 << 20
    """What is read of a message: all but a call's arguments and what a result holds."""
    max_inflation: int = 200
    """How many times its own size a compressed body may have that is over `spool_bytes` once it is inflated."""
    traffic: TrafficPolicy = field(default_factory=TrafficPolicy)


@dataclass(frozen=True, slots=True)
class EncryptionPolicy:
    """How values are sealed at rest, on the disk and in Redis."""

    keys: tuple[str, ...] = field(default=(), repr=False)
    """32 bytes in base64 each, or another secret of 32 characters or more. The first seals, all open."""
    enabled: bool = True
    """False: what is new is kept in clear; what was sealed is still read."""
    clear: ClearMode = "read"
    """What is done with values that are not sealed."""


@dataclass(frozen=True, slots=True)
class StorePolicy:
    """Where values are kept and how many bytes of them."""

    kind: StoreKind | None = None
    """None: `disk` on standard streams, `memory` over HTTP."""
    path: str | None = None
    """Folder of the disk store; None: the user's own data folder."""
    url: str | None = field(default=None, repr=False)
    """Address of the Redis or Valkey server; it may hold a password, so it is never shown."""
    prefix: str = "mcp-mirror:"
    """What the keys in Redis begin with."""
    encryption: EncryptionPolicy | None = None
    """None: values are kept in clear."""
    fsync: bool = True
    """A value is on the disk before its path is told; else it may be lost where the machine, not the gateway, stops."""
    ttl: float | None = None
    """Seconds since last use after which a value expires. None: 7 days on disk, else 24 hours."""
    max_value_bytes: int = 2 << 30
    """Of one value."""
    max_bytes: int = 8 << 30
    """Of all values together."""
    max_values: int = 100_000
    """All values together."""
    namespace_bytes: int | None = None
    """Of one principal's values; None: a quarter of `max_bytes` where `auth` admits principals, else all of it."""
    namespace_values: int | None = None
    """One principal's values; None: a quarter of `max_values` where `auth` admits principals, else all of them."""

    def shared(self) -> "StorePolicy":
        """The same for several principals, each with a bound of its own."""
        size, values = self.namespace_bytes, self.namespace_values
        return replace(
            self,
            namespace_bytes=-(-self.max_bytes // _SHARES) if size is None else size,
            namespace_values=-(-self.max_values // _SHARES) if values is None else values,
        )

    @property
    def share_bytes(self) -> int:
        """Bytes that one principal's values may have."""
        return self.max_bytes if self.namespace_bytes is None else self.namespace_bytes

    @property
    def share_values(self) -> int:
        """Values that one principal may keep."""
        return self.max_values if self.namespace_values is None else self.namespace_values

    @property
    def lifetime(self) -> float:
        """Seconds since last use after which a value expires."""
        return self.ttl if self.ttl is not None else _LIFETIMES.get(self.kind or "memory", 86_400.0)


@dataclass(frozen=True, slots=True)
class ServerPolicy:
    """How we present ourselves to clients."""

    name: str = "mcp-mirror"
    instructions: str | None = None
    """Put before our own instructions."""
    path: str = "/mcp"
    """Path of the Streamable HTTP endpoint."""
    answer_timeout: float = 600.0
    """Seconds that a call waits for the user's answer to a server's question."""
    state_keys: tuple[str, ...] = field(default=(), repr=False)
    """Secrets that seal what clients keep for us between two rounds: the first seals, all open. None: of this process
    alone."""
    session_idle: float = 300.0
    """Seconds without an open request or stream after which an HTTP session of a 2025-11-25 client ends."""
    drain: float = 10.0
    """Seconds that calls in flight get to end when we are told to stop. 0: none."""
    allowed_hosts: tuple[str, ...] = ()
    """`Host` headers that are served beside those of loopback: a name, a name with a port, or with `:*` for any."""
    allowed_origins: tuple[str, ...] = ()
    """`Origin` headers that are served beside those of loopback."""
    log_format: LogFormat = "text"
    """What a line of the log is: words, or a JSON object."""


@dataclass(frozen=True, slots=True)
class LockPolicy:
    """Where definitions are pinned, and what is done about those that differ."""

    mode: LockMode | None = None
    """None: `block` where the file is there, else `off`."""
    file: str | None = None
    """None: there is none."""


@dataclass(frozen=True, slots=True)
class AuditPolicy:
    """Where it is written down who called, read and was refused what."""

    path: str | None = None
    """A file of JSON lines. None: it is not."""
    required: bool = False
    """Nothing is called that cannot be written down."""
    key: str | None = field(default=None, repr=False)
    """What the hashes of memory paths are made with. None: this process's own."""


@dataclass(frozen=True, slots=True)
class Config:
    """A whole configuration, parsed."""

    upstreams: tuple[UpstreamPolicy, ...] = ()
    mirror: MirrorPolicy = field(default_factory=MirrorPolicy)
    memory_tools: MemoryToolsPolicy = field(default_factory=MemoryToolsPolicy)
    context: ContextPolicy = field(default_factory=ContextPolicy)
    store: StorePolicy = field(default_factory=StorePolicy)
    server: ServerPolicy = field(default_factory=ServerPolicy)
    limits: WirePolicy = field(default_factory=WirePolicy)
    lock: LockPolicy = field(default_factory=LockPolicy)
    auth: AuthPolicy = field(default_factory=AuthPolicy)
    flows: FlowsPolicy = field(default_factory=FlowsPolicy)
    audit: AuditPolicy = field(default_factory=AuditPolicy)
    warnings: tuple[str, ...] = ()
    """What was read but has no effect here, a sentence each, for the operator."""

    @property
    def is_transparent(self) -> bool:
        """Whether nothing is renamed and nothing stored: clients see the upstreams' own tools, and nothing of ours."""
        return (
            not self.mirror.suffix
            and self.mirror.capture == "never"
            and not any(upstream.may_capture for upstream in self.upstreams)
        )
