"""The client of a request, and the notifications that it wants."""

from collections.abc import Sequence
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.server import Server
from mcp.server.context import CallNext, HandlerResult
from mcp.shared.memory import create_client_server_memory_streams
from mcp.shared.message import SessionMessage

from mcp_mirror.callers import LOG_LEVELS, Caller
from mcp_mirror.server.client_channel import is_wanted
from mcp_mirror.server.request_context import Context, read_caller

BOUND = 60
LOG = "notifications/message"
DECLARED: dict[str, Any] = {
    "sampling": {"tools": {}},
    "elicitation": {"form": {}, "url": {}},
    "roots": {"listChanged": True},
    "experimental": {"a": {"b": 1}},
    "extensions": {"io.modelcontextprotocol/ui": {"mimeTypes": ["text/html"]}},
}
OF_TASKS = {
    **DECLARED,
    "tasks": {"list": {}},
    "extensions": {**DECLARED["extensions"], "io.modelcontextprotocol/tasks": {}},
}


async def callers_of(*messages: dict[str, Any]) -> list[tuple[str, Caller]]:
    """Whom a real server's requests are taken to come from, by their methods."""
    seen: list[tuple[str, Caller]] = []

    async def observe(ctx: Context, call_next: CallNext) -> HandlerResult:
        if ctx.request_id is not None:
            seen.append((ctx.method, read_caller(ctx, "me", "session")))
        return await call_next(ctx)

    async def answer(_context: Context, _params: object) -> dict[str, Any]:
        return {"resultType": "complete", "prompts": [], "ttlMs": 0, "cacheScope": "private"}

    server: Server[Any] = Server("server")
    server.add_request_handler("prompts/list", types.PaginatedRequestParams, answer)
    server.middleware[:] = [observe]
    with anyio.fail_after(BOUND):
        async with (
            create_client_server_memory_streams() as ((read, write), streams),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(server.run, *streams, server.create_initialization_options())
            for message in messages:
                parsed = types.jsonrpc_message_adapter.validate_python({"jsonrpc": "2.0", **message}, by_name=False)
                await write.send(SessionMessage(parsed))
                if "id" in message:
                    answered = await read.receive()
                    assert isinstance(answered, SessionMessage)
                    assert isinstance(answered.message, types.JSONRPCResponse), answered
            tasks.cancel_scope.cancel()
    return seen


def handshake(capabilities: dict[str, Any]) -> Sequence[dict[str, Any]]:
    params = {
        "protocolVersion": "2025-11-25",
        "capabilities": capabilities,
        "clientInfo": {"name": "c", "version": "0"},
    }
    return (
        {"id": 0, "method": "initialize", "params": params},
        {"method": "notifications/initialized"},
        {"id": 1, "method": "prompts/list"},
    )


def standing_alone(capabilities: object) -> dict[str, Any]:
    meta = {
        types.PROTOCOL_VERSION_META_KEY: "2026-07-28",
        types.CLIENT_INFO_META_KEY: {"name": "c", "version": "0"},
        types.CLIENT_CAPABILITIES_META_KEY: capabilities,
    }
    return {"id": 1, "method": "prompts/list", "params": {"_meta": meta}}


@pytest.mark.parametrize("declared", [{}, DECLARED, OF_TASKS])
async def test_a_2025_client_has_the_capabilities_of_its_handshake(declared: dict[str, Any]) -> None:
    relayed = DECLARED if declared else {}
    caller = Caller("me", is_stateless=False, session="session", capabilities=relayed)
    assert await callers_of(*handshake(declared)) == [("initialize", caller), ("prompts/list", caller)]


@pytest.mark.parametrize("declared", [{}, DECLARED, OF_TASKS])
async def test_a_2026_client_has_the_capabilities_of_each_request(declared: dict[str, Any]) -> None:
    relayed = DECLARED if declared else {}
    caller = Caller("me", is_stateless=True, session=None, capabilities=relayed)
    assert await callers_of(standing_alone(declared)) == [("prompts/list", caller)]


async def test_unknown_capabilities_are_kept() -> None:
    declared = {**DECLARED, "vendor": {"x": [1, None]}}
    ((_, modern),) = await callers_of(standing_alone(declared))
    (_, greeting), _ = await callers_of(*handshake(declared))
    assert modern.capabilities == greeting.capabilities == declared


@pytest.mark.parametrize("level", LOG_LEVELS)
@pytest.mark.parametrize("severity", LOG_LEVELS)
def test_log_messages_are_wanted_from_the_clients_level(severity: str, level: str) -> None:
    assert is_wanted(LOG, {"level": severity}, level) is (LOG_LEVELS.index(severity) >= LOG_LEVELS.index(level))


@pytest.mark.parametrize("params", [{"level": "error"}, {"level": "emergency", "data": 1}])
def test_without_a_level_no_log_message_is_wanted(params: dict[str, Any]) -> None:
    assert not is_wanted(LOG, params, None)


@pytest.mark.parametrize("params", [{}, {"level": None}, {"level": "loud"}, {"level": ["error"]}, {"level": 3}])
def test_log_messages_of_unknown_severity_are_not_wanted(params: dict[str, Any]) -> None:
    assert not is_wanted(LOG, params, "debug")


@pytest.mark.parametrize("level", [None, "debug", "emergency"])
@pytest.mark.parametrize("method", ["notifications/progress", "notifications/tools/list_changed", "vendor/own"])
def test_other_notifications_are_always_wanted(method: str, level: str | None) -> None:
    assert is_wanted(method, {"level": "debug"}, level)
