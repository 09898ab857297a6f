"""The upstream of the relay's tests, which also reports the credential of each request.

`personal_upstream.py http|stdio VERSION`: over HTTP the credential is the `Authorization` header, over stdio the
variable `CRM_TOKEN`. It accepts no credential that contains `revoked`, and quotes it.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "relay"))

import resources_and_prompts
import upstream
from input_requests import Ctx
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    GetPromptRequestParams,
    GetPromptResult,
    PaginatedRequestParams,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    TextContent,
    TextResourceContents,
)
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

TOKEN = os.environ.get("CRM_TOKEN", "")


def credential(ctx: Ctx) -> str:
    return TOKEN if ctx.request is None else ", ".join(ctx.request.headers.getlist("authorization"))


async def reveal(call: upstream.Call) -> upstream.Outcome:
    shared = "" if call.ctx.request is None else call.ctx.request.headers.get("x-shared", "")
    return upstream.say(json.dumps({"credential": credential(call.ctx), "shared": shared, "process": os.getpid()}))


async def reject(call: upstream.Call) -> upstream.Outcome:
    raise MCPError(INVALID_PARAMS, f"not for {credential(call.ctx)}, " * call.given["times"])


async def read_resource(ctx: Ctx, params: ReadResourceRequestParams) -> Any:
    if str(params.uri) != "notes://mine":
        return await resources_and_prompts.read_resource(ctx, params)
    return ReadResourceResult(contents=[TextResourceContents(uri="notes://mine", text=f"read by {credential(ctx)}")])


async def get_prompt(ctx: Ctx, _params: object) -> GetPromptResult:
    return GetPromptResult(messages=[PromptMessage(role="user", content=TextContent(text=f"for {credential(ctx)}"))])


def refuse_revoked(app: ASGIApp) -> ASGIApp:
    async def serve(scope: Scope, receive: Receive, send: Send) -> None:
        given = dict(scope.get("headers", [])).get(b"authorization", b"").decode()
        if "revoked" in given:
            await PlainTextResponse(f"not accepted: {given}", 401)(scope, receive, send)
        else:
            await app(scope, receive, send)

    return serve


original_build = upstream.build


def build(version: str) -> upstream.Upstream:
    async def list_resources(ctx: Ctx, _params: object) -> Any:
        listed = await resources_and_prompts.list_resources(0)
        named = Resource(uri="notes://mine", name=f"notes of {credential(ctx)}")
        return listed.model_copy(update={"resources": [*listed.resources, named]})

    async def complete(ctx: Ctx, _params: object) -> CompleteResult:
        return CompleteResult(completion=Completion(values=[credential(ctx)]))

    server = original_build(version)
    server.add_request_handler("resources/list", PaginatedRequestParams, list_resources)
    server.add_request_handler("resources/read", ReadResourceRequestParams, read_resource)
    server.add_request_handler("prompts/get", GetPromptRequestParams, get_prompt)
    server.add_request_handler("completion/complete", CompleteRequestParams, complete)
    streamable = server.streamable_http_app
    server.streamable_http_app = lambda *args, **keys: refuse_revoked(streamable(*args, **keys))  # type: ignore[method-assign,assignment]
    return server


if __name__ == "__main__":
    if "revoked" in TOKEN:
        sys.exit(f"error: {TOKEN} is not accepted")
    upstream.TOOLS.update({"reveal": reveal, "reject": reject})  # type: ignore[attr-defined]
    upstream.build = build
    asyncio.run({"http": upstream.serve_http, "stdio": upstream.serve_stdio}[sys.argv[1]](sys.argv[2]))
