"""The keys of a configuration with their types, defaults and documentation, each in one place.

The same models check a file and make the JSON Schema for editors. This module must not know files, variables or
clients' dialects, nor how a kind of field is read.
"""

import re
from typing import Annotated, Final

from pydantic import Field

from mcp_mirror.config.access import AuthSection, ScopedSection, UpstreamAuthSection
from mcp_mirror.config.fields import (
    Bytes,
    Capture,
    Command,
    Duration,
    Environment,
    Flag,
    Globs,
    Headers,
    Host,
    Listed,
    Locking,
    Logging,
    Notice,
    Origin,
    OrNothing,
    Pause,
    Percent,
    Protocols,
    Provider,
    Scopes,
    Seconds,
    Secrets,
    Storage,
    Suffix,
    Text,
    TransportName,
    Url,
    UrlPath,
    Whole,
    Window,
    Words,
)
from mcp_mirror.config.flows import Flowing, FlowsSection, UpstreamPlaceSection
from mcp_mirror.config.limits import LimitsSection
from mcp_mirror.config.trust import AuditSection, EncryptionSection, LockSection, Section
from mcp_mirror.settings.policies import (
    ContextPolicy,
    MemoryToolsPolicy,
    MirrorPolicy,
    ServerPolicy,
    StdioEndpoint,
    StorePolicy,
    UpstreamPolicy,
)

UPSTREAM_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

_MIRROR: Final = MirrorPolicy()
_MEMORY_TOOLS: Final = MemoryToolsPolicy()
_CONTEXT: Final = ContextPolicy()
_STORE: Final = StorePolicy()
_SERVER: Final = ServerPolicy()
_UPSTREAM: Final = UpstreamPolicy("", StdioEndpoint(""))


class ToolsSection(Section):
    """Which of an upstream's tools are served. Globs are `*`, `?` and `[...]`; case matters."""

    allow: Globs = Field(
        default=_UPSTREAM.allow, description="Globs of the tools that are served.", examples=[["read_*"]]
    )
    deny: Globs = Field(
        default=_UPSTREAM.deny,
        description="Globs of the tools that are not served, even if allowed.",
        examples=[["write_*"]],
    )


class OverrideSection(ScopedSection):
    """What the tools that match one glob do differently. Of several, a later one wins key by key, and scopes add up."""

    capture: Capture | None = Field(default=None, description="As `mirror.capture`, for these tools.")
    inline_budget: Whole | None = Field(
        default=None, description="As `mirror.inline_budget`, for these tools, in tokens."
    )
    timeout: Seconds | None = Field(default=None, description="Seconds that one call of these tools may take.")
    description: Text | None = Field(default=None, description="Replaces the upstream's description of these tools.")


class UpstreamSection(UpstreamPlaceSection, ScopedSection):
    """One MCP server: a program to start (`command`) or an address to connect to (`url`)."""

    command: Command | None = Field(
        default=None,
        description="Program to start, speaking MCP on its stdin and stdout. `${PYTHON}` is this gateway's own Python.",
        examples=["npx"],
    )
    args: Words = Field(
        default=(), repr=False, description="Arguments of the program.", examples=[["-y", "some-mcp-server"]]
    )
    env: Environment = Field(
        default_factory=dict,
        repr=False,
        description="Environment variables of the program. Keep secrets out of the file with `${VAR}`.",
        examples=[{"TOKEN": "${TOKEN}"}],
    )
    cwd: Text | None = Field(
        default=None,
        description="Folder to start the program in; relative to this file's folder. By default the gateway's own.",
        examples=["~/work"],
    )
    url: Url | None = Field(
        default=None, repr=False, description="Address of a remote MCP server.", examples=["https://example.com/mcp"]
    )
    headers: Headers = Field(
        default_factory=dict,
        repr=False,
        description="HTTP headers to send to it.",
        examples=[{"Authorization": "Bearer ${TOKEN}"}],
    )
    allow_private: Flag = Field(
        default=False,
        description="Names that this upstream has, and those that it sends the gateway to, may lead to private "
        "addresses: this machine, a local network, a cloud's metadata. An address that `url` itself names needs none "
        "of this.",
    )
    auth: UpstreamAuthSection | None = Field(
        default=None, description="How to get tokens for it; the gateway's own, never a client's."
    )
    transport: TransportName | None = Field(
        default=None, description="How to speak to it. By default stdio for `command` and streamable-http for `url`."
    )
    timeout: Seconds = Field(
        default=_UPSTREAM.timeout,
        description="Seconds that one request may take. Never without a limit.",
        examples=[120],
    )
    startup_timeout: Seconds = Field(
        default=_UPSTREAM.startup_timeout, description="Seconds that connecting and listing the tools may take."
    )
    max_request_bytes: Bytes | None = Field(
        default=None,
        description="Bytes of the largest arguments that are sent to it. By default what its kind is known to take: "
        "4 MiB over HTTP, 10 MiB for a program that Node runs, any for another program.",
        examples=["32MiB"],
    )
    oldest_protocol: Protocols | None = Field(
        default=None,
        description="A server that speaks an older version of the protocol is not used.",
        examples=["2025-06-18"],
    )
    scope: Scopes | None = Field(
        default=None,
        description="Whose one connection to it is: everybody's (shared), one principal's, or one client session's. "
        "By default shared where the server speaks the protocol of 2026, else session: there its questions and log "
        "lines do not say whose they are.",
    )
    repeat_read_only: Flag = Field(
        default=_UPSTREAM.repeat_read_only,
        description="A call of a tool that its server marks read-only is made once more where the connection was lost. "
        "No other call ever is.",
    )
    progress_resets_timeout: Flag = Field(
        default=_UPSTREAM.progress_resets_timeout,
        description="News of a request's progress gives it its whole timeout again.",
    )
    lock: Locking | None = Field(default=_UPSTREAM.lock, description="As `lock.mode`, for this upstream.")
    preview: Flag | None = Field(default=None, description="As `mirror.preview`, for this upstream.")
    enabled: Flag = Field(default=True, description="False leaves this upstream out; its variables may then be unset.")
    tools: Annotated[ToolsSection, OrNothing] = Field(
        default=ToolsSection(), description="Which of its tools are served."
    )
    overrides: Annotated[dict[str, OverrideSection], OrNothing] = Field(
        default_factory=dict,
        description="What single tools do differently, by globs of their names.",
        examples=[{"read_*": {"inline_budget": 200}}],
    )


class MirrorSection(Section):
    """How twins look and what stays out of the model's context. Budgets are estimated tokens."""

    suffix: Suffix = Field(
        default=_MIRROR.suffix,
        description="What a twin's name adds to its tool's name. With \"\" and `capture: never` nothing is changed "
        "at all: clients see the upstreams' own tools, and nothing of this gateway's.",
    )
    capture: Capture = Field(
        default=_MIRROR.capture,
        description="Which results are stored. auto: objects, and other results from 300 tokens on; those within the "
        "inline budget are shown with their path. large: only results over the inline budget. always. never.",
    )
    inline_budget: Whole = Field(
        default=_MIRROR.inline_budget,
        description="Tokens up to which a result is shown to the model whole (expected tokens, not a bound).",
    )
    answer_budget: Whole = Field(
        default=_MIRROR.answer_budget, description="Tokens up to which a stored value is brought back whole."
    )
    read_budget: Whole = Field(
        default=_MIRROR.read_budget,
        description="Tokens of a stored value that a memory tool shows at once; `memory_tools.read_characters` too.",
    )
    error_budget: Whole = Field(
        default=_MIRROR.error_budget, description="Tokens up to which an error result is shown whole."
    )
    provider: Provider = Field(
        default=_MIRROR.provider,
        description="Whose tokens the budgets are: openai, anthropic, anthropic-4.6 (Claude 3 to Opus 4.6), google, "
        "llama or mistral. default: never too few for any of them.",
    )
    notice: Notice = Field(default=_MIRROR.notice, description="What the model reads instead of a stored result.")
    expose_originals: Flag = Field(
        default=_MIRROR.expose_originals, description="List each original tool beside its twin, which needs a suffix."
    )
    capture_resources: Flag = Field(
        default=_MIRROR.capture_resources,
        description="Store resources and prompts over the inline budget like results; else they pass as they are.",
    )
    resource_links: Flag = Field(
        default=_MIRROR.resource_links,
        description="Follow a notice with a link to the stored value as a resource (`memory://...`).",
    )
    preview: Flag = Field(
        default=_MIRROR.preview,
        description="False: everything that tools answer is stored, errors too, and a notice holds no byte of it: keys "
        "are told by position, values by type and size.",
    )
    startup_wait: Pause = Field(
        default=_MIRROR.startup_wait,
        description="Seconds that the first listing waits for upstreams that are still starting.",
    )
    stages: Words = Field(
        default=_MIRROR.stages,
        description="Names of your own stages of tool calls, the outermost first: entry points in the group "
        "`mcp_mirror.stages`.",
        examples=[["quota"]],
    )


class MemoryToolsSection(Section):
    """The gateway's own tools, which read, search and change stored values."""

    allow: Globs = Field(
        default=_MEMORY_TOOLS.allow, description="Globs of the memory tools that are served.", examples=[["*"]]
    )
    deny: Globs = Field(
        default=_MEMORY_TOOLS.deny,
        description="Globs of those that are not, even if allowed.",
        examples=[["memory_forget"]],
    )
    roots: Words = Field(
        default=_MEMORY_TOOLS.roots,
        description="Folders, relative to this file's, under which memory_import and memory_export may read and write "
        "files. By default none, and neither tool is there.",
        examples=[["~/exchange"]],
    )
    timeout: Seconds = Field(default=_MEMORY_TOOLS.timeout, description="Seconds that looking into one value may take.")
    read_characters: Whole = Field(
        default=_MEMORY_TOOLS.read_characters,
        description="Characters that a memory tool shows at once, whatever `mirror.read_budget` says: some clients cut "
        "longer results.",
    )
    query_bytes: Bytes = Field(
        default=_MEMORY_TOOLS.query_bytes,
        description="Bytes of the largest value that memory_query takes in or gives.",
        examples=["64MiB"],
    )


class ContextSection(Section):
    """How much of a conversation's context window tools' answers may fill. Off without a window."""

    window: Window | None = Field(
        default=None,
        description="Tokens of the model's context window. By default no account of conversations is kept.",
        examples=[200_000],
    )
    reserve: Percent = Field(
        default=_CONTEXT.reserve, description="The part of it that is kept for what users and models write."
    )


class StoreSection(Section):
    """Where values are kept and for how long."""

    kind: Storage | None = Field(
        default=None,
        description="disk: in files that outlive the gateway. memory: in this process, gone when it ends. redis: in a "
        "Redis or Valkey server, for several gateways. By default disk on standard streams, memory over HTTP.",
    )
    path: Text | None = Field(
        default=None,
        description="Folder of the disk store, relative to this file's folder. By default the user's data folder.",
        examples=["~/.local/share/mcp-mirror"],
    )
    url: Text | None = Field(
        default=None,
        repr=False,
        description="Address of the Redis or Valkey server: redis://, rediss:// for TLS, or unix://.",
        examples=["rediss://user:${REDIS_PASSWORD}@redis.example.com:6379/0"],
    )
    prefix: Text = Field(default=_STORE.prefix, description="What the keys in Redis begin with.")
    encryption: Annotated[EncryptionSection, OrNothing] | None = Field(
        default=None, repr=False, description="By default values are kept in clear."
    )
    fsync: Flag = Field(
        default=_STORE.fsync,
        description="Whether a value is on the disk before its path is told. Without, it may be lost where the machine "
        "stops, not where the gateway does.",
    )
    ttl: Duration | None = Field(
        default=None,
        description="Seconds since its last use after which a value is forgotten; suffixes s, m, h, d. By default 7 "
        "days on disk, else 24 hours.",
        examples=["24h"],
    )
    max_value_bytes: Bytes = Field(
        default=_STORE.max_value_bytes,
        description="Bytes of one value; suffixes KB, MB, GB, KiB, MiB, GiB.",
        examples=["2GiB"],
    )
    max_bytes: Bytes = Field(default=_STORE.max_bytes, description="Bytes of all values together.", examples=["8GiB"])
    max_values: Whole = Field(default=_STORE.max_values, description="How many values to keep, all together.")
    namespace_bytes: Bytes | None = Field(
        default=None,
        description="Bytes of one principal's values. By default a quarter of `max_bytes` with `auth`, else all of it.",
        examples=["1GiB"],
    )
    namespace_values: Whole | None = Field(
        default=None,
        description="How many values to keep of one principal. By default a quarter of `max_values` with `auth`, else "
        "all of them.",
    )


class ServerSection(Section):
    """How the gateway presents itself to clients."""

    name: Text = Field(default=_SERVER.name, description="The name that clients see.")
    instructions: Text | None = Field(default=None, description="Text for the model, put before the gateway's own.")
    path: UrlPath = Field(default=_SERVER.path, description="Path of the HTTP endpoint.")
    answer_timeout: Seconds = Field(
        default=_SERVER.answer_timeout,
        description="Seconds that a call waits for the user's answer to a question of its server.",
    )
    state_keys: Secrets = Field(
        default=_SERVER.state_keys,
        repr=False,
        description="Secrets that seal what clients keep between two rounds of a call; the first seals, all open. "
        "Replicas need the same. By default one that this process alone knows.",
        examples=[["${STATE_KEY}"]],
    )
    session_idle: Seconds = Field(
        default=_SERVER.session_idle,
        description="Seconds without an open request or stream after which an HTTP session (protocol of 2025) ends, "
        "with the upstream connections that were made for it.",
    )
    drain: Pause = Field(
        default=_SERVER.drain,
        description="Seconds that calls in flight get to end when the gateway is told to stop. 0: none.",
    )
    allowed_hosts: Annotated[tuple[Host, ...], Listed] = Field(
        default=_SERVER.allowed_hosts,
        description="Names, beside those of loopback, under which clients may reach it: the `Host` header.",
        examples=[["tools.example.com", "10.0.0.5:*"]],
    )
    allowed_origins: Annotated[tuple[Origin, ...], Listed] = Field(
        default=_SERVER.allowed_origins,
        description="Web origins, beside those of loopback, whose pages may reach it: the `Origin` header.",
        examples=[["https://app.example.com"]],
    )
    log_format: Logging = Field(
        default=_SERVER.log_format, description="What a line of the log, on standard error, is: text or a JSON object."
    )


class ConfigFile(Section):
    """Configuration of mcp-mirror."""

    upstreams: dict[str, UpstreamSection] = Field(
        default_factory=dict,
        description="The MCP servers to connect to, by names of A-Z, a-z, 0-9, _, - and dots.",
        json_schema_extra={"propertyNames": {"pattern": f"^{UPSTREAM_NAME.pattern}$"}},
    )
    mirror: Annotated[MirrorSection, OrNothing] = Field(
        default=MirrorSection(), description="The twins and what they keep out of the context."
    )
    memory_tools: Annotated[MemoryToolsSection, OrNothing] = Field(
        default=MemoryToolsSection(), description="The gateway's own tools, which work on stored values."
    )
    context: Annotated[ContextSection, OrNothing] = Field(
        default=ContextSection(), description="The budget of one conversation; off by default."
    )
    store: Annotated[StoreSection, OrNothing] = Field(
        default=StoreSection(), description="The memory that values are kept in."
    )
    server: Annotated[ServerSection, OrNothing] = Field(default=ServerSection(), description="The gateway's own face.")
    limits: Annotated[LimitsSection, OrNothing] = Field(
        default=LimitsSection(), description="How much clients and upstreams may send, ask and list."
    )
    lock: Annotated[LockSection, OrNothing] = Field(
        default=LockSection(), description="Tools that are held to their locked definitions."
    )
    auth: Annotated[AuthSection, OrNothing] = Field(default=AuthSection(), description="Who is let in over HTTP.")
    flows: Flowing = Field(default=FlowsSection(), description="Which values may go where, by their labels.")
    audit: Annotated[AuditSection, OrNothing] = Field(
        default=AuditSection(), description="Who called, read and was refused what, in a file."
    )
