"""Questions that the upstream asks while it answers: live in the handshake era, by retries in the other.

What is asked is told in words: `form,sampling;roots` is two rounds, of two questions and of one.
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
class Visit:
    """One request in which questions are asked, perhaps not for the first time."""

    ctx: Ctx
    rounds: str
    value: Any = None
    """What the request brings: its digest is told for every round."""
    answers: InputResponses | None = None
    state: str | None = None


@dataclass(slots=True)
class Told:
    """What has come of the questions."""

    answers: dict[str, Any] = field(default_factory=dict)
    digests: list[str] = field(default_factory=list)

    def as_json(self) -> str:
        return json.dumps({"answers": self.answers, "digests": self.digests})


def is_modern(ctx: Ctx) -> bool:
    return ctx.protocol_version in MODERN_PROTOCOL_VERSIONS


def digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


async def ask(visit: Visit) -> str | InputRequiredResult:
    """All the answers, JSON text, or what a client of the newer era must answer first.

    It asks whatever the client has declared; an error that the client answers with is an answer, too.
    """
    rounds = [_questions(number, kinds, visit.ctx) for number, kinds in enumerate(visit.rounds.split(";"))]
    told = Told(**json.loads(visit.state)) if visit.state else Told()
    told.digests.append(digest(visit.value))
    if not is_modern(visit.ctx):
        for number, questions in enumerate(rounds):
            await visit.ctx.session.report_progress(number, len(rounds))
            told.answers |= await _ask_live(visit.ctx, questions)
        return told.as_json()
    await visit.ctx.session.report_progress(len(told.digests) - 1, len(rounds))
    given = {key: answer.model_dump(by_alias=True, mode="json", exclude_none=True)
             for key, answer in (visit.answers or {}).items()} if visit.state else {}  # fmt: skip
    told.answers |= given
    for questions in rounds:
        if not questions.keys() <= told.answers.keys():
            return InputRequiredResult(input_requests=dict(questions), request_state=told.as_json())
    return told.as_json()


async def _ask_live(ctx: Ctx, questions: Mapping[str, InputRequest]) -> dict[str, Any]:
    answers: dict[str, Any] = {}

    async def put(key: str, question: InputRequest) -> None:
        metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
        try:
            result = await ctx.session.send_request(question, _RESULTS[question.method], metadata=metadata)
            answers[key] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
        except MCPError as error:
            answers[key] = {"refused": error.error.code}

    async with anyio.create_task_group() as tasks:
        for key, question in questions.items():
            tasks.start_soon(put, key, question)
    return answers


def _questions(number: int, kinds: str, ctx: Ctx) -> Mapping[str, InputRequest]:
    return {f"{number}-{kind}": _question(kind, number, ctx) for kind in kinds.split(",")}


def _question(kind: str, number: int, ctx: Ctx) -> InputRequest:
    match kind:
        case "form":
            return ElicitRequest(params=ElicitRequestFormParams(message=f"Who? {number}", requested_schema=_FORM))
        case "url":
            identity = None if is_modern(ctx) else f"visit-{number}"
            url = "https://example.com/sign"
            return ElicitRequest(params=ElicitRequestURLParams(message="Sign", url=url, elicitation_id=identity))
        case "sampling":
            message = SamplingMessage(role="user", content=TextContent(text=f"Why? {number}"))
            return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=10))
    return ListRootsRequest()
