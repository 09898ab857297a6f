"""Tools, resources, prompts and completions, in every combination of client and upstream."""

from typing import Any

import pytest
from mcp import MCPError
from mcp_types import (
    INVALID_PARAMS,
    BlobResourceContents,
    PromptReference,
    ResourceTemplateReference,
    TextContent,
    TextResourceContents,
)
from relay_setup import OLD, RelaySetup

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.timeout(300)]

BASIC = {"echo_mirrored", "interview_mirrored", "grow_mirrored"}


async def test_a_twin_of_each_tool_is_listed_and_can_be_called(setup: RelaySetup) -> None:
    listed = await setup.client.list_tools()
    assert {tool.name for tool in listed.tools} >= BASIC
    assert await setup.text("echo", value={"deep": [1, None, "ü"]}) == '{"value": {"deep": [1, null, "\\u00fc"]}}'


async def test_resources_are_listed_and_read_under_their_own_uris(setup: RelaySetup) -> None:
    listed = await setup.client.list_resources()
    assert {"notes://one", "notes://pixel"} <= {str(resource.uri) for resource in listed.resources}
    (text,) = (await setup.client.read_resource("notes://one")).contents
    assert isinstance(text, TextResourceContents)
    assert (str(text.uri), text.text, text.mime_type) == ("notes://one", "What is at notes://one.", "text/plain")
    (pixel,) = (await setup.client.read_resource("notes://pixel")).contents
    assert isinstance(pixel, BlobResourceContents)
    assert (str(pixel.uri), pixel.blob, pixel.mime_type) == ("notes://pixel", "iVBORw0KGgo=", "image/png")


async def test_templates_are_listed_and_their_resources_can_be_read(setup: RelaySetup) -> None:
    listed = await setup.client.list_resource_templates()
    assert {"notes://by/{author}/{title}", "interview://{rounds}"} <= {
        template.uri_template for template in listed.resource_templates
    }
    (text,) = (await setup.client.read_resource("notes://by/Ada/Sketch")).contents
    assert isinstance(text, TextResourceContents)
    assert text.text == "What is at notes://by/Ada/Sketch."


async def test_an_unknown_resource_returns_the_upstreams_error_code(setup: RelaySetup) -> None:
    with pytest.raises(MCPError) as caught:
        await setup.client.read_resource("nowhere://at/all")
    assert caught.value.error.code == (-32002 if setup.combination.upstream == OLD else INVALID_PARAMS)


async def test_prompts_are_listed_and_filled_in(setup: RelaySetup) -> None:
    listed = await setup.client.list_prompts()
    (greet,) = [prompt for prompt in listed.prompts if prompt.name == "greet"]
    assert [(argument.name, argument.required) for argument in greet.arguments or ()] == [("who", True), ("tone", None)]
    filled = await setup.client.get_prompt("greet", {"who": "Ada", "tone": "warmly"})
    (message,) = filled.messages
    assert isinstance(message.content, TextContent)
    assert (message.role, message.content.text) == ("user", "Greet Ada, warmly.")


@pytest.mark.parametrize(
    ("reference", "of"),
    [
        (PromptReference(name="greet"), "greet"),
        (ResourceTemplateReference(uri="notes://by/{author}/{title}"), "notes://by/{author}/{title}"),
    ],
    ids=["prompt", "template"],
)
async def test_arguments_are_completed(setup: RelaySetup, reference: Any, of: str) -> None:
    argument = {"name": "tone", "value": "wa"}
    completed = await setup.client.complete(reference, argument, {"who": "Ada"})
    assert completed.completion.values == [of, "tone", "wa...", "Ada"]
