"""An upstream on the SDK with a behaviour for everything that is relayed, for one protocol version.

`upstream.py http ERA` prints its port; `upstream.py stdio ERA`. ERA is `2025-11-25` (it supports only the handshake) or
`2026-07-28` (it refuses the handshake).
"""

import asyncio
import json
import socket
import sys
import warnings
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
import uvicorn
from input_requests import Ctx, Interview, is_modern, request_input
from mcp.server import CacheHint, Server
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ServerEvent,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp.shared.subscriptions import event_to_notification
from mcp_types import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    CallToolRequestParams,
    CallToolResult,
    EmptyResult,
    InputRequiredResult,
    ListToolsResult,
    SetLevelRequestParams,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    SubscriptionsListenResult,
    TextContent,
    Tool,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from resources_and_prompts import complete, get_prompt, list_prompts, list_resources, list_templates, read_resource
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OLD: Final = "2025-11-25"
_CACHED: Final = ("tools/list", "prompts/list", "resources/list", "resources/templates/list", "resources/read")
"""Methods with the same result for all clients."""
LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
STRANGE: Final = {"x-strange": {"kept": [1, None, {"deep": "ü"}]}}
"""What the protocol does not know, added to all that is listed and read."""
_ICONS: Final = [{"src": "https://example.com/icon.png", "mimeType": "image/png", "sizes": ["48x48"], **STRANGE}]
_ANNOTATIONS: Final = {"audience": ["user"], "readOnlyHint": True, **STRANGE}
_LISTED: Final = {
    "tools/list": "tools",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
    "resources/read": "contents",
    "prompts/get": "messages",
}
_EVENTS: Final[Mapping[str, ServerEvent]] = {
    "tools": ToolsListChanged(),
    "resources": ResourcesListChanged(),
    "prompts": PromptsListChanged(),
}


@dataclass(slots=True)
class Shelf:
    """What calls change."""

    bus: InMemorySubscriptionBus = field(default_factory=InMemorySubscriptionBus)
    added: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_EVENTS, 0))
    watched: list[str] = field(default_factory=list)
    level: str = ""
    """The last level of `logging/setLevel`."""


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    ctx: Ctx
    shelf: Shelf
    params: CallToolRequestParams

    @property
    def given(self) -> Mapping[str, Any]:
        return self.params.arguments or {}


Outcome = CallToolResult | InputRequiredResult


def say(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)])


async def echo(call: Call) -> Outcome:
    return say(json.dumps(call.given))


async def count(call: Call) -> Outcome:
    for number in range(call.given["times"]):
        await call.ctx.session.report_progress(number, call.given["times"], f"step {number}")
    return say("counted")


async def log(call: Call) -> Outcome:
    """A line of each level, whatever was asked for; then what was."""
    for level in LEVELS:
        await call.ctx.session.send_log_message(
            level,
            {"line": level},
            logger="upstream",
            related_request_id=call.ctx.request_id,
        )
    return say(call.shelf.level)


async def interview(call: Call) -> Outcome:
    params = call.params
    interview = Interview(
        call.ctx, call.given["rounds"], call.given.get("value"), params.input_responses, params.request_state
    )
    try:
        outcome = await request_input(interview)
    finally:
        if "over" in call.given:
            Path(call.given["over"]).touch()
    return outcome if isinstance(outcome, InputRequiredResult) else say(outcome)


async def whoami(call: Call) -> Outcome:
    capabilities = call.ctx.session.client_capabilities
    return say(
        json.dumps(capabilities.model_dump(by_alias=True, mode="json", exclude_none=True) if capabilities else {})
    )


async def touch(call: Call) -> Outcome:
    """Update a resource."""
    uri = call.given["uri"]
    await call.shelf.bus.publish(ResourceUpdated(uri=uri))
    if not is_modern(call.ctx) and uri in call.shelf.watched:
        await call.ctx.session.send_resource_updated(uri)
    return say("touched")


async def watched(call: Call) -> Outcome:
    return say(json.dumps(call.shelf.watched))


async def change(call: Call) -> Outcome:
    """Add to a list, and tell."""
    kind = call.given["kind"]
    call.shelf.added[kind] += 1
    event = _EVENTS[kind]
    await call.shelf.bus.publish(event)
    if not is_modern(call.ctx):
        await call.ctx.session.send_notification(event_to_notification(event, {}))
    return say("changed")


async def hang(call: Call) -> Outcome:
    """Never answer; files tell when it began and that it was cancelled."""
    Path(call.given["began"]).touch()
    try:
        await anyio.sleep_forever()
    finally:
        Path(call.given["cancelled"]).touch()
    return say("never")


async def grow(call: Call) -> Outcome:
    """A value that is worth storing."""
    return say(json.dumps({"rows": [{"number": number} for number in range(call.given["rows"])]}))


TOOLS: Final[Mapping[str, Callable[[Call], Awaitable[Outcome]]]] = {
    one.__name__: one for one in (echo, count, log, interview, whoami, touch, watched, change, hang, grow)
}
"""Beside these there is `raw`, whose result is its argument, past the SDK."""

_RESULTS: Final = {"type": "object", "properties": {"value": {}, "rounds": {"type": "string"}}}


async def list_tools(shelf: Shelf) -> ListToolsResult:
    more = [f"more_{number}" for number in range(shelf.added["tools"])]
    return ListToolsResult(tools=[Tool(name=name, input_schema=_RESULTS) for name in (*TOOLS, "raw", *more)])


async def call_tool(shelf: Shelf, ctx: Ctx, params: CallToolRequestParams) -> Outcome:
    if params.name not in TOOLS:
        raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
    return await TOOLS[params.name](Call(ctx, shelf, params))


class Upstream(Server[Any]):
    """A server with changing lists, which announces the changes in protocol version 2025-11-25 too."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(
            prompts_changed=True, resources_changed=True, tools_changed=True
        )
        return super().create_initialization_options(options, experimental_capabilities, extensions)


def build(version: str) -> Upstream:
    """The server."""
    shelf = Shelf()
    listening = ListenHandler(shelf.bus)

    async def listen(ctx: Ctx, params: SubscriptionsListenRequestParams) -> SubscriptionsListenResult:
        uris = list(params.notifications.resource_subscriptions or ())
        shelf.watched += uris
        try:
            return await listening(ctx, params)
        finally:
            for uri in uris:
                shelf.watched.remove(uri)

    async def subscribe(_: Ctx, params: SubscribeRequestParams) -> EmptyResult:
        shelf.watched.append(str(params.uri))
        return EmptyResult()

    async def unsubscribe(_: Ctx, params: UnsubscribeRequestParams) -> EmptyResult:
        shelf.watched.remove(str(params.uri))
        return EmptyResult()

    async def set_level(_: Ctx, params: SetLevelRequestParams) -> EmptyResult:
        shelf.level = params.level
        return EmptyResult()

    server = Upstream(
        "upstream",
        version="1.0.0",
        cache_hints={method: CacheHint(ttl_ms=0, scope="public") for method in _CACHED},
        on_list_tools=lambda _, __: list_tools(shelf),
        on_call_tool=lambda ctx, params: call_tool(shelf, ctx, params),
        on_list_resources=lambda _, __: list_resources(shelf.added["resources"]),
        on_list_resource_templates=lambda _, __: list_templates(),
        on_read_resource=read_resource,
        on_subscribe_resource=subscribe,
        on_unsubscribe_resource=unsubscribe,
        on_subscriptions_listen=listen,
        on_list_prompts=lambda _, __: list_prompts(shelf.added["prompts"]),
        on_get_prompt=get_prompt,
        on_completion=lambda _, params: complete(params),
    )
    server.add_request_handler("logging/setLevel", SetLevelRequestParams, set_level)
    boundary = RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience="upstream")
    server.middleware[:] = [_refuse_handshakes, boundary, _add_strange] if version != OLD else [boundary, _add_strange]
    return server


async def _refuse_handshakes(ctx: Ctx, call_next: CallNext) -> HandlerResult:
    if ctx.method == "initialize":
        raise MCPError(METHOD_NOT_FOUND, "Method not found")
    return await call_next(ctx)


async def _add_strange(ctx: Ctx, call_next: CallNext) -> HandlerResult:
    """Write what the SDK would leave out."""
    params = ctx.params or {}
    if ctx.method == "tools/call" and params.get("name") == "raw":
        envelope = {"resultType": "complete"} if is_modern(ctx) else {}
        return {**envelope, **params["arguments"]["value"]}
    result = await call_next(ctx)
    if isinstance(result, dict) and (member := _LISTED.get(ctx.method)) in result:
        more = (
            {"icons": _ICONS, "title": "A title", "annotations": _ANNOTATIONS} if ctx.method.endswith("/list") else {}
        )
        result[member] = [{**item, **more, **STRANGE, "_meta": {"example.com/of": "us"}} for item in result[member]]
    return result


def _of_the_handshake_version(app: ASGIApp) -> ASGIApp:
    """Refuse requests that servers of this protocol version do not know, with text instead of JSON, as they do."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        version = dict(scope.get("headers", [])).get(b"mcp-protocol-version", b"").decode()
        if version in MODERN_PROTOCOL_VERSIONS:
            await PlainTextResponse(f"Bad Request: Unsupported protocol version: {version}", 400)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return serve


async def serve_http(version: str) -> None:
    """Serve Streamable HTTP on the loopback address."""
    app: ASGIApp = build(version).streamable_http_app()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        served = _of_the_handshake_version(app) if version == OLD else app
        config = uvicorn.Config(served, log_level="error", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listening])


async def serve_stdio(version: str) -> None:
    """Serve one client on standard input and output."""
    server = build(version)
    async with stdio_server() as (source, sink):
        if version == OLD:
            async with server.lifespan(server) as state:
                await serve_loop(server, source, sink, lifespan_state=state)
        else:
            await server.run(source, sink, server.create_initialization_options())


if __name__ == "__main__":
    warnings.simplefilter("ignore", MCPDeprecationWarning)  # logging and sampling are what is relayed
    asyncio.run({"http": serve_http, "stdio": serve_stdio}[sys.argv[1]](sys.argv[2]))
