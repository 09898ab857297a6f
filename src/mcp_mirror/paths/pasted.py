"""Memory paths in what models paste: whole notices, results as frameworks print them, and paths in quotes."""

import ast
import json
import re
from collections.abc import Mapping

from mcp_mirror.paths.grammar import UUID4, MemoryPath, find_bases, parse_path, strip_wrapping

MAX_NOTICE = 1 << 14
"""Characters up to which a text may be a pasted notice."""
_DECODE_FIRST = json.JSONDecoder(strict=False).raw_decode
_RESULT_STATES = frozenset(("isError", "is_error", "resultType", "result_type"))
_ESCAPE = r"\\(?:[\\'\"nrt]|x[0-9a-f]{2}|u[0-9a-f]{4}|U000[0-9a-f]{5}|U0010[0-9a-f]{4})"
_PRINTED_RESULT = re.compile(
    r"(?:CallToolResult\()?(?:_?meta=None,? )?(?:content=)?\[?"
    rf"TextContent\(type=['\"]text['\"], text=(?P<text>'(?:[^'\\\n]|{_ESCAPE})*+'|\"(?:[^\"\\\n]|{_ESCAPE})*+\")"
    r"(?:, (?:annotations|_?meta)=None)*+\)\]?"
    r"(?:,? (?:structured_?[cC]ontent=None|is_?[eE]rror=(?:False|True)|result_?[tT]ype='complete'))*+[\])}'\", ]*+"
)
"""A result of one text, its list of blocks, or its block, as Python prints those of the SDK."""

_INPUT_LINE = "The function "

PATH_LINE_PREFIX = "Path: "
"""The beginning of the line with the path, below a value that is shown."""
SHOWN_END = "Result ends."
"""The last line below a value that is shown: without it, small models ask for the value that they have read
(docs/evaluation/wording.md)."""
TEXT_PATH_LINE_PREFIX = "text_path: "
"""The same for the path of a text that contains more than the value."""
_SHOWN_LINES = re.compile(
    rf'(?:\A|\n){PATH_LINE_PREFIX}"(?P<base>[A-Za-z0-9_-]+-{UUID4})"'
    rf'(?:\n{TEXT_PATH_LINE_PREFIX}"[A-Za-z0-9_-]+-{UUID4}")?'
    rf'(?:\n"[A-Za-z0-9_/-]+" [^\n]{{1,200}}|\nand [0-9,]+ more){{0,9}}\n{re.escape(SHOWN_END)}\Z'
)
"""The last lines below a value that is shown whole: its path, the path of a text, the paths of media."""

TEXT_USE = "As an argument, the path stands for the text."
"""The line below a text that is shown, which has its path above it: without it, small models write the text again as
an argument (docs/evaluation/wording.md)."""
_SHOWN_TEXT = re.compile(rf'\A"(?P<base>[A-Za-z0-9_-]+-{UUID4})"\n')
_TEXT_END = f"\n{TEXT_USE}\n{SHOWN_END}"

_NOTICE_WORDS = r"This path (?:\([^\n]*\) )?stands for "
_NOTICE_ENDS = ("next tool.", "not the preview.")
_PATHLESS_NOTICE = re.compile(_NOTICE_WORDS)
_NOTICE_FRAMES = (
    (re.compile(rf'"[A-Za-z0-9_-]+-{UUID4}(?:/[0-9])?"\n{_NOTICE_WORDS}'), _NOTICE_ENDS),
    (re.compile(_INPUT_LINE), ("as input to another function.",)),
    (re.compile(rf'\{{"(?:result|memory_path)": "[A-Za-z0-9_-]+-{UUID4}"'), ("}",)),
)
"""Beginning and possible ends of each style of notice except `opaque`, and of the stub of a pruned text."""

_MAX_END = 4_000
"""Characters of the lines below a shown value: at most ten lines, each with a path and few words."""


def parse_wrapped_path(text: str) -> MemoryPath | None:
    """Parse a memory path in spaces, quotes and the like, or after a slash, as models write it; None for other texts.

    Quotes and the like only at the end of the text remain part of the last key, which may end with them. If the value
    has no such key, use `without_wrapping`. A whole notice is not a path, although keys may contain line breaks.
    """
    bare = parse_path(strip_wrapping(text).removeprefix("/"))
    if bare is None or ("\n" in text and is_whole_notice(text.strip())):
        return None
    if isinstance(bare.tokens[-1] if bare.tokens else None, int):
        return bare
    return parse_path(text) or bare


def unwrap_result(text: str) -> str:
    """The text of an MCP result or text block that a model pasted as some frameworks show it; other texts unchanged.

    Frameworks show results as JSON or as Python prints them. A result must consist of one text: other members are null,
    except those of a result's state. A JSON string is its text. Models add braces and quotes to the end.
    """
    bare = text.strip()
    if len(bare) > MAX_NOTICE:
        return text
    if printed := _PRINTED_RESULT.fullmatch(bare):
        return str(ast.literal_eval(printed["text"]))
    if not bare.startswith(("{", "[", '"')):
        return text
    try:
        shown, end = _DECODE_FIRST(bare)
    except (ValueError, RecursionError):
        return text
    found = _find_only_text(shown)
    return text if found is None or bare[end:].strip('}]", ') else found


def _find_only_text(shown: object) -> str | None:
    """The text in a result, in a list of blocks or in a block that contains nothing else."""
    block = shown
    match shown:
        case str(text):
            return text
        case [only]:
            block = only
        case {"content": [only], **others} if all(others[name] is None for name in others.keys() - _RESULT_STATES):
            block = only
    match block:
        case {"type": "text", "text": str(text), **others} if not any(other is not None for other in others.values()):
            return text
    return None


def is_whole_notice(text: str) -> bool:
    """Whether a text begins and ends like a notice: models paste notices as arguments."""
    is_framed = any(opening.match(text) and text.endswith(endings) for opening, endings in _NOTICE_FRAMES)
    return is_framed or _find_shown_base(text) is not None


def _find_shown_base(text: str) -> str | None:
    """The base of a value that is shown whole, with its path; None for any other text."""
    is_text = text.endswith(_TEXT_END)
    shown = _SHOWN_TEXT.match(text) if is_text else _SHOWN_LINES.search(text, max(len(text) - _MAX_END, 0))
    return shown["base"] if shown else None


def is_pathless_notice(text: str) -> bool:
    """Whether a text is a notice without its first line, the path, or the line below a shown text.

    Some models paste these as an argument.
    """
    if text in (TEXT_USE, f"{TEXT_USE}\n{SHOWN_END}"):
        return True
    first = text.partition("\n")[0]
    return bool(_PATHLESS_NOTICE.match(first)) and text.endswith(_NOTICE_ENDS) and not find_bases(first)


def find_copied_notice(text: str, notices: Mapping[str, str]) -> str | None:
    """The key of the notice of which a text is a copy, possibly with a few wrong lines; None if that is uncertain.

    The first lines, which describe the values, must be equal, and more than half of the other lines. Several equally
    similar notices are uncertain.

    Args:
        text: The text, without the line of the path.
        notices: The texts of notices, without that line, by base or path.
    """
    first, *rest = text.strip().split("\n")
    lines = set(rest)
    equal = {
        key: len(lines.intersection(known.split("\n")))
        for key, known in notices.items()
        if known.startswith(f"{first}\n")
    }
    most = max(equal.values(), default=0)
    closest = [key for key in equal if equal[key] == most]
    return closest[0] if len(closest) == 1 and 2 * most > len(lines) else None


def find_notice_bases(text: str) -> frozenset[str]:
    """The bases in a whole notice, without those in the input that one style repeats; empty for any other text.

    A notice with several bases does not stand for a single value. For a value that is shown, only the line with its
    path counts, not the bases in the value itself.
    """
    if shown := _find_shown_base(text):
        return frozenset({shown})
    if not is_whole_notice(text):
        return frozenset()
    first, _, rest = text.partition("\n")
    return find_bases(rest if rest and first.startswith(_INPUT_LINE) else text)


def read_notice_path(text: str) -> MemoryPath | None:
    """The path at the beginning of a whole notice; None for any other text, and for a notice with several bases."""
    bases = find_notice_bases(text)
    if len(bases) != 1:
        return None
    first = parse_wrapped_path(text.partition("\n")[0])
    return first if first and first.base in bases else MemoryPath(next(iter(bases)))
