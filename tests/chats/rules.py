"""What each provider demands of a conversation, as assertions.

Sources: the API references of Chat Completions, Responses and Messages (tool use, extended thinking), and the AI SDK's
`convertToLanguageModelPrompt`, as far as their published types do not say it already.
"""

import json
from collections.abc import Callable
from typing import Any

from mcp_mirror.prune import ChatFormat

Message = dict[str, Any]


def check_openai(messages: list[Message]) -> None:
    owed: list[str] = []
    seen: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            owed.remove(message["tool_call_id"])
            assert _is_text_or_parts(message["content"], {"text"})
            continue
        assert not owed, "a call is not answered"
        calls = message.get("tool_calls")
        assert calls is None or (message["role"] == "assistant" and calls)
        for call in calls or ():
            assert call["id"] not in seen
            seen.add(call["id"])
            owed.append(call["id"])
            arguments = call["function"]["arguments"] if call["type"] == "function" else call["custom"]["input"]
            assert isinstance(arguments, str)
        if message["content"] is None:
            assert calls
        else:
            allowed = {"text", "image_url"} if message["role"] == "user" else {"text"}
            assert _is_text_or_parts(message["content"], allowed)
    assert not owed


def check_responses(items: list[Message]) -> None:
    owed: dict[str, str] = {}
    calls = ("function_call", "custom_tool_call", "apply_patch_call", "shell_call")
    for item in items:
        kind = item.get("type", "message")
        if kind in calls:
            assert all(isinstance(item[key], str) for key in ("arguments", "input") if key in item)
            assert isinstance(item.get("operation", {"diff": ""})["diff"], str)
            owed[item["call_id"]] = f"{kind}_output"
        elif kind == "shell_call_output":
            assert owed.pop(item["call_id"]) == kind
            assert all(isinstance(chunk[key], str) for chunk in item["output"] for key in ("stdout", "stderr"))
            assert all(chunk["outcome"] == {"type": "exit", "exit_code": 1} for chunk in item["output"])
        elif kind.removesuffix("_output") in calls:
            assert owed.pop(item["call_id"]) == kind
            assert _is_text_or_parts(item["output"], {"input_text", "input_image"})
        elif kind == "message":
            allowed = {"output_text"} if item["role"] == "assistant" else {"input_text", "input_image"}
            assert _is_text_or_parts(item["content"], allowed)
        else:
            assert kind == "reasoning"
            assert item["encrypted_content"] == "gAAAA" * 40
    assert not owed


def check_anthropic(messages: list[Message]) -> None:
    owed: set[str] = set()
    for at, message in enumerate(messages):
        assert message["role"] == ("user", "assistant")[at % 2], "roles alternate"
        blocks = message["content"]
        if isinstance(blocks, str):
            assert blocks.strip()
            assert not owed
            continue
        assert blocks
        kinds = [block["type"] for block in blocks]
        if message["role"] == "user":
            results = [block for block in blocks if block["type"] == "tool_result"]
            assert kinds[: len(results)] == ["tool_result"] * len(results), "results come first"
            assert {block["tool_use_id"] for block in results} == owed
            owed = set()
            assert all(_is_anthropic_result(block) for block in results)
        else:
            thoughts = [kind for kind in kinds if "thinking" in kind]
            assert kinds[: len(thoughts)] == thoughts, "thinking comes first"
            owed = {block["id"] for block in blocks if block["type"] == "tool_use"}
            assert len(owed) == kinds.count("tool_use")
            assert all(isinstance(block["input"], dict) for block in blocks if block["type"] == "tool_use")
            assert all(block["signature"] for block in blocks if block["type"] == "thinking")
        assert all(block["text"].strip() for block in blocks if block["type"] == "text")
    assert not owed


def _is_anthropic_result(block: Message) -> bool:
    content = block["content"]
    if isinstance(content, str):
        return bool(content.strip())
    allowed = {"text"} if block.get("is_error") else {"text", "image"}
    return _is_text_or_parts(content, allowed) and all(part.get("text", "-").strip() for part in content)


def check_vercel(messages: list[Message]) -> None:
    owed: set[str] = set()
    for message in messages:
        if message["role"] == "tool":
            for part in message["content"]:
                owed.remove(part["toolCallId"])
                assert _is_vercel_output(part["output"])
            continue
        assert not owed, "a call is not answered"
        if message["role"] == "assistant":
            calls = [part for part in message["content"] if part["type"] == "tool-call"]
            owed = {call["toolCallId"] for call in calls}
            assert len(owed) == len(calls)
            assert all(isinstance(call["input"], dict) for call in calls)
    assert not owed


def _is_vercel_output(output: Message) -> bool:
    if output["type"] in ("text", "error-text"):
        return isinstance(output["value"], str)
    if output["type"] == "content":
        return _is_text_or_parts(output["value"], {"text", "image-data"})
    return output["type"] in ("json", "error-json") and bool(json.dumps(output["value"]))


def _is_text_or_parts(content: Any, allowed: set[str]) -> bool:
    if isinstance(content, str):
        return True
    return bool(content) and all(part["type"] in allowed for part in content)


RULES: dict[ChatFormat, Callable[[list[Message]], None]] = {
    "openai": check_openai,
    "openai-responses": check_responses,
    "anthropic": check_anthropic,
    "vercel": check_vercel,
}
