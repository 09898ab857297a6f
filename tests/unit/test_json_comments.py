"""Comments and trailing commas in JSON are blanked, in linear time."""

import json

import pytest

from mcp_mirror.system.json_comments import blank_comments


def test_comments_and_trailing_commas_become_spaces() -> None:
    text = b'{ // one\r\n"a": "//x", /* two\n*/ "b": ["/* y */", "\\",",],}'
    blanked = blank_comments(text)
    assert len(blanked) == len(text)
    assert [len(line) for line in blanked.split(b"\n")] == [len(line) for line in text.split(b"\n")]
    assert json.loads(blanked) == {"a": "//x", "b": ["/* y */", '",']}


@pytest.mark.parametrize(
    "text", [b"/* " * 2_000_000, b'"' + b'\\"' * 2_000_000, b"," * 2_000_000 + b" " * 2_000_000, b'"' * 2_000_001]
)
def test_text_without_an_end_takes_linear_time(text: bytes) -> None:
    assert len(blank_comments(text)) == len(text)
