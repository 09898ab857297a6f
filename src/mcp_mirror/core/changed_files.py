"""Lists the files that a diff changes, with the numbers of lines that it adds and removes."""

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import takewhile
from typing import Final

import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.payload.json_strings import text_pieces
from mcp_mirror.security.sanitize import cut, strip_invisible
from mcp_mirror.types import Buffer, Span

_MAX_DIFF: Final = 1 << 20
"""Bytes of a diff whose files are listed."""
_MAX_LINE: Final = 160
"""Bytes of a line."""
_GIT: Final = "\ndiff --git "
_PLAIN: Final = "\n--- "
_NEW: Final = re.compile(r"^\+\+\+ (?:b/)?([^\t\n]+)|^rename to (.+)", re.MULTILINE)
_OLD: Final = re.compile(r"^--- (?:a/)?([^\t\n]+)", re.MULTILINE)
_NO_FILE: Final = "/dev/null"
_SIGNATURE: Final = re.compile(r"\n-- \n\d+\.\d")
"""The end of a patch that is sent by mail."""


def list_changed_files(blob: Buffer, span: Span) -> list[str]:
    """Return a line for each file of the diff in a JSON string: `src/app.py +12 -3`; none for a very long diff."""
    if span.length > _MAX_DIFF:
        return []
    try:
        text = "\n" + b"".join(text_pieces(blob, span)).decode().replace("\r\n", "\n")
    except msgspec.DecodeError:  # half of a surrogate pair
        return []
    mark = _GIT if _GIT in text else _PLAIN
    return list(_describe_files(text.split(mark)[1:], mark))


def show_files(first: str, files: Sequence[str], take: Callable[[str], bool]) -> Iterator[str]:
    """Yield the first line of a diff if it is a heading, and the files while `take` accepts their lines."""
    take("... 1,000 more files")
    if first and not first.startswith((_GIT[1:], _PLAIN[1:])) and take(first := cut(first, _MAX_LINE)):
        yield first
    shown = list(takewhile(take, (strip_invisible(one, _MAX_LINE) for one in files)))
    yield from shown
    if len(files) > len(shown):
        yield f"... {format_count(len(files) - len(shown), 'more file')}"


def _describe_files(parts: list[str], mark: str) -> Iterator[str]:
    for part in parts:
        header, has_hunks, rest = part.partition("\n@@")
        name = _find_name(header) if mark == _GIT else _find_name(f"--- {header}") if "\n+++ " in header else ""
        if not name:
            continue
        hunks = _SIGNATURE.split(rest, maxsplit=1)[0] if "\n-- \n" in rest else rest
        added, removed = hunks.count("\n+"), hunks.count("\n-")
        yield f"{name} +{added} -{removed}" if has_hunks else name


def _find_name(header: str) -> str:
    """The name of a file after its change, or before it if the file is deleted; empty without one."""
    new, old = _NEW.search(header), _OLD.search(header)
    if new and (name := new[1] or new[2]) != _NO_FILE:
        return name
    names = header.partition("\n")[0]  # of a file without hunks: `a/logo.png b/logo.png`
    return old[1] if old else names[len(names) // 2 + 1 :].removeprefix("b/")
