"""Blanks the comments and trailing commas in JSON, which the files of many MCP clients have."""

import re
from typing import Final

from mcp_mirror.system.patterns import lazy_pattern

# A string or a comment without an end goes to the end of the text: otherwise each quote would search for it again.
_STRING: Final = rb'"(?:[^"\\]|\\.)*+"?'
_COMMENT: Final = lazy_pattern(_STRING + rb"|//[^\r\n]*+|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TRAILING_COMMA: Final = lazy_pattern(_STRING + rb"|,(?=[ \t\r\n]*+[}\]])", re.DOTALL)
_VISIBLE: Final = lazy_pattern(rb"[^ \t\r\n]")


def blank_comments(text: bytes) -> bytes:
    """Return the text with spaces in place of comments and trailing commas: all offsets and line breaks stay."""
    return _TRAILING_COMMA.sub(_blank, _COMMENT.sub(_blank, text))


def _blank(match: re.Match[bytes]) -> bytes:
    return match[0] if match[0].startswith(b'"') else _VISIBLE.sub(b" ", match[0])
