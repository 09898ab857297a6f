"""The resources, prompts and completions of the conformance suite's fixture contract."""

import json
import re
from collections.abc import Mapping
from typing import Final

from everything_interviews import Interview, form, hold
from everything_shelf import Ctx, draw_image
from mcp.shared.exceptions import MCPError
from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    EmbeddedResource,
    GetPromptRequestParams,
    GetPromptResult,
    ImageContent,
    InputRequiredResult,
    Prompt,
    PromptArgument,
    PromptMessage,
    Resource,
    ResourceTemplate,
    TextContent,
    TextResourceContents,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

Contents = TextResourceContents | BlobResourceContents

_NOT_FOUND_BEFORE: Final = -32002
"""The code of a resource that is not there, before 2026-07-28 made it invalid params."""

_PAGES: Final[Mapping[str, tuple[str, Contents]]] = {
    "test://static-text": (
        "A text that never changes.",
        TextResourceContents(
            uri="test://static-text",
            mime_type="text/plain",
            text="This is the content of the static text resource.",
        ),
    ),
    "test://static-binary": (
        "An image that never changes.",
        BlobResourceContents(uri="test://static-binary", mime_type="image/png", blob=draw_image()),
    ),
    "test://watched-resource": (
        "A text that can be subscribed to.",
        TextResourceContents(uri="test://watched-resource", mime_type="text/plain", text="Watched."),
    ),
}
RESOURCES: Final = [
    Resource(uri=uri, name=uri.removeprefix("test://"), description=description, mime_type=contents.mime_type)
    for uri, (description, contents) in _PAGES.items()
]
TEMPLATES: Final = [
    ResourceTemplate(
        uri_template="test://template/{id}/data",
        name="template",
        description="Data for an id.",
        mime_type="application/json",
    )
]
_FROM_TEMPLATE: Final = re.compile(r"test://template/([^/]+)/data")


def read(uri: str, ctx: Ctx) -> Contents:
    """The content of a resource.

    Raises:
        MCPError: The resource does not exist; the code is that of the client's protocol version.
    """
    if page := _PAGES.get(uri):
        return page[1]
    if found := _FROM_TEMPLATE.fullmatch(uri):
        text = json.dumps({"id": found[1], "templateTest": True, "data": f"Data for ID: {found[1]}"})
        return TextResourceContents(uri=uri, mime_type="application/json", text=text)
    code = INVALID_PARAMS if ctx.protocol_version in MODERN_PROTOCOL_VERSIONS else _NOT_FOUND_BEFORE
    raise MCPError(code, "Resource not found", {"uri": uri})


def _prompt(name: str, description: str, **arguments: str) -> Prompt:
    wanted = [PromptArgument(name=key, description=text, required=True) for key, text in arguments.items()]
    return Prompt(name=name, description=description, arguments=wanted or None)


PROMPTS: Final = [
    _prompt("test_simple_prompt", "A prompt without arguments."),
    _prompt(
        "test_prompt_with_arguments",
        "A prompt with two arguments.",
        arg1="First test argument",
        arg2="Second test argument",
    ),
    _prompt(
        "test_prompt_with_embedded_resource",
        "A prompt with a resource in it.",
        resourceUri="URI of the resource to embed",
    ),
    _prompt("test_prompt_with_image", "A prompt with an image in it."),
    _prompt("test_input_required_result_prompt", "A prompt that asks the user first."),
]
MORE_PROMPT: Final = _prompt("test_prompt_sometimes_there", "Listed after every other change.")

_CONTEXT: Final = Interview(
    ({"user_context": form("What context should the prompt use?", {"context": {"type": "string"}}, ("context",))},),
    lambda answers: str((answers["user_context"].get("content") or {}).get("context", "none")),
)


def _say(*content: TextContent | ImageContent | EmbeddedResource) -> GetPromptResult:
    return GetPromptResult(messages=[PromptMessage(role="user", content=one) for one in content])


def _embed(uri: str) -> EmbeddedResource:
    text = "Embedded resource content for testing."
    return EmbeddedResource(resource=TextResourceContents(uri=uri, mime_type="text/plain", text=text))


async def get_prompt(ctx: Ctx, params: GetPromptRequestParams) -> GetPromptResult | InputRequiredResult:
    """The messages of a prompt, or the requests that the user must answer first.

    Raises:
        MCPError: The prompt does not exist, or an argument is missing.
    """
    given = params.arguments or {}
    match params.name:
        case "test_simple_prompt" | "test_prompt_sometimes_there":
            return _say(TextContent(text="This is a simple prompt for testing."))
        case "test_prompt_with_arguments" if {"arg1", "arg2"} <= given.keys():
            return _say(TextContent(text=f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'"))
        case "test_prompt_with_embedded_resource" if "resourceUri" in given:
            asked = TextContent(text="Please process the embedded resource above.")
            return _say(_embed(given["resourceUri"]), asked)
        case "test_prompt_with_image":
            image = ImageContent(data=draw_image(), mime_type="image/png")
            return _say(image, TextContent(text="Please analyze the image above."))
        case "test_input_required_result_prompt":
            context = await hold(_CONTEXT, ctx, params)
            return (
                context if isinstance(context, InputRequiredResult) else _say(TextContent(text=f"Context: {context}"))
            )
    raise MCPError(INVALID_PARAMS, f"No prompt {params.name!r} with these arguments.")


COMPLETIONS: Final = ("paris", "park", "party", "test", "test-value")
"""What any argument may be completed to."""
