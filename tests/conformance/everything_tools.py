"""The tools of the conformance suite's fixture contract, as a table."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final, get_args

import anyio
from everything_interviews import Answers, Interview, form, hold, list_roots, prompt_model
from everything_shelf import Ctx, Shelf, draw_image, name_session, record_sound
from mcp.server.subscriptions import PromptsListChanged, ToolsListChanged
from mcp_types import (
    AudioContent,
    CallToolRequestParams,
    CallToolResult,
    ContentBlock,
    EmbeddedResource,
    ImageContent,
    InputRequiredResult,
    LoggingLevel,
    TextContent,
    TextResourceContents,
    Tool,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

_STEP: Final = 0.05
"""Seconds between what one call tells while it runs."""
_LEVELS: Final[tuple[LoggingLevel, ...]] = get_args(LoggingLevel)


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a tool."""

    ctx: Ctx
    shelf: Shelf
    params: CallToolRequestParams


Outcome = CallToolResult | InputRequiredResult
Run = Callable[[Call], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True)
class Fixture:
    """A tool as it is listed, and what it does."""

    tool: Tool
    run: Run


def _text(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=text)])


def _resource(name: str, media_type: str, text: str) -> EmbeddedResource:
    return EmbeddedResource(resource=TextResourceContents(uri=f"test://{name}", mime_type=media_type, text=text))


def _constant(*content: ContentBlock, is_error: bool = False) -> Run:
    async def run(_: Call) -> Outcome:
        return CallToolResult(content=list(content), is_error=is_error)

    return run


def _asking(interview: Interview) -> Run:
    async def run(call: Call) -> Outcome:
        outcome = await hold(interview, call.ctx, call.params)
        return outcome if isinstance(outcome, InputRequiredResult) else _text(outcome)

    return run


def _asking_for(make: Callable[[str], Interview], argument: str) -> Run:
    async def run(call: Call) -> Outcome:
        return await _asking(make(str((call.params.arguments or {}).get(argument, ""))))(call)

    return run


async def _log(call: Call) -> Outcome:
    ctx = call.ctx
    wanted = call.shelf.levels.get(name_session(ctx), "debug")
    for number, line in enumerate(("Tool execution started", "Tool processing data", "Tool execution completed")):
        await anyio.sleep(_STEP if number else 0)
        if _LEVELS.index("info") >= _LEVELS.index(wanted):
            await ctx.session.send_log_message("info", line, related_request_id=ctx.request_id)
    return _text("Three lines were logged.")


async def _progress(call: Call) -> Outcome:
    for done in (0, 50, 100):
        await call.ctx.session.report_progress(done, 100)
        await anyio.sleep(_STEP if done < 100 else 0)
    return _text("Progress was told.")


async def _reconnect(call: Call) -> Outcome:
    if call.ctx.close_sse_stream is not None:
        await call.ctx.close_sse_stream()
    await anyio.sleep(2 * _STEP)
    return _text("The stream was closed before this result was sent.")


async def _change_tools(call: Call) -> Outcome:
    call.shelf.more_tools = not call.shelf.more_tools
    await call.shelf.bus.publish(ToolsListChanged())
    if call.ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        await call.ctx.session.send_tool_list_changed()
    return _text("The list of tools has changed.")


async def _change_prompts(call: Call) -> Outcome:
    call.shelf.more_prompts = not call.shelf.more_prompts
    await call.shelf.bus.publish(PromptsListChanged())
    if call.ctx.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        await call.ctx.session.send_prompt_list_changed()
    return _text("The list of prompts has changed.")


async def _echo(call: Call) -> Outcome:
    return _text(json.dumps(call.params.arguments or {}))


def _said(answer: Mapping[str, Any]) -> str:
    return str(answer["content"]["text"])


def _completed(answers: Answers) -> str:
    (answer,) = answers.values()
    return f"Elicitation completed: action={answer['action']}, content={json.dumps(answer.get('content', {}))}"


def _greeting(answers: Answers) -> str:
    content = answers["user_name"].get("content") or {}
    return f"Hello, {content.get('name', 'whoever you are')}!"


_STRING: Final = {"type": "string"}
_WHO: Final = form("What is your name?", {"name": _STRING}, ("name",))
_CONFIRM: Final = form("Please confirm", {"ok": {"type": "boolean"}}, ("ok",))
_THREE: Final = ("option1", "option2", "option3")
_DEFAULTS: Final = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {"type": "string", "enum": ["active", "inactive", "pending"], "default": "active"},
    "verified": {"type": "boolean", "default": True},
}


def _titled(noun: str) -> list[dict[str, str]]:
    return [{"const": f"value{n}", "title": f"{word} {noun}"} for n, word in enumerate(("First", "Second", "Third"), 1)]


_ENUMS: Final = {
    "untitledSingle": {"type": "string", "enum": list(_THREE)},
    "titledSingle": {"type": "string", "oneOf": _titled("Option")},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {"type": "array", "items": {"type": "string", "enum": list(_THREE)}},
    "titledMulti": {"type": "array", "items": {"anyOf": _titled("Choice")}},
}


def _ask_user(message: str) -> Interview:
    properties = {
        "username": {"type": "string", "description": "User's response"},
        "email": {"type": "string", "description": "User's email address"},
    }
    question = form(message, properties, ("username", "email"))
    return Interview(({"user": question},), lambda a: f"User response: {json.dumps(a['user'])}")


def _ask_model(prompt: str) -> Interview:
    return Interview(({"model": prompt_model(prompt)},), lambda a: f"LLM response: {_said(a['model'])}")


_INTERVIEWS: Final[Mapping[str, tuple[str, Interview]]] = {
    "test_elicitation_sep1034_defaults": (
        "Asks the user with a form that has defaults.",
        Interview(({"form": form("Check these values", _DEFAULTS)},), _completed),
    ),
    "test_elicitation_sep1330_enums": (
        "Asks the user with a form that has every kind of choice.",
        Interview(({"form": form("Choose", _ENUMS)},), _completed),
    ),
    "test_streaming_elicitation": ("Asks the user for a name.", Interview(({"user_name": _WHO},), _greeting)),
    "test_missing_capability": (
        "Needs a client that can ask a model.",
        Interview(({"model": prompt_model("Are you there?")},), lambda a: _said(a["model"])),
    ),
    "test_input_required_result_elicitation": (
        "Asks the user for a name.",
        Interview(({"user_name": _WHO},), _greeting),
    ),
    "test_input_required_result_sampling": (
        "Asks the client's model for a capital.",
        Interview(
            ({"capital_question": prompt_model("What is the capital of France?")},),
            lambda a: _said(a["capital_question"]),
        ),
    ),
    "test_input_required_result_list_roots": (
        "Asks for the client's roots.",
        Interview(
            ({"client_roots": list_roots()},),
            lambda a: "Roots: " + ", ".join(root["uri"] for root in a["client_roots"]["roots"]),
        ),
    ),
    "test_input_required_result_request_state": (
        "Asks the user to confirm, and wants its state back.",
        Interview(({"confirm": _CONFIRM},), lambda _: "state-ok", keeps_state=True),
    ),
    "test_input_required_result_multiple_inputs": (
        "Asks user, model and client at once.",
        Interview(
            (
                {
                    "user_name": _WHO,
                    "greeting": prompt_model("Generate a greeting", 50),
                    "client_roots": list_roots(),
                },
            ),
            lambda a: f"{_said(a['greeting'])} {_greeting(a)} {len(a['client_roots']['roots'])} roots.",
            keeps_state=True,
        ),
    ),
    "test_input_required_result_multi_round": (
        "Asks the user twice, one after the other.",
        Interview(
            (
                {"step1": form("Step 1: What is your name?", {"name": _STRING}, ("name",))},
                {"step2": form("Step 2: What is your favorite color?", {"color": _STRING}, ("color",))},
            ),
            lambda a: json.dumps({step: answer.get("content") for step, answer in a.items()}),
            keeps_state=True,
        ),
    ),
    "test_input_required_result_tampered_state": (
        "Asks the user to confirm, and refuses a state that it did not make.",
        Interview(({"confirm": _CONFIRM},), lambda _: "The state is whole.", keeps_state=True),
    ),
    "test_input_required_result_capabilities": (
        "Asks only what the client can answer.",
        Interview(
            ({"user_name": _WHO, "greeting": prompt_model("Generate a greeting", 50)},),
            lambda a: f"Answered: {', '.join(sorted(a))}.",
            only_declared=True,
        ),
    ),
}

_SCHEMA_2020_12: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {"$anchor": "addressDef", "type": "object", "properties": {"street": _STRING, "city": _STRING}}
    },
    "properties": {
        "name": _STRING,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": _STRING,
        "email": _STRING,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}


def _takes(*names: str) -> dict[str, Any]:
    return {"type": "object", "properties": dict.fromkeys(names, _STRING), "required": list(names)}


_NOTHING: Final[dict[str, Any]] = {"type": "object", "properties": {}}
_IMAGE: Final = ImageContent(data=draw_image(), mime_type="image/png")
_EMBEDDED: Final = _resource("embedded-resource", "text/plain", "This is an embedded resource content.")
_MIXED: Final = _resource("mixed-content-resource", "application/json", '{"test":"data","value":123}')
_ERROR: Final = TextContent(text="This tool intentionally returns an error for testing")
_HEADED: Final = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}, "query": _STRING},
    "required": ["region"],
}


def _fixtures() -> Iterable[Fixture]:
    """All tools, in the order in which they are listed."""
    rows: tuple[tuple[str, str, dict[str, Any], Run], ...] = (
        (
            "test_simple_text",
            "A short text.",
            _NOTHING,
            _constant(TextContent(text="This is a simple text response for testing.")),
        ),
        ("test_image_content", "An image.", _NOTHING, _constant(_IMAGE)),
        (
            "test_audio_content",
            "A sound.",
            _NOTHING,
            _constant(AudioContent(data=record_sound(), mime_type="audio/wav")),
        ),
        ("test_embedded_resource", "A resource in a result.", _NOTHING, _constant(_EMBEDDED)),
        (
            "test_multiple_content_types",
            "A text, an image and a resource.",
            _NOTHING,
            _constant(TextContent(text="Multiple content types test:"), _IMAGE, _MIXED),
        ),
        ("test_error_handling", "Always fails.", _NOTHING, _constant(_ERROR, is_error=True)),
        ("test_tool_with_logging", "Logs three lines.", _NOTHING, _log),
        ("test_logging_tool", "Logs three lines.", _NOTHING, _log),
        ("test_tool_with_progress", "Tells its progress.", _NOTHING, _progress),
        ("test_reconnection", "Closes its stream before it answers.", _NOTHING, _reconnect),
        ("test_sampling", "Asks the client's model.", _takes("prompt"), _asking_for(_ask_model, "prompt")),
        ("test_elicitation", "Asks the user.", _takes("message"), _asking_for(_ask_user, "message")),
        ("test_trigger_tool_change", "Changes the list of tools.", _NOTHING, _change_tools),
        ("test_trigger_prompt_change", "Changes the list of prompts.", _NOTHING, _change_prompts),
        ("test_custom_header", "Wants an argument in a header too.", _HEADED, _echo),
        ("json_schema_2020_12_tool", "Tool with JSON Schema 2020-12 features", _SCHEMA_2020_12, _echo),
    )
    for name, description, schema, run in rows:
        yield Fixture(Tool(name=name, description=description, input_schema=schema), run)
    for name, (description, interview) in _INTERVIEWS.items():
        yield Fixture(Tool(name=name, description=description, input_schema=_NOTHING), _asking(interview))


TOOLS: Final[Mapping[str, Fixture]] = {fixture.tool.name: fixture for fixture in _fixtures()}
MORE: Final = Fixture(
    Tool(name="test_sometimes_there", description="Listed after every other change.", input_schema=_NOTHING),
    _constant(TextContent(text="There.")),
)
