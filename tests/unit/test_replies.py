"""Results for clients: the order of their blocks, links to values, and what they cost."""

import json
from typing import Any

import pytest

from mcp_mirror.core.replies import (
    ToolResult,
    append_text,
    build_content_reply,
    build_path_reply,
    build_refusal_result,
    build_reply,
    count_hidden_tokens,
    count_reply_bytes,
    encode_text_block,
    read_texts,
)
from mcp_mirror.core.results.captured import Captured
from mcp_mirror.core.results.processing import ProcessedResult
from mcp_mirror.types import Draft, TextSize

IMAGE = {"type": "image", "data": "AAAA", "mimeType": "image/png"}
NOTICE = {"type": "text", "text": "notice"}
VALUE = Draft(b'{"a":1}', "object", 5)
TEXT = Draft(b'"\\n"', "text", 1, text=TextSize(1, 2))
MEDIA = Draft(b'"AAAA"', "binary", 9, media_type="image/png")


def processed(**captured: Any) -> ProcessedResult:
    return ProcessedResult({}, Captured(passed=(json.dumps(IMAGE).encode(),), **captured), "notice")


def decoded(reply: ToolResult) -> dict[str, Any]:
    return {
        name: json.loads(b"".join(map(bytes, part)) if isinstance(part, tuple) else bytes(part))
        for name, part in reply.items()
    }


def test_a_notice_precedes_other_blocks_and_follows_a_whole_result() -> None:
    assert decoded(build_reply(processed(value=VALUE), None)) == {"content": [NOTICE, IMAGE]}
    assert decoded(build_reply(processed(value=VALUE, shown=""), None)) == {"content": [IMAGE, NOTICE]}


@pytest.mark.parametrize(
    ("value", "more"),
    [
        (VALUE, {"size": 7, "mimeType": "application/json"}),
        (TEXT, {"size": 1, "mimeType": "text/plain"}),
        (MEDIA, {"mimeType": "image/png"}),
    ],
)
def test_a_link_names_the_value_and_its_size_if_known(value: Draft, more: dict[str, Any]) -> None:
    link = decoded(build_reply(processed(value=value), "grid-1"))["content"][-1]
    assert link == {"type": "resource_link", "uri": link["uri"], "name": "grid-1", **more}
    assert link["uri"].endswith("grid-1")
    assert decoded(build_reply(processed(), "grid-1")) == decoded(build_reply(processed(), None))


def test_an_error_stays_an_error() -> None:
    failed = processed(value=VALUE, is_error=True)
    assert decoded(build_reply(failed, None)) == {"content": [NOTICE, IMAGE], "isError": True}
    path = [{"type": "text", "text": "grid-1\n"}]
    assert decoded(build_path_reply(failed, "grid-1")) == {"content": path, "isError": True}
    assert decoded(build_path_reply(processed(value=VALUE), "grid-1")) == {"content": path}
    refused = "long " * 10_000
    assert decoded(build_refusal_result(refused)) == {"content": [{"type": "text", "text": refused}], "isError": True}


def test_hidden_tokens_are_those_of_the_values_that_no_model_saw() -> None:
    assert count_hidden_tokens(Captured(VALUE)) == 5
    assert count_hidden_tokens(Captured(VALUE, companion=TEXT)) == 5
    assert count_hidden_tokens(Captured(VALUE, companion=TEXT, is_named=True)) == 6
    assert count_hidden_tokens(Captured(MEDIA)) > MEDIA.tokens
    assert count_hidden_tokens(Captured(VALUE, shown="{}")) == count_hidden_tokens(Captured()) == 0


def test_bytes_and_texts_of_a_result_in_parts() -> None:
    reply = build_content_reply([(encode_text_block("one"),), (json.dumps(IMAGE).encode(),), (encode_text_block("2"),)])
    assert read_texts(reply) == "one\n2"
    assert read_texts({}) == ""
    whole = {"content": b"".join(map(bytes, reply["content"])), "isError": b"true"}
    assert read_texts(append_text({**reply, "isError": b"true"}, "last")) == "one\n2\nlast"
    assert append_text({"isError": b"true"}, "last")["isError"] == b"true"
    assert count_reply_bytes(whole) == count_reply_bytes(reply) + len(b"true")
