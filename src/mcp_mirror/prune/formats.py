"""Where the providers' messages hold what can be pruned: one table for each format.

Sources: the request types of the `openai` (3.52) and `anthropic` (2.11) Python packages, and `modelMessageSchema` of
the AI SDK (npm `ai` 6 and 7; of version 4, `args` and `result`). What no rule speaks of is never touched: reasoning,
images that users sent, refusals, calls that the provider itself carried out, and whatever is not known here.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from mcp_mirror.prune.stubs import Blocks, Form, Json, JsonText, Text
from mcp_mirror.types import Location

ChatFormat = Literal["openai", "openai-responses", "anthropic", "vercel"]
"""Chat Completions messages; Responses input items; Messages; the AI SDK's `ModelMessage`s."""

Message = dict[str, Any]

Kind = Literal["result", "input", "assistant", "user"]

LABELS: Final[Mapping[Kind, str]] = {
    "result": "tool result",
    "input": "tool input",
    "assistant": "assistant text",
    "user": "user text",
}


@dataclass(frozen=True, slots=True)
class FormatRule:
    """One place of a format where something can be pruned."""

    kind: Kind
    message: tuple[str, str]
    """What the message says of itself: a member and its value."""
    value: Location
    """Where it stands in the message, or in an item of its list."""
    forms: Mapping[type, Form]
    """The shapes that it may have there."""
    items: str | None = None
    """The message's list that holds it."""
    item: Mapping[Location, str] = field(default_factory=dict)
    """What the item says of itself."""
    owner: str | None = None
    """The key of the id of the call."""


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of a message that is large or small, pruned or not."""

    kind: Kind
    at: int
    """Which message it is in."""
    where: Location
    """Where in the message."""
    form: Form
    value: Any
    call: str | None
    """The id of the call that it belongs to."""
    item: Message
    """What it stands in: the message, or an item of its list."""

    @property
    def owner(self) -> str:
        """Whose it is: the call, else the place; a JSON text."""
        return json.dumps([self.kind, self.at, *self.where] if self.call is None else [self.kind, self.call])

    @property
    def is_sealed(self) -> bool:
        """Something beside it depends on it as it is."""
        item = self.item
        return any(item.get(key) for key in _DEPENDENT) or any(_holds_signature(item.get(key)) for key in _METADATA)


_TEXT: Final[Mapping[type, Form]] = {str: Text()}
_ARGUMENTS: Final[Mapping[type, Form]] = {str: JsonText()}
_INPUT: Final[Mapping[type, Form]] = {dict: Json()}
_JSON: Final[Mapping[type, Form]] = {dict: Json(), list: Json(), str: Json()}
_CHAT_BLOCKS: Final = Blocks("text", frozenset())
_RESPONSES_BLOCKS: Final = Blocks("input_text", frozenset(("input_image", "input_file")))
_ANTHROPIC_BLOCKS: Final = Blocks("text", frozenset(("image", "document", "search_result")))
_VERCEL_FILES: Final = ("file", "file-data", "file-url", "file-id", "image-data", "image-url", "image-file-id", "media")
_VERCEL_BLOCKS: Final = Blocks("text", frozenset(_VERCEL_FILES))


def _texts(kind: Literal["assistant", "user"], *types: str) -> tuple[FormatRule, ...]:
    """A role's text, as the content itself or in parts of it."""
    said = ("role", kind)
    parts = (FormatRule(kind, said, ("text",), _TEXT, "content", {("type",): name}) for name in types)
    return (FormatRule(kind, said, ("content",), _TEXT), *parts)


def _output(item: str, owner: str) -> FormatRule:
    """The result that an item of the Responses API is."""
    return FormatRule("result", ("type", item), ("output",), {str: Text(), list: _RESPONSES_BLOCKS}, owner=owner)


def _vercel_result(output: str, value: Location, forms: Mapping[type, Form]) -> FormatRule:
    item: dict[Location, str] = {("type",): "tool-result"} | ({("output", "type"): output} if output else {})
    return FormatRule("result", ("role", "tool"), value, forms, "content", item, "toolCallId")


def _vercel_call(value: str) -> FormatRule:
    return FormatRule(
        "input", ("role", "assistant"), (value,), _INPUT, "content", {("type",): "tool-call"}, "toolCallId"
    )


FORMATS: Final[Mapping[ChatFormat, tuple[FormatRule, ...]]] = {
    "openai": (
        FormatRule("result", ("role", "tool"), ("content",), {str: Text(), list: _CHAT_BLOCKS}, owner="tool_call_id"),
        FormatRule("result", ("role", "function"), ("content",), _TEXT),
        FormatRule("input", ("role", "assistant"), ("function_call", "arguments"), _ARGUMENTS),
        FormatRule("input", ("role", "assistant"), ("function", "arguments"), _ARGUMENTS, "tool_calls", owner="id"),
        FormatRule("input", ("role", "assistant"), ("custom", "input"), _TEXT, "tool_calls", owner="id"),
        *_texts("assistant", "text"),
        *_texts("user", "text"),
    ),
    "openai-responses": (
        _output("function_call_output", "call_id"),
        _output("custom_tool_call_output", "call_id"),
        _output("local_shell_call_output", "id"),
        FormatRule("input", ("type", "function_call"), ("arguments",), _ARGUMENTS, owner="call_id"),
        FormatRule("input", ("type", "custom_tool_call"), ("input",), _TEXT, owner="call_id"),
        *_texts("assistant", "output_text", "input_text"),
        *_texts("user", "input_text"),
    ),
    "anthropic": (
        FormatRule(
            "result",
            ("role", "user"),
            ("content",),
            {str: Text(), list: _ANTHROPIC_BLOCKS},
            "content",
            {("type",): "tool_result"},
            "tool_use_id",
        ),
        FormatRule("input", ("role", "assistant"), ("input",), _INPUT, "content", {("type",): "tool_use"}, "id"),
        *_texts("assistant", "text"),
        *_texts("user", "text"),
    ),
    "vercel": (
        _vercel_result("text", ("output", "value"), _TEXT),
        _vercel_result("error-text", ("output", "value"), _TEXT),
        _vercel_result("json", ("output", "value"), _JSON),
        _vercel_result("error-json", ("output", "value"), _JSON),
        _vercel_result("content", ("output", "value"), {list: _VERCEL_BLOCKS}),
        _vercel_result("", ("result",), _JSON),
        _vercel_call("input"),
        _vercel_call("args"),
        *_texts("assistant", "text"),
        *_texts("user", "text"),
    ),
}

_RULES: Final = {
    provider: {said: [rule for rule in rules if rule.message == said] for said in {rule.message for rule in rules}}
    for provider, rules in FORMATS.items()
}
_DEPENDENT: Final = ("annotations", "citations", "experimental_content", "logprobs", "providerExecuted")
"""Members that speak of the value beside them; where one says anything, the value stays."""
_METADATA: Final = ("extra_content", "providerMetadata", "providerOptions")
"""Members in which frameworks pass on what the model's provider said, such as Gemini's `thoughtSignature`."""


def check_messages(messages: Sequence[object], provider: ChatFormat) -> None:
    """See that messages can be looked at.

    Raises:
        TypeError: A message is no dict.
        ValueError: The format is not known.
    """
    if provider not in FORMATS:
        raise ValueError(f"There is no format {provider!r}. Give one of {', '.join(FORMATS)}.")
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            name = type(message).__name__
            raise TypeError(f"Message {at} is of type {name}. Give plain dicts, such as `message.model_dump()` gives.")


def slots_of(messages: Sequence[Message], provider: ChatFormat) -> Iterator[Slot]:
    """All that can be pruned or was pruned, in the order of the conversation."""
    for at, message in enumerate(messages):
        said = [(key, str(message.get(key))) for key in ("role", "type")]
        rules = [rule for pair in said for rule in _RULES[provider].get(pair, ())]
        found = [slot for rule in rules for slot in _slots_by(rule, at, message)]
        yield from sorted(found, key=lambda slot: _position(message, slot.where)) if len(found) > 1 else found


def is_assistants(message: Message) -> bool:
    """Whether the model made a message: of the Responses API also a call, or its reasoning."""
    said = str(message.get("type"))
    return message.get("role") == "assistant" or said == "reasoning" or said.endswith("_call")


def value_at(node: Any, where: Location) -> Any:
    """What stands at a place; None where there is nothing."""
    for step in where:
        node = node.get(step) if isinstance(node, dict) else None
    return node


def _slots_by(rule: FormatRule, at: int, message: Message) -> Iterator[Slot]:
    for where, item in _items(message, rule.items):
        value = value_at(item, rule.value)
        form = rule.forms.get(type(value))
        if form is None or any(value_at(item, place) != said for place, said in rule.item.items()):
            continue
        if rule.kind in ("assistant", "user") and not value.strip():
            continue
        call = item.get(rule.owner) if rule.owner else None
        yield Slot(rule.kind, at, (*where, *rule.value), form, value, call if isinstance(call, str) else None, item)


def _items(message: Message, key: str | None) -> Iterator[tuple[Location, Message]]:
    if key is None:
        yield (), message
        return
    listed = message.get(key)
    for index, item in enumerate(listed if isinstance(listed, list) else ()):
        if isinstance(item, dict):
            yield (key, index), item


def _position(message: Message, where: Location) -> tuple[int, Location]:
    """Where a slot stands in its message: the members in their order, then the items."""
    return list(message).index(str(where[0])), where[1:2]


def _holds_signature(metadata: Any) -> bool:
    if not isinstance(metadata, dict):
        return False
    return any(
        (value and "signature" in str(key).lower()) or _holds_signature(value) for key, value in metadata.items()
    )
