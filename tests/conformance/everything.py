"""An upstream on the SDK with everything that the conformance suite requires, in both protocol versions.

`everything.py http [PORT]` prints its port; `everything.py stdio`. With `--era 2025-11-25` at the end it supports only
this protocol version.
"""

import asyncio
import socket
import sys
import warnings
from typing import Any, Final

import uvicorn
from everything_pages import COMPLETIONS, MORE_PROMPT, PROMPTS, RESOURCES, TEMPLATES, get_prompt, read
from everything_shelf import Ctx, Replay, Shelf, name_session
from everything_tools import MORE, TOOLS, Call, Outcome
from mcp.server import Server
from mcp.server.caching import CacheHint
from mcp.server.lowlevel.server import NotificationOptions
from mcp.server.models import InitializationOptions
from mcp.server.request_state import RequestStateBoundary, RequestStateSecurity
from mcp.server.runner import serve_loop
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import ListenHandler
from mcp.shared.exceptions import MCPDeprecationWarning, MCPError
from mcp_types import (
    INVALID_PARAMS,
    CallToolRequestParams,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    EmptyResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    ListToolsResult,
    PaginatedRequestParams,
    ReadResourceRequestParams,
    ReadResourceResult,
    SetLevelRequestParams,
    SubscribeRequestParams,
    UnsubscribeRequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

_NAME: Final = "everything"
_RETRY: Final = 100
"""Milliseconds that a client waits before it comes back to a stream that was closed."""


class Everything(Server[Any]):
    """A server with changing lists, which announces the changes in protocol version 2025-11-25 too."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        options = notification_options or NotificationOptions(prompts_changed=True, tools_changed=True)
        return super().create_initialization_options(options, experimental_capabilities, extensions)


def build(shelf: Shelf) -> Everything:
    """The server."""
    forever = CacheHint(ttl_ms=60_000, scope="public")
    server = Everything(
        _NAME,
        version="1.0.0",
        instructions="A server to test with.",
        cache_hints={"resources/templates/list": forever, "resources/read": forever},
        on_list_tools=lambda _, params: _list_tools(shelf, params),
        on_call_tool=lambda ctx, params: _call_tool(shelf, ctx, params),
        on_list_resources=_list_resources,
        on_list_resource_templates=_list_templates,
        on_read_resource=_read_resource,
        on_subscribe_resource=lambda ctx, params: _subscribe(shelf, ctx, params),
        on_unsubscribe_resource=lambda ctx, params: _unsubscribe(shelf, ctx, params),
        on_subscriptions_listen=ListenHandler(shelf.bus),
        on_list_prompts=lambda _, params: _list_prompts(shelf, params),
        on_get_prompt=get_prompt,
        on_completion=_complete,
    )
    server.add_request_handler(
        "logging/setLevel", SetLevelRequestParams, lambda ctx, params: _set_level(shelf, ctx, params)
    )
    server.middleware.append(RequestStateBoundary(RequestStateSecurity.ephemeral(), default_audience=_NAME))
    return server


async def _list_tools(shelf: Shelf, _: PaginatedRequestParams | None) -> ListToolsResult:
    more = [MORE.tool] if shelf.more_tools else []
    return ListToolsResult(tools=[fixture.tool for fixture in TOOLS.values()] + more)


async def _call_tool(shelf: Shelf, ctx: Ctx, params: CallToolRequestParams) -> Outcome:
    fixture = MORE if shelf.more_tools and params.name == MORE.tool.name else TOOLS.get(params.name)
    if fixture is None:
        raise MCPError(INVALID_PARAMS, f"Unknown tool: {params.name}")
    return await fixture.run(Call(ctx, shelf, params))


async def _list_resources(_: Ctx, __: PaginatedRequestParams | None) -> ListResourcesResult:
    return ListResourcesResult(resources=RESOURCES)


async def _list_templates(_: Ctx, __: PaginatedRequestParams | None) -> ListResourceTemplatesResult:
    return ListResourceTemplatesResult(resource_templates=TEMPLATES)


async def _read_resource(ctx: Ctx, params: ReadResourceRequestParams) -> ReadResourceResult:
    return ReadResourceResult(contents=[read(str(params.uri), ctx)])


async def _subscribe(shelf: Shelf, ctx: Ctx, params: SubscribeRequestParams) -> EmptyResult:
    shelf.watched.add((name_session(ctx), str(params.uri)))
    return EmptyResult()


async def _unsubscribe(shelf: Shelf, ctx: Ctx, params: UnsubscribeRequestParams) -> EmptyResult:
    shelf.watched.discard((name_session(ctx), str(params.uri)))
    return EmptyResult()


async def _list_prompts(shelf: Shelf, _: PaginatedRequestParams | None) -> ListPromptsResult:
    return ListPromptsResult(prompts=[*PROMPTS, *([MORE_PROMPT] if shelf.more_prompts else [])])


async def _complete(_: Ctx, params: CompleteRequestParams) -> CompleteResult:
    fitting = [value for value in COMPLETIONS if value.startswith(params.argument.value)]
    return CompleteResult(completion=Completion(values=fitting, total=len(fitting), has_more=False))


async def _set_level(shelf: Shelf, ctx: Ctx, params: SetLevelRequestParams) -> EmptyResult:
    shelf.levels[name_session(ctx)] = params.level
    return EmptyResult()


def _of_the_handshake_era(app: ASGIApp) -> ASGIApp:
    """Refuse requests that servers of this protocol version do not know, with text instead of JSON, as they do."""

    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        version = dict(scope.get("headers", [])).get(b"mcp-protocol-version", b"").decode()
        if version in MODERN_PROTOCOL_VERSIONS:
            answer = PlainTextResponse(f"Bad Request: Unsupported protocol version: {version}", status_code=400)
            await answer(scope, receive, send)
        else:
            await app(scope, receive, send)

    return serve


async def serve_http(port: int, *, handshake_only: bool) -> None:
    """Serve Streamable HTTP on the loopback address."""
    app: ASGIApp = build(Shelf()).streamable_http_app(event_store=Replay(), retry_interval=_RETRY)
    with socket.create_server(("127.0.0.1", port)) as listening:
        sys.stdout.write(f"{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        served = _of_the_handshake_era(app) if handshake_only else app
        config = uvicorn.Config(served, log_level="error", timeout_graceful_shutdown=1)
        await uvicorn.Server(config).serve(sockets=[listening])


async def serve_stdio(*, handshake_only: bool) -> None:
    """Serve one client on standard input and output."""
    server = build(Shelf())
    async with stdio_server() as (source, sink):
        if handshake_only:
            async with server.lifespan(server) as state:
                await serve_loop(server, source, sink, lifespan_state=state)
        else:
            await server.run(source, sink, server.create_initialization_options())


if __name__ == "__main__":
    warnings.simplefilter("ignore", MCPDeprecationWarning)  # logging and sampling are what is tested
    only = sys.argv[-2:] == ["--era", "2025-11-25"]
    given = sys.argv[1 : -2 if only else None]
    if given[0] == "http":
        asyncio.run(serve_http(int(given[1]) if len(given) > 1 else 0, handshake_only=only))
    else:
        asyncio.run(serve_stdio(handshake_only=only))
