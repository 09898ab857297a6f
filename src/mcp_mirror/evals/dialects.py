"""How a model is told of tools and calls them: natively, as JSON under a schema, or as JSON in text.

Pure: a conversation becomes the members of a chat completion's request, and a message becomes a reply. Everything is
in the words of OpenAI's chat completions, which local servers speak too.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Final, Literal

from mcp_mirror.core.schema_references import map_below
from mcp_mirror.evals.conversation import Call, Entry, Reply, Result, Tool, User

ToolsMode = Literal["native", "json_schema", "json_text"]

FINAL: Final = "final_answer"
"""The tool that ends a conversation, where every reply is a call."""

_FINAL_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"answer": {"type": "string"}},
    "required": ["answer"],
}
_FORM: Final = (
    "Reply with one JSON object and nothing else.\n"
    'To call a tool: {"name": "<tool>", "arguments": {...}}. You then get its result.\n'
    f'When the task is done: {{"name": "{FINAL}", "arguments": {{"answer": "<your answer>"}}}}.'
)
_NO_CALL: Final = f"That is no call. {_FORM}"
_NAMES: Final = ("name", "tool", "tool_name", "function")
_ARGUMENTS: Final = ("arguments", "parameters", "args", "input")
_DECODER: Final = json.JSONDecoder(strict=False)
_OBJECT: Final = re.compile(r"\{")

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Dialect:
    """One way to call tools."""

    instructions: Callable[[Sequence[Tool]], str]
    """What the system prompt says of it."""
    body: Callable[[Sequence[Tool]], Mapping[str, Any]]
    """Members of the request beside the messages."""
    write_reply: Callable[[Reply], Message]
    write_result: Callable[[Result], Message]
    read: Callable[[Mapping[str, Any]], Reply]
    """A message of the endpoint's as a reply."""


def write_messages(dialect: Dialect, system: str, entries: Iterable[Entry]) -> list[Message]:
    """A conversation as messages; neighbours of the user's side are one, since many chat templates want it so."""
    said = [{"role": "system", "content": system}] if system else []
    said += [_write(dialect, entry) for entry in entries]
    joined: list[Message] = []
    for role, group in groupby(said, key=lambda message: message["role"]):
        messages = list(group)
        if role == "user":
            joined.append({"role": role, "content": "\n\n".join(message["content"] for message in messages)})
        else:
            joined += messages
    return joined


def _write(dialect: Dialect, entry: Entry) -> Message:
    if isinstance(entry, User):
        return {"role": "user", "content": entry.text}
    return dialect.write_reply(entry) if isinstance(entry, Reply) else dialect.write_result(entry)


def function_of(tool: Tool) -> dict[str, Any]:
    """A tool as a function of the API."""
    return {"name": tool.name, "description": tool.description, "parameters": dict(tool.schema)}


def _native_body(tools: Sequence[Tool]) -> Mapping[str, Any]:
    return {"tools": [{"type": "function", "function": function_of(tool)} for tool in tools]} if tools else {}


def _native_reply(reply: Reply) -> Message:
    calls = [
        {
            "id": call.identity,
            "type": "function",
            "function": {"name": call.name, "arguments": json.dumps(dict(call.arguments), ensure_ascii=False)},
        }
        for call in reply.calls
    ]
    text = reply.text or reply.answer or None
    return {"role": "assistant", "content": text, **({"tool_calls": calls} if calls else {})}


def _native_result(result: Result) -> Message:
    return {"role": "tool", "tool_call_id": result.call.identity, "content": result.text}


def _read_native(message: Mapping[str, Any]) -> Reply:
    text = _text_of(message)
    if not isinstance(calls := message.get("tool_calls"), list):
        calls = []
    read = tuple(_read_function(one, index) for index, one in enumerate(calls))
    return Reply(text, read, None if read else text)


def _read_function(call: Any, index: int) -> Call:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return Call(f"call_{index}", "", {}, "This call names no function.")
    return _call(str(call.get("id") or f"call_{index}"), function["name"], function.get("arguments"))


def _call(identity: str, name: str, arguments: Any) -> Call:
    """A call, its arguments an object or the JSON text of one; none at all are an empty object."""
    read = arguments
    if isinstance(arguments, str):
        try:
            read = json.loads(arguments or "{}", strict=False)
        except (ValueError, RecursionError):
            read = arguments
    if read is None:
        read = {}
    if not isinstance(read, dict):
        return Call(identity, name, {}, "The arguments are no JSON object. Give an object of the tool's arguments.")
    return Call(identity, name, _whole(read))


def _whole(value: Any) -> Any:
    """JSON without halves of surrogate pairs, which models write and nobody takes."""
    return json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))


def _text_of(message: Mapping[str, Any]) -> str:
    """What a message says; some endpoints give it in parts."""
    content = message.get("content")
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if isinstance(part, dict) and _is_text(part.get("text")))
    return str(_whole(content)) if _is_text(content) else ""


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _described(tools: Sequence[Tool]) -> str:
    listed = "\n".join(json.dumps(function_of(tool), ensure_ascii=False) for tool in tools)
    return f"Tools, one JSON object a line:\n{listed}\n\n{_FORM}"


def _schema_body(tools: Sequence[Tool]) -> Mapping[str, Any]:
    """Any one call: the name of a tool with the arguments that it takes."""
    places: dict[str, Any] = {}
    schemas = [(tool.name, _placed(tool, places)) for tool in tools]
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": schema},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name, schema in (*schemas, (FINAL, _FINAL_SCHEMA))
    ]
    schema = {"anyOf": calls, **({"$defs": places} if places else {})}
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "call", "schema": schema}}}


def _placed(tool: Tool, places: dict[str, Any]) -> Mapping[str, Any]:
    """A tool's schema; one with references becomes a definition, and they lead below it."""
    if '"$ref"' not in json.dumps(dict(tool.schema)):
        return tool.schema
    places[tool.name] = _moved(dict(tool.schema), f"#/$defs/{tool.name}")
    return {"$ref": f"#/$defs/{tool.name}"}


def _moved(schema: Any, root: str) -> Any:
    if not isinstance(schema, dict):
        return schema
    moved = map_below(schema, lambda part: _moved(part, root))
    reference = moved.get("$ref")
    inside = isinstance(reference, str) and reference.startswith("#")
    return {**moved, "$ref": f"{root}{str(reference)[1:]}"} if inside else moved


def _text_reply(reply: Reply) -> Message:
    calls = [{"name": call.name, "arguments": dict(call.arguments)} for call in reply.calls]
    if reply.answer is not None:
        calls = [{"name": FINAL, "arguments": {"answer": reply.answer}}]
    text = reply.text or "\n".join(json.dumps(call, ensure_ascii=False) for call in calls)
    return {"role": "assistant", "content": text}


def _text_result(result: Result) -> Message:
    return {"role": "user", "content": f"{result.call.name} answered:\n{result.text}"}


def _read_schema(message: Mapping[str, Any]) -> Reply:
    text = _text_of(message)
    calls = list(_calls_in(text))
    return _reply(text, calls[:1]) if calls else Reply(text, problem=_NO_CALL)


def _read_text(message: Mapping[str, Any]) -> Reply:
    """Calls wherever they stand in the text; a text without any is the answer."""
    text = _text_of(message)
    calls = list(_calls_in(text))
    if not calls:
        return Reply(text, answer=text) if text.strip() else Reply(text, problem=_NO_CALL)
    return _reply(text, calls)


def _reply(text: str, calls: Sequence[Call]) -> Reply:
    ending = next((call for call in calls if call.name == FINAL), None)
    others = tuple(call for call in calls if call.name != FINAL)
    if ending is None or others:
        return Reply(text, others)
    answer = ending.arguments.get("answer", "")
    return Reply(text, answer=answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False))


def _calls_in(text: str) -> Iterator[Call]:
    """Each JSON object of a text that names a tool and has arguments, or nothing else."""
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
    argued = next((key for key in _ARGUMENTS if key in found), None)
    if name is None or (argued is None and len(found) > 1):
        return None
    return _call(f"call_{position}", name, found[argued] if argued else None)


DIALECTS: Final[Mapping[ToolsMode, Dialect]] = {
    "native": Dialect(lambda _: "", _native_body, _native_reply, _native_result, _read_native),
    "json_schema": Dialect(_described, _schema_body, _text_reply, _text_result, _read_schema),
    "json_text": Dialect(_described, lambda _: {}, _text_reply, _text_result, _read_text),
}
