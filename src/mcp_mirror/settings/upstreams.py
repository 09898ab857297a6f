"""The settings of upstreams: what to start or connect to, which tools to serve, and how."""

from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import chain
from typing import Annotated, Literal
from urllib.parse import urlsplit

from msgspec.structs import replace

from mcp_mirror.settings.access import OAuthPolicy
from mcp_mirror.settings.declarations import (
    FILE_ONLY,
    INLINE,
    INTERNAL,
    NAME,
    SECRET,
    Address,
    Bytes,
    ClientEnvironment,
    ClientHeaderNames,
    Command,
    Duration,
    Environment,
    Example,
    FilePath,
    Globs,
    Group,
    Headers,
    Line,
    Scopes,
    Section,
    Whole,
    Words,
)
from mcp_mirror.settings.labels import PlacePolicy
from mcp_mirror.settings.limits import UpstreamBounds

CaptureMode = Literal["auto", "large", "always", "never"]
ProtocolVersion = Literal["2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28"]
"""The published versions in their order."""
Scope = Literal["shared", "principal", "session"]
Transport = Literal["stdio", "streamable-http", "sse"]
LockMode = Literal["off", "warn", "block"]

_NONE: Mapping[str, str] = {}
_TOOLS = Group("tools", "The tools of this upstream that the gateway serves.")
_AUTH = Group(
    "auth", "How the gateway authenticates to this upstream; it never uses a client's token.", is_required=True
)


class StdioEndpoint(Section, frozen=True):
    """A program to start. Arguments and environment may contain secrets, so `repr` omits them."""

    command: Annotated[Command, Example("npx")]
    """The program to start; it speaks MCP on its stdin and stdout. `${PYTHON}` is the gateway's own Python."""
    args: Annotated[Words, SECRET, Example(("-y", "@modelcontextprotocol/server-filesystem", "${HOME:-.}"))] = ()
    """Arguments of the program."""
    env: Annotated[Environment, SECRET, Example({"NODE_ENV": "production"})] = _NONE
    """Environment variables of the program. Keep secrets out of the file with `${VAR}`."""
    cwd: Annotated[FilePath | None, Example("~")] = None
    """Folder to start the program in, relative to this file's folder. Default: the gateway's own."""
    client_env: Annotated[ClientEnvironment, Example({"CRM_TOKEN": "X-Crm-Token"})] = _NONE
    """Variables with a value of each client, and the header of the client's HTTP requests that has the value. Each
    client has a process of its own. A value of the variable in `env` is only for lists, and for gateways on stdio. See
    the guide "Several people"."""
    is_wrapped: Annotated[bool, INTERNAL] = False
    """The gateway replaces the program in the client: `env` is the program's whole environment, and its standard error
    is passed on."""

    def with_client_values(self, values: Mapping[str, str]) -> "StdioEndpoint":
        """Return the program with the values of a client in place of the configured ones."""
        return replace(self, env={**self.env, **values})


def is_sse_address(url: str) -> bool:
    """Whether an address without a named transport has the HTTP+SSE transport: its servers use the path `/sse`."""
    return urlsplit(url).path.rstrip("/").endswith("/sse")


class HttpEndpoint(Section, frozen=True):
    """An address to connect to. Address and headers may contain secrets, so `repr` omits them."""

    url: Annotated[Address, SECRET, Example("https://api.githubcopilot.com/mcp/")]
    """Address of a remote MCP server."""
    headers: Annotated[Headers, SECRET, Example({"Authorization": "Bearer ${GITHUB_TOKEN}"})] = _NONE
    """HTTP headers to send with every request."""
    client_headers: Annotated[ClientHeaderNames, Example({"Authorization": "X-Crm-Authorization"})] = _NONE
    """Headers with a value of each client, and the header of the client's HTTP requests that has the value. Each client
    has a connection of its own. A value of the header in `headers` is only for lists, and for gateways on stdio. See
    the guide "Several people"."""
    legacy_sse: Annotated[bool, INTERNAL] = False
    """Use the HTTP+SSE transport of 2024-11-05 instead of Streamable HTTP."""
    is_wrapped: Annotated[bool, INTERNAL] = False
    """The gateway replaces the server in the client, and no configuration names the server."""
    oauth: Annotated[OAuthPolicy | None, _AUTH] = None
    """Tokens by OAuth 2.1."""
    allow_private: bool = False
    """Allow names of this upstream, and of servers that it refers to, to resolve to private addresses: this machine, a
    local network, cloud metadata. An address that `url` itself contains is always allowed."""

    def with_client_values(self, values: Mapping[str, str]) -> "HttpEndpoint":
        """Return the address with the headers of a client in place of the configured ones."""
        replaced = {name.lower() for name in values}
        kept = {name: value for name, value in self.headers.items() if name.lower() not in replaced}
        return replace(self, headers={**kept, **values})


class LocalEndpoint(Section, frozen=True):
    """Functions of the program that the gateway runs in: nothing to start, nowhere to connect."""


class ToolPolicy(Section, frozen=True, kw_only=True):
    """Settings of the tools that match a glob. If several globs match, later ones win key by key, and scopes add up."""

    capture: Annotated[CaptureMode | None, Example("always")] = None
    """As `mirror.capture`, for these tools."""
    inline_budget: Annotated[Whole | None, Example(200)] = None
    """As `mirror.inline_budget`, for these tools, in tokens."""
    timeout: Annotated[Duration | None, Example(10)] = None
    """Time that one call of these tools may take. Default: the upstream's `timeout`."""
    description: Annotated[Line | None, Example("Read one text file whole.")] = None
    """Replaces the upstream's description of these tools."""
    listed: Annotated[bool | None, Example(value=True)] = None
    """True: clients see these tools in `tools/list` also where `mirror.listing` makes them search for the others."""
    required_scopes: Annotated[Scopes | None, Example(("files.write",))] = None
    """Scopes that a principal's token needs to see and call these tools, in addition to the upstream's. Needs
    `auth`."""


_TOOL_FIELDS = tuple(ToolPolicy.__struct_fields__)


class UpstreamPolicy(Section, frozen=True):
    """One MCP server: a program to start (`command`) or an address to connect to (`url`)."""

    name: Annotated[str, NAME]
    endpoint: Annotated[StdioEndpoint | HttpEndpoint | LocalEndpoint, INLINE]
    timeout: Annotated[Duration, Example(120)] = 60.0
    """Time that one request may take. There is always a limit."""
    startup_timeout: Duration = 60.0
    """Time that connecting and listing the tools may take."""
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
    """The clients that share a connection to this upstream: all clients (shared), the clients of one principal, or one
    client session. Default: shared for protocol version 2026-07-28, else session, because requests and log messages of
    older servers do not name the call that caused them."""
    repeat_read_only: bool = False
    """Repeat a call once if its connection was lost and the server marks the tool read-only. Other calls are never
    repeated."""
    progress_resets_timeout: bool = False
    """Restart a request's timeout at each progress notification."""
    max_request_bytes: Annotated[Bytes | None, Example("32MiB")] = None
    """Bytes of the largest arguments to send. Default: the known limit of its kind: 4 MiB over HTTP, 10 MiB for a
    program that Node runs, `limits.max_message_bytes` for other programs."""
    lock: Annotated[LockMode | None, Example("block")] = None
    """As `lock.mode`, for this upstream."""
    preview: bool = True
    """As `mirror.preview`, for this upstream, which is also the default."""
    place: Annotated[PlacePolicy, INLINE] = PlacePolicy()
    bounds: Annotated[UpstreamBounds, INTERNAL] = UpstreamBounds()
    """The limits of its requests and lists: `limits`."""
    transport: Annotated[Transport | None, FILE_ONLY, Example("stdio")] = None
    """Transport. Default: stdio for `command`; for `url` sse if the path ends with `/sse`, else streamable-http."""
    enabled: Annotated[bool, FILE_ONLY] = True
    """False leaves this upstream out; its variables may then be unset."""

    def admits(self, tool: str) -> bool:
        """Return whether a tool of this name is served: a glob allows it and none denies it (case matters)."""
        return is_admitted(tool, self.allow, self.deny)

    @property
    def is_wrapped(self) -> bool:
        """Whether the gateway replaces this upstream in the client, and no configuration names the upstream."""
        return not isinstance(self.endpoint, LocalEndpoint) and self.endpoint.is_wrapped

    @property
    def client_values(self) -> Mapping[str, str]:
        """The headers or variables with a value of each client, and the header of its requests that has the value."""
        if isinstance(self.endpoint, StdioEndpoint):
            return self.endpoint.client_env
        return self.endpoint.client_headers if isinstance(self.endpoint, HttpEndpoint) else _NONE

    @property
    def is_scoped(self) -> bool:
        """Whether some principals may see what others do not."""
        return bool(self.required_scopes or self.client_values) or any(
            policy.required_scopes for _, policy in self.overrides
        )

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


def is_admitted(tool: str, allow: tuple[str, ...], deny: tuple[str, ...]) -> bool:
    """Return whether a tool is served: a glob allows it and none denies it (case matters)."""
    return any(fnmatchcase(tool, glob) for glob in allow) and not any(fnmatchcase(tool, glob) for glob in deny)
