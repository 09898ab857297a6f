"""Requests of a fixture to its client during a call: live in protocol version 2025-11-25, by retries in 2026-07-28.

Tools and prompts decide when to send requests, and use the answers.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from everything_shelf import Ctx
from mcp.shared.exceptions import MCPError
from mcp.shared.message import ServerMessageMetadata
from mcp_types import (
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    CreateMessageRequest,
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequest,
    ElicitRequestFormParams,
    ElicitResult,
    InputRequest,
    InputRequiredResult,
    ListRootsRequest,
    ListRootsResult,
    SamplingMessage,
    TextContent,
)
from mcp_types._types import InputResponseRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Answers = Mapping[str, dict[str, Any]]
Questions = Mapping[str, InputRequest]

_CAPABILITIES: Final = {
    "elicitation/create": "elicitation",
    "sampling/createMessage": "sampling",
    "roots/list": "roots",
}
_RESULTS: Final[Mapping[str, type[ElicitResult | CreateMessageResult | ListRootsResult]]] = {
    "elicitation/create": ElicitResult,
    "sampling/createMessage": CreateMessageResult,
    "roots/list": ListRootsResult,
}


@dataclass(frozen=True, slots=True)
class Interview:
    """Rounds of questions, and the text that the answers make."""

    rounds: tuple[Questions, ...]
    conclude: Callable[[Answers], str]
    keeps_state: bool = False
    """Whether answers count only together with the `requestState` that was given out with their questions."""
    only_declared: bool = False
    """Whether a question that the client cannot answer is left out; else the call is refused."""


def form(message: str, properties: Mapping[str, Any], required: tuple[str, ...] = ()) -> ElicitRequest:
    """A form for the user."""
    schema = {"type": "object", "properties": dict(properties), **({"required": list(required)} if required else {})}
    return ElicitRequest(params=ElicitRequestFormParams(message=message, requested_schema=schema))


def prompt_model(text: str, max_tokens: int = 100) -> CreateMessageRequest:
    """A question to the client's model."""
    message = SamplingMessage(role="user", content=TextContent(text=text))
    return CreateMessageRequest(params=CreateMessageRequestParams(messages=[message], max_tokens=max_tokens))


def list_roots() -> ListRootsRequest:
    """A question for the client's roots."""
    return ListRootsRequest()


async def hold(interview: Interview, ctx: Ctx, params: InputResponseRequestParams) -> str | InputRequiredResult:
    """Send the unanswered requests. Returns the conclusion, or the requests that a 2026-07-28 client must answer first.

    Raises:
        MCPError: The client did not declare what a question needs.
    """
    rounds = [_askable(interview, ctx, questions) for questions in interview.rounds]
    if ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        return interview.conclude(
            {key: answer for round_ in rounds for key, answer in (await _ask(ctx, round_)).items()}
        )
    answers = _answered(interview, rounds, params)
    for round_ in rounds:
        if not round_.keys() <= answers.keys():
            state = json.dumps(answers) if interview.keeps_state else None
            return InputRequiredResult(input_requests=dict(round_), request_state=state)
    return interview.conclude(answers)


def _askable(interview: Interview, ctx: Ctx, questions: Questions) -> Questions:
    capabilities = ctx.session.client_capabilities
    declared = capabilities.model_dump(exclude_none=True) if capabilities else {}
    missing = {_CAPABILITIES[question.method] for question in questions.values()} - declared.keys()
    able = {key: one for key, one in questions.items() if _CAPABILITIES[one.method] not in missing}
    if missing and not (interview.only_declared and able):
        needed: dict[str, Any] = {"requiredCapabilities": {capability: {} for capability in sorted(missing)}}
        message = f"The client did not declare: {', '.join(sorted(missing))}."
        raise MCPError(MISSING_REQUIRED_CLIENT_CAPABILITY, message, needed)
    return able


async def _ask(ctx: Ctx, questions: Questions) -> Answers:
    answers = {}
    for key, question in questions.items():
        metadata = ServerMessageMetadata(related_request_id=ctx.request_id)
        result = await ctx.session.send_request(question, _RESULTS[question.method], metadata=metadata)
        answers[key] = result.model_dump(by_alias=True, mode="json", exclude_none=True)
    return answers


def _answered(interview: Interview, rounds: list[Questions], params: InputResponseRequestParams) -> Answers:
    asked = {key for round_ in rounds for key in round_}
    if interview.keeps_state and params.request_state is None:
        return {}
    before: Answers = json.loads(params.request_state) if params.request_state else {}
    given = {
        key: answer.model_dump(by_alias=True, mode="json", exclude_none=True)
        for key, answer in (params.input_responses or {}).items()
        if key in asked
    }
    return {**before, **given}
