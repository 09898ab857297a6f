"""The ways to describe tools to a model and to read its calls: native, JSON with an enforced schema, or JSON in text.

Pure. Converts a conversation to the members of a chat completion request, and a message of the model to a reply. The
format is OpenAI's chat completions, which local servers support too.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Any, Final, Literal

import msgspec

from mcp_mirror.evals.conversation import Call, Entry, Reply, Result, Tool, User

ToolsMode = Literal["native", "json_schema", "json_text"]

_FINAL: Final = "reply_to_user"
"""The tool that ends a conversation if every reply must be a call. Its name has no word of
`retrieve_final_answer_from_memory`, which the small model confused with `final_answer` (docs/evaluation/wording.md)."""

_FINAL_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}
_FORM: Final = (
    "Reply with one JSON object and nothing else.\n"
    'To call a tool: {"name": "<tool>", "arguments": {...}}. You then get its result.\n'
    f'When the task is done: {{"name": "{_FINAL}", "arguments": {{"answer": "<your answer>"}}}}.'
)
_NO_CALL: Final = f"That is no call. {_FORM}"
_NAMES: Final = ("name", "tool", "tool_name", "function")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input")
_DECODER: Final = json.JSONDecoder(strict=False)
_OBJECT: Final = re.compile(r"\{")

Message = dict[str, Any]


class Dialect(msgspec.Struct, frozen=True):
    """One way to call tools."""

    instructions: Callable[[Sequence[Tool]], str]
    """Returns the part of the system prompt about calls."""
    body: Callable[[Sequence[Tool]], Mapping[str, Any]]
    """Returns the members of the request besides the messages."""
    write_reply: Callable[[Reply], Message]
    write_result: Callable[[Result], Message]
    read: Callable[[Mapping[str, Any]], Reply]
    """Converts a message of the model."""


def write_messages(
    dialect: Dialect, system: str, entries: Iterable[Entry], *, with_images: bool = False
) -> list[Message]:
    """Convert a conversation to messages; adjacent ones of the user are joined, because many templates require it."""
    written: list[Message] = [{"role": "system", "content": system}] if system else []
    for is_result, group in groupby(entries, key=lambda entry: isinstance(entry, Result)):
        grouped = list(group)
        written += [_write(dialect, entry) for entry in grouped]
        if is_result and with_images:
            written += _write_images(grouped)
    joined: list[Message] = []
    for role, messages in groupby(written, key=lambda message: message["role"]):
        if role == "user":
            joined.append({"role": role, "content": _join_contents([message["content"] for message in messages])})
        else:
            joined += messages
    return joined


def _write_images(entries: Iterable[Entry]) -> Iterator[Message]:
    for entry in entries:
        if isinstance(entry, Result) and entry.images:
            urls = (f"data:{image.media_type};base64,{image.data}" for image in entry.images)
            parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
            yield {"role": "user", "content": [_text_part(f"Images of {entry.call.name}:"), *parts]}


def _text_part(text: str) -> Message:
    return {"type": "text", "text": text}


def _join_contents(contents: Sequence[str | list[Message]]) -> str | list[Message]:
    """Join texts to a text; with images, a list of all parts."""
    texts = [content for content in contents if isinstance(content, str)]
    if len(texts) == len(contents):
        return "\n\n".join(texts)
    return [part for one in contents for part in ([_text_part(one)] if isinstance(one, str) else one)]


def _write(dialect: Dialect, entry: Entry) -> Message:
    if isinstance(entry, User):
        return {"role": "user", "content": entry.text}
    return dialect.write_reply(entry) if isinstance(entry, Reply) else dialect.write_result(entry)


def function_of(tool: Tool) -> dict[str, Any]:
    """The definition of a tool in the format of the API."""
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)}


def _native_body(tools: Sequence[Tool]) -> Mapping[str, Any]:
    return {"tools": [{"type": "function", "function": function_of(tool)} for tool in tools]} if tools else {}


def _native_reply(reply: Reply) -> Message:
    message: Message = {"role": "assistant", "content": reply.text or reply.answer or None}
    for call in reply.calls:
        function = {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)}
        message.setdefault("tool_calls", []).append({"id": call.identity, "type": "function", "function": function})
    return message


def _native_result(result: Result) -> Message:
    return {"role": "tool", "tool_call_id": result.call.identity, "content": result.text}


def _read_native(message: Mapping[str, Any]) -> Reply:
    text, calls = _text_of(message), message.get("tool_calls")
    read = tuple(_read_function(one, index) for index, one in enumerate(calls if isinstance(calls, list) else ()))
    return Reply(text, read, None if read else text)


def _read_function(call: Any, index: int) -> Call:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return Call(f"call_{index}", "", {}, "This call names no function.")
    return _call(str(call.get("id") or f"call_{index}"), function["name"], function.get("arguments"))


def _call(identity: str, name: str, arguments: Any) -> Call:
    """Build a call. The arguments are an object or its JSON text; missing arguments are an empty object."""
    if isinstance(arguments, str):
        with suppress(ValueError, RecursionError):
            arguments = json.loads(arguments or "{}", strict=False)
    if not isinstance(arguments, dict | None):
        return Call(identity, name, {}, "The arguments are no JSON object. Give an object of the tool's arguments.")
    return Call(identity, name, _replace_surrogates(arguments or {}))


def _replace_surrogates(value: Any) -> Any:
    """A JSON value with lone surrogates replaced: models write them, and no server accepts them."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _text_of(message: Mapping[str, Any]) -> str:
    """The text of a message; some endpoints return it in parts."""
    content = message.get("content")
    if isinstance(content, list):
        texts = (part.get("text") for part in content if isinstance(part, dict))
        content = "".join(text for text in texts if isinstance(text, str))
    return str(_replace_surrogates(content)) if isinstance(content, str) else ""


def _describe_tools(tools: Sequence[Tool]) -> str:
    listed = "\n".join(json.dumps(function_of(tool), ensure_ascii=False) for tool in tools)
    return f"Tools, one JSON object a line:\n{listed}\n\n{_FORM}"


def _schema_body(tools: Sequence[Tool]) -> Mapping[str, Any]:
    """The response format with a schema of one call: the name of a tool with its arguments."""
    definitions: dict[str, Any] = {}
    schemas = [(tool.name, _schema_of(tool, definitions)) for tool in tools]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in (*schemas, (_FINAL, _FINAL_SCHEMA))
    ]
    schema = {"anyOf": calls, **({"$defs": definitions} if definitions else {})}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}}


def _schema_of(tool: Tool, definitions: dict[str, Any]) -> Mapping[str, Any]:
    """A tool's schema. A schema with references moves to `definitions`, with its references adapted."""
    if '"$ref"' not in json.dumps(dict(tool.schema)):
        return tool.schema
    definitions[tool.name] = _move_references(dict(tool.schema), f"#/$defs/{tool.name}")
    return {"$ref": f"#/$defs/{tool.name}"}


def _move_references(part: Any, root: str) -> Any:
    """A part of a schema with references into the schema (`#...`) prefixed with the new root."""
    if isinstance(part, list):
        return [_move_references(item, root) for item in part]
    if not isinstance(part, dict):
        return part
    moved = {key: _move_references(value, root) for key, value in part.items()}
    reference = moved.get("$ref")
    if isinstance(reference, str) and reference.startswith("#"):
        moved["$ref"] = f"{root}{reference[1:]}"
    return moved


def _text_reply(reply: Reply) -> Message:
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in reply.calls]
    if reply.answer is not None:
        calls = [{"name": _FINAL, "arguments": {"answer": reply.answer}}]
    text = reply.text or "\n".join(json.dumps(call, ensure_ascii=False) for call in calls)
    return {"role": "assistant", "content": text}


def _text_result(result: Result) -> Message:
    return {"role": "user", "content": f"{result.call.name} answered:\n{result.text}"}


def _read_text(message: Mapping[str, Any], *, is_enforced: bool) -> Reply:
    """Read calls anywhere in the text. With an enforced schema it has one call; else a text without is the answer."""
    text = _text_of(message)
    calls = list(_calls_in(text))
    if not calls:
        is_answer = not is_enforced and text.strip()
        return Reply(text, answer=text) if is_answer else Reply(text, problem=_NO_CALL)
    calls = calls[:1] if is_enforced else calls
    final = next((call for call in calls if call.name == _FINAL), None)
    others = tuple(call for call in calls if call.name != _FINAL)
    if final is None or others:
        return Reply(text, others)
    answer = final.arguments.get("answer", "")
    return Reply(text, answer=answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))


def _calls_in(text: str) -> Iterator[Call]:
    """Yield a call for each JSON object of a text that has the name of a tool, and arguments or no other member."""
    position = 0
    while match := _OBJECT.search(text, position):
        try:
            found, position = _DECODER.raw_decode(text, match.start())
        except (ValueError, RecursionError):
            position = match.start() + 1
            continue
        if call := _as_call(found, position):
            yield call


def _as_call(found: Mapping[str, Any], position: int) -> Call | None:
    if isinstance(inner := found.get("function"), dict):
        return _as_call(inner, position)
    name = next((found[key] for key in _NAMES if isinstance(found.get(key), str)), None)
    key = next((key for key in _ARGUMENTS if key in found), None)
    if name is None or (key is None and len(found) > 1):
        return None
    return _call(f"call_{position}", name, found[key] if key else None)


DIALECTS: Final[Mapping[ToolsMode, Dialect]] = {
    "native": Dialect(lambda _: "", _native_body, _native_reply, _native_result, _read_native),
    "json_schema": Dialect(
        _describe_tools, _schema_body, _text_reply, _text_result, partial(_read_text, is_enforced=True)
    ),
    "json_text": Dialect(
        _describe_tools, lambda _: {}, _text_reply, _text_result, partial(_read_text, is_enforced=False)
    ),
}
