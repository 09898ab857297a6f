"""Results as a program passes them to its model."""

import json
from typing import Any

import pytest

from mcp_mirror.functions.reply import read_reply

TEXT_BLOCK = {"type": "text", "text": "said"}
LINK = {"type": "resource_link", "uri": "file:///ä", "name": "a"}


@pytest.mark.parametrize(
    ("blocks", "text"),
    [
        ([TEXT_BLOCK], "said"),
        ([TEXT_BLOCK, TEXT_BLOCK], "said\nsaid"),
        ([], ""),
        ([{"type": "image", "data": "YQ==", "mimeType": "image/png"}], "(image: image/png)"),
        ([{"type": "audio", "data": "YQ=="}], "(audio: of no named type)"),
        ([{"type": "resource", "resource": {"uri": "a:b", "text": "held"}}], "held"),
        ([{"type": "resource", "resource": {"uri": "a:b", "blob": "YQ=="}}], "(file: of no named type)"),
        ([{"type": "resource", "resource": {"blob": "", "mimeType": "application/pdf"}}], "(file: application/pdf)"),
        ([{"type": "image", "data": "", "mimeType": f"a\x1b{'x' * 200}"}], f"(image: a\\u001b{'x' * 50}...)"),
        ([LINK], '{"type": "resource_link", "uri": "file:///ä", "name": "a"}'),
        ([{"type": "text"}], '{"type": "text"}'),
        ([{"type": "resource", "resource": None}], '{"type": "resource", "resource": null}'),
        ([{"type": []}], '{"type": []}'),
    ],
)
def test_the_text_is_what_a_model_reads_of_each_block(blocks: list[Any], text: str) -> None:
    raw = json.dumps(blocks).encode()
    reply = read_reply({"content": (raw[:1], raw[1:])})
    assert (reply.text, str(reply), reply.is_error) == (text, text, False)
    assert list(reply.content) == blocks


def test_structured_content_is_the_text_without_a_text_block() -> None:
    assert read_reply({"content": b"[]", "structuredContent": b'{"n": 1.0}'}).text == '{"n": 1.0}'
    assert read_reply({"content": json.dumps([TEXT_BLOCK]).encode(), "structuredContent": b"{}"}).text == "said"
    assert read_reply({"structuredContent": b"{}"}).text == "{}"
    assert read_reply({"structuredContent": b'{"result": [1.0]}'}).text == "[1.0]"


def test_what_is_not_a_block_is_left_out() -> None:
    reply = read_reply({"content": json.dumps([1, None, TEXT_BLOCK]).encode()})
    assert (reply.text, reply.content) == ("said", (TEXT_BLOCK,))


@pytest.mark.parametrize(
    "meta", [b"null", b"[]", b'{"n": %b}' % (b"1" * 5000), b'{"mcp-mirror/schema": {"type": "x"}}']
)
def test_only_the_schema_of_a_table_is_read_from_the_metadata(meta: bytes) -> None:
    expected = {"type": "x"} if b"schema" in meta else None
    assert read_reply({"content": b"[]", "_meta": meta}).schema == expected
    assert read_reply({"content": b"[]"}, PATH, b'{"_meta": %b}' % meta).schema == expected


def test_an_error_is_one() -> None:
    assert read_reply({"content": b"[]", "isError": b"true"}).is_error


PATH = "load-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"
PAPER = f'The output was stored in memory under the path "{PATH}". It is a dictionary of one key.'


@pytest.mark.parametrize(
    ("text", "preview"),
    [
        (f'"{PATH}"\ntext, 134 kB\nfirst line', "text, 134 kB\nfirst line"),
        (f'{{"n": 1}}\nStored as "{PATH}".', '{"n": 1}'),
        (f'"{PATH}"\nimage/png, path "{PATH}/1"', f'image/png, path "{PATH}/1"'),
        (f"{PATH}\n", ""),
        (f"{PAPER}\nGive a path.", f"{PAPER}\nGive a path."),
    ],
)
def test_a_preview_is_the_notice_without_its_path(text: str, preview: str) -> None:
    blocks = [{"type": "text", "text": text}, TEXT_BLOCK]
    reply = read_reply({"content": json.dumps(blocks).encode()}, PATH)
    assert (reply.path, reply.preview) == (PATH, f"{preview}\nsaid".lstrip("\n"))


def test_a_reply_without_a_stored_value_has_no_path_and_no_preview() -> None:
    reply = read_reply({"content": json.dumps([TEXT_BLOCK]).encode()})
    assert (reply.path, reply.preview) == (None, None)
