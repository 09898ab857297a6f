"""Input requests of the upstream during a call: sent live in version 2025-11-25, by input rounds in 2026-07-28.

A text lists them: `form,sampling;roots` is two rounds, one with two requests and one with one.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import anyio
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitRequestURLParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    InputResponses,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Ctx = ServerRequestContext[Any, Any]

_FORM: Final = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
_RESULTS: Final[Mapping[str, type[ElicitResult | CreateMessageResult | ListRootsResult]]] = {
    "elicitation/create": ElicitResult,
    "sampling/createMessage": CreateMessageResult,
    "roots/list": ListRootsResult,
}


@dataclass(frozen=True, slots=True)
class Interview:
    """A call during which the server requests input; it may be a repeated one."""

    ctx: Ctx
    rounds: str
    value: Any = None
    """An argument of the call: the result has its digest for every round."""
    answers: InputResponses | None = None
    state: str | None = None


@dataclass(slots=True)
class Answers:
    """The answers so far."""

    answers: dict[str, Any] = field(default_factory=dict)
    digests: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        return json.dumps({"answers": self.answers, "digests": self.digests})


def is_modern(ctx: Ctx) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


async def request_input(interview: Interview) -> str | InputRequiredResult:
    """Return all answers as JSON text, or the input that a 2026-07-28 client must provide first.

    It requests input whatever the client has declared; an error of the client is an answer, too.
    """
    rounds = [_requests(number, kinds, interview.ctx) for number, kinds in enumerate(interview.rounds.split(";"))]
    answers = Answers(**json.loads(interview.state)) if interview.state else Answers()
    answers.digests.append(digest(interview.value))
    if not is_modern(interview.ctx):
        for number, requests in enumerate(rounds):
            await interview.ctx.session.report_progress(number, len(rounds))
            answers.answers |= await _request_live(interview.ctx, requests)
        return answers.as_json()
    await interview.ctx.session.report_progress(len(answers.digests) - 1, len(rounds))
    by_key = {key: answer.model_dump(by_alias=True, mode="json", exclude_none=True)
             for key, answer in (interview.answers or {}).items()} if interview.state else {}  # fmt: skip
    answers.answers |= by_key
    for requests in rounds:
        if not requests.keys() <= answers.answers.keys():
            return InputRequiredResult(input_requests=dict(requests), request_state=answers.as_json())
    return answers.as_json()


async def _request_live(ctx: Ctx, requests: Mapping[str, InputRequest]) -> dict[str, Any]:
    answers: dict[str, Any] = {}

    async def collect(key: str, request: InputRequest) -> None:
        metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
        try:
            result = await ctx.session.send_request(request, _RESULTS[request.method], metadata=metadata)
            answers[key] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        except MCPError as error:
            answers[key] = {"refused": error.error.code}

    async with anyio.create_task_group() as tasks:
        for key, request in requests.items():
            tasks.start_soon(collect, key, request)
    return answers


def _requests(number: int, kinds: str, ctx: Ctx) -> Mapping[str, InputRequest]:
    return {f"{number}-{kind}": _request(kind, number, ctx) for kind in kinds.split(",")}


def _request(kind: str, number: int, ctx: Ctx) -> InputRequest:
    match kind:
        case "form":
            return ElicitRequest(params=ElicitRequestFormParams(message=f"Who? {number}", requested_schema=_FORM))
        case "url":
            identity = None if is_modern(ctx) else f"interview-{number}"
            url = "https://example.com/sign"
            return ElicitRequest(params=ElicitRequestURLParams(message="Sign", url=url, elicitation_id=identity))
        case "sampling":
            message = SamplingMessage(role="user", content=TextContent(text=f"Why? {number}"))
            return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=10))
    return ListRootsRequest()
