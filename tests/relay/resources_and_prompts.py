"""The resources, prompts and completions of the upstream; some of them request input first."""

from typing import Final

from input_requests import Ctx, Interview, is_modern, request_input
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    CompleteRequestParams,
    CompleteResult,
    Completion,
    GetPromptRequestParams,
    GetPromptResult,
    InputRequiredResult,
    ListPromptsResult,
    ListResourcesResult,
    ListResourceTemplatesResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    ReadResourceRequestParams,
    ReadResourceResult,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
)

NOTES: Final = "notes://one"
PIXEL: Final = "iVBORw0KGgo="


async def list_resources(more_of: int) -> ListResourcesResult:
    more = [f"more://{number}" for number in range(more_of)]
    return ListResourcesResult(
        resources=[Resource(uri=uri, name=uri, title="A note") for uri in (NOTES, "notes://pixel", *more)]
    )


async def list_templates() -> ListResourceTemplatesResult:
    return ListResourceTemplatesResult(
        resource_templates=[
            ResourceTemplate(uri_template="notes://by/{author}/{title}", name="by", mime_type="text/plain"),
            ResourceTemplate(uri_template="interview://{rounds}", name="interview"),
        ]
    )


async def read_resource(ctx: Ctx, params: ReadResourceRequestParams) -> ReadResourceResult | InputRequiredResult:
    uri = str(params.uri)
    if uri == "notes://pixel":
        return ReadResourceResult(contents=[BlobResourceContents(uri=uri, mime_type="image/png", blob=PIXEL)])
    if uri.startswith("interview://"):
        rounds = uri.removeprefix("interview://")
        text = await request_input(Interview(ctx, rounds, None, params.input_responses, params.request_state))
    elif uri.startswith("notes://"):
        text = f"What is at {uri}."
    else:
        raise MCPError(INVALID_PARAMS if is_modern(ctx) else -32002, "Resource not found", {"uri": uri})
    if isinstance(text, InputRequiredResult):
        return text
    return ReadResourceResult(contents=[TextResourceContents(uri=uri, mime_type="text/plain", text=text)])


async def list_prompts(more_of: int) -> ListPromptsResult:
    wanted = [PromptArgument(name="who", required=True), PromptArgument(name="tone")]
    more = [Prompt(name=f"more_{number}") for number in range(more_of)]
    interviewing = Prompt(name="interview", arguments=[PromptArgument(name="rounds", required=True)])
    return ListPromptsResult(prompts=[Prompt(name="greet", title="Greet", arguments=wanted), interviewing, *more])


async def get_prompt(ctx: Ctx, params: GetPromptRequestParams) -> GetPromptResult | InputRequiredResult:
    arguments = params.arguments or {}
    if params.name == "interview":
        text = await request_input(
            Interview(ctx, arguments["rounds"], None, params.input_responses, params.request_state)
        )
    elif params.name == "greet":
        text = f"Greet {arguments['who']}, {arguments.get('tone', 'kindly')}."
    else:
        raise MCPError(INVALID_PARAMS, f"Unknown prompt: {params.name}")
    if isinstance(text, InputRequiredResult):
        return text
    return GetPromptResult(messages=[PromptMessage(role="user", content=TextContent(text=text))])


async def complete(params: CompleteRequestParams) -> CompleteResult:
    """Return the reference, the argument and the context as completions."""
    context = params.context.arguments if params.context and params.context.arguments else {}
    of = getattr(params.ref, "name", None) or getattr(params.ref, "uri", "")
    values = [str(of), params.argument.name, f"{params.argument.value}...", *context.values()]
    return CompleteResult(completion=Completion(values=values, total=len(values), has_more=False))
