"""What a model reads in a result, for scripts of the oracle."""

import json
import re
from typing import Any

from mcp_mirror.paths import BASE_PATTERN, PATH_LINE_PREFIX, SHOWN_END, TEXT_USE

_LINES_BELOW = re.compile(rf'\n+(?:{PATH_LINE_PREFIX}"{BASE_PATTERN}"\n(?:.*\n)*?)?{re.escape(SHOWN_END)}\Z')
"""The lines below a shown value: those about its path, if it has one, and the last line."""
_SHOWN_TEXT = re.compile(
    rf'"{BASE_PATTERN}(?:/[^\n]*)?"\n\n(?P<text>.*?)\n{{1,2}}(?:The result also has [^\n]*\n)?(?:also in [^\n]*\n)*'
    rf"{re.escape(TEXT_USE)}\n{re.escape(SHOWN_END)}",
    re.DOTALL,
)
_STDOUT = re.compile(r"=== STDOUT ===\n(.*?)\n=== ", re.DOTALL)


def read_json(text: str) -> Any:
    """The JSON value of a result that is shown, without the gateway's lines below it."""
    return json.loads(read_shown(text))


def read_rows(text: str) -> list[Any]:
    """The JSON array that is the end of a text, such as the rows of a query."""
    rows: list[Any] = read_json(text[text.index("[") :])
    return rows


def path_in(text: str) -> str:
    """The memory path in a notice."""
    found = re.search(BASE_PATTERN, text)
    if not found:
        raise LookupError(f"The result has no path: {text[:300]}")
    return found[0]


def path_or_value(text: str) -> Any:
    """The memory path of a stored result, or the value of a small one, which has no path."""
    return path_in(text) if re.search(BASE_PATTERN, text) else read_json(text)


def returned_by(text: str) -> Any:
    """The path, or the small value, that a script of `memory_run` returned after printed text."""
    return path_or_value(text.split("\nreturned:\n", maxsplit=1)[1])


def count_objects(text: str) -> int:
    """The number of objects in an array that is shown or stored."""
    found = re.search(r"array of ([0-9,]+) objects", text)
    return int(found[1].replace(",", "")) if found else len(read_json(text))


def is_stored(text: str) -> bool:
    """Whether a text is the notice of a stored result."""
    return re.match(f'"{BASE_PATTERN}"', text) is not None and not _SHOWN_TEXT.fullmatch(text)


def printed(text: str) -> Any:
    """The JSON value that a program printed with `python_execute`."""
    found = _STDOUT.search(text)
    if not found:
        raise LookupError(f"The program printed nothing: {text[:2000]}")
    return json.loads(found[1])


def returned(text: str) -> Any:
    """The JSON value that a script printed with the suite's `code_execution`."""
    return json.loads(json.loads(text)["stdout"])


def read_shown(text: str) -> str:
    """The text of a result that is shown, without the gateway's lines above and below it."""
    shown = _SHOWN_TEXT.fullmatch(text)
    return shown["text"] if shown else _LINES_BELOW.sub("", text)
