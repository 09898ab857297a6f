"""The prunable parts of the providers' message formats: one table for each format.

Sources: the request types of the `openai` (3.52) and `anthropic` (2.11) Python packages, and `modelMessageSchema` of
the AI SDK (npm `ai` 6 and 7; of version 4, `args` and `result`). Parts without a rule are never changed: reasoning,
images of users, refusals, calls that the provider itself executed, and unknown parts.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from mcp_mirror.prune.stubs import Blocks, Json, JsonText, PartForm, Text
from mcp_mirror.types import Location

ChatFormat = Literal["openai", "openai-responses", "anthropic", "vercel"]
"""Chat Completions messages; Responses input items; Messages; the AI SDK's `ModelMessage`s."""

Message = dict[str, Any]

PartKind = Literal["result", "input", "assistant", "user"]

KIND_NAMES: Final[Mapping[PartKind, str]] = {
    "result": "tool result",
    "input": "tool input",
    "assistant": "assistant text",
    "user": "user text",
}


class FormatRule(msgspec.Struct, frozen=True):
    """A prunable part of a format."""

    kind: PartKind
    message: tuple[str, str]
    """A member of the message and its value, which select the messages of this rule."""
    value: Location
    """The location of the part in the message, or in an item of its list."""
    forms: Mapping[type, PartForm]
    """The supported types of the part."""
    items: str | None = None
    """The key of the message's list that contains the item."""
    item: Mapping[Location, str] = msgspec.field(default_factory=dict)
    """Members of the item and their values, which select the items of this rule."""
    owner: str | None = None
    """The key of the call id, in the item or in the message."""


class Slot(msgspec.Struct, frozen=True):
    """A prunable or pruned part of a message."""

    kind: PartKind
    at: int
    """The index of its message."""
    where: Location
    """The location in the message."""
    form: PartForm
    value: Any
    call: str | None
    """The id of the call that the part belongs to."""
    item: Message
    """The message, or the item of its list, that contains the part."""

    @property
    def owner(self) -> str:
        """A key for the owner of the part: its call, else its location; a JSON text."""
        return json.dumps([self.kind, self.at, *self.where] if self.call is None else [self.kind, self.call])

    @property
    def is_sealed(self) -> bool:
        """Whether another member depends on the part, so that it must remain unchanged."""
        item = self.item
        return any(item.get(key) for key in _DEPENDENT_MEMBERS) or any(
            _contains_signature(item.get(key)) for key in _METADATA_MEMBERS
        )


_TEXT: Final[Mapping[type, PartForm]] = {str: Text()}
_ARGUMENTS: Final[Mapping[type, PartForm]] = {str: JsonText()}
_INPUT: Final[Mapping[type, PartForm]] = {dict: Json()}
_JSON: Final[Mapping[type, PartForm]] = {dict: Json(), list: Json(), str: Json()}
_CHAT_BLOCKS: Final = Blocks("text", frozenset())
_RESPONSES_BLOCKS: Final = Blocks("input_text", frozenset(("input_image", "input_file")))
_ANTHROPIC_BLOCKS: Final = Blocks("text", frozenset(("image", "document", "search_result")))
_VERCEL_FILES: Final = ("file", "file-data", "file-url", "file-id", "image-data", "image-url", "image-file-id", "media")
_VERCEL_BLOCKS: Final = Blocks("text", frozenset(_VERCEL_FILES))


def _build_text_rules(kind: Literal["assistant", "user"], *types: str) -> tuple[FormatRule, ...]:
    """The rules for a role's text: the content itself, or parts of it."""
    selector = ("role", kind)
    parts = (FormatRule(kind, selector, ("text",), _TEXT, "content", {("type",): name}) for name in types)
    return (FormatRule(kind, selector, ("content",), _TEXT), *parts)


def _build_output_rule(item: str, owner: str) -> FormatRule:
    """The rule for a result item of the Responses API."""
    return FormatRule("result", ("type", item), ("output",), {str: Text(), list: _RESPONSES_BLOCKS}, owner=owner)


def _build_shell_rule(stream: str) -> FormatRule:
    return FormatRule("result", ("type", "shell_call_output"), (stream,), _TEXT, "output", owner="call_id")


def _build_vercel_result_rule(output: str, value: Location, forms: Mapping[type, PartForm]) -> FormatRule:
    item: dict[Location, str] = {("type",): "tool-result"} | ({("output", "type"): output} if output else {})
    return FormatRule("result", ("role", "tool"), value, forms, "content", item, "toolCallId")


def _build_vercel_call_rule(value: str) -> FormatRule:
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
        *_build_text_rules("assistant", "text"),
        *_build_text_rules("user", "text"),
    ),
    "openai-responses": (
        _build_output_rule("function_call_output", "call_id"),
        _build_output_rule("custom_tool_call_output", "call_id"),
        _build_output_rule("local_shell_call_output", "id"),
        _build_output_rule("apply_patch_call_output", "call_id"),
        _build_shell_rule("stdout"),
        _build_shell_rule("stderr"),
        FormatRule("input", ("type", "function_call"), ("arguments",), _ARGUMENTS, owner="call_id"),
        FormatRule("input", ("type", "custom_tool_call"), ("input",), _TEXT, owner="call_id"),
        FormatRule("input", ("type", "apply_patch_call"), ("operation", "diff"), _TEXT, owner="call_id"),
        *_build_text_rules("assistant", "output_text", "input_text"),
        *_build_text_rules("user", "input_text"),
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
        *_build_text_rules("assistant", "text"),
        *_build_text_rules("user", "text"),
    ),
    "vercel": (
        _build_vercel_result_rule("text", ("output", "value"), _TEXT),
        _build_vercel_result_rule("error-text", ("output", "value"), _TEXT),
        _build_vercel_result_rule("json", ("output", "value"), _JSON),
        _build_vercel_result_rule("error-json", ("output", "value"), _JSON),
        _build_vercel_result_rule("content", ("output", "value"), {list: _VERCEL_BLOCKS}),
        _build_vercel_result_rule("", ("result",), _JSON),
        _build_vercel_call_rule("input"),
        _build_vercel_call_rule("args"),
        *_build_text_rules("assistant", "text"),
        *_build_text_rules("user", "text"),
    ),
}

_RULES: Final = {
    provider: {
        selector: [rule for rule in rules if rule.message == selector] for selector in {rule.message for rule in rules}
    }
    for provider, rules in FORMATS.items()
}
_DEPENDENT_MEMBERS: Final = ("annotations", "citations", "experimental_content", "logprobs", "providerExecuted")
"""Members that refer to the value beside them; if one is set, the value remains unchanged."""
_METADATA_MEMBERS: Final = ("extra_content", "providerMetadata", "providerOptions")
"""Members in which frameworks pass on provider data, such as Gemini's `thoughtSignature`."""


def check_messages(messages: Iterable[object], provider: ChatFormat) -> None:
    """Check that messages can be pruned.

    Raises:
        TypeError: A message is not a dict, or the messages are not a list, such as a generator, which can be read once.
        ValueError: The format is unknown.
    """
    if provider not in FORMATS:
        raise ValueError(f"Unknown format {provider!r}. Use one of {', '.join(FORMATS)}.")
    if not isinstance(messages, Sequence):
        raise TypeError(f"The messages are of type {type(messages).__name__}. Pass a list of plain dicts.")
    for at, message in enumerate(messages):
        if not isinstance(message, dict):
            name = type(message).__name__
            raise TypeError(
                f"Message {at} is of type {name}. Pass plain dicts, such as `message.model_dump(exclude_none=True)`."
            )


def find_slots(messages: Sequence[Message], provider: ChatFormat) -> Iterator[Slot]:
    """Find all prunable and pruned parts in the order of the conversation."""
    for at, message in enumerate(messages):
        selectors = [(key, str(message.get(key))) for key in ("role", "type")]
        rules = [rule for pair in selectors for rule in _RULES[provider].get(pair, ())]
        found = [slot for rule in rules for slot in _find_slots_of_rule(rule, at, message)]
        members = [*message]
        yield from sorted(found, key=lambda slot: (members.index(str(slot.where[0])), slot.where))


def is_from_model(message: Message) -> bool:
    """Whether a message comes from the model; in the Responses API also a call or its reasoning."""
    kind = str(message.get("type"))
    return message.get("role") == "assistant" or kind == "reasoning" or kind.endswith("_call")


def value_at(node: Any, where: Location) -> Any:
    """The value at a location; None if it does not exist."""
    for step in where:
        node = node.get(step) if isinstance(node, dict) else None
    return node


def _find_slots_of_rule(rule: FormatRule, at: int, message: Message) -> Iterator[Slot]:
    items: list[tuple[Location, Any]] = [((), message)]
    if rule.items is not None:
        listed = message.get(rule.items)
        items = [((rule.items, index), item) for index, item in enumerate(listed if isinstance(listed, list) else ())]
    for where, item in items:
        value = value_at(item, rule.value)
        form = rule.forms.get(type(value))
        if form is None or any(value_at(item, place) != wanted for place, wanted in rule.item.items()):
            continue
        if rule.kind in ("assistant", "user") and not value.strip():
            continue
        call = item.get(rule.owner, message.get(rule.owner)) if rule.owner else None
        yield Slot(rule.kind, at, (*where, *rule.value), form, value, call if isinstance(call, str) else None, item)


def _contains_signature(metadata: Any) -> bool:
    if not isinstance(metadata, dict):
        return False
    return any(
        (value and "signature" in str(key).lower()) or _contains_signature(value) for key, value in metadata.items()
    )
