"""Finds secrets in plain text in a configuration file that other users can read."""

import re
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from mcp_mirror.config.clients import RENAMED
from mcp_mirror.config.source import Findings, Items, Node, Scalar, Table, YamlLocation
from mcp_mirror.security.redaction import SECRET_NAMES

_SHORTEST: Final = 8
"""Characters; shorter values are switches and names."""
_PATH: Final = re.compile(r"(?:~|\.{0,2})/\S*|[A-Za-z]:\\.*")
_SECRET: Final = re.compile(
    r"auth\.tokens\.[^.]*(\.hash)?|store\.encryption\.keys\..*|server\.state_keys\..*|audit\.key|.*\.client_secret"
)
"""Paths of keys whose values are secrets."""


def warn_of_exposure(path: Path, root: Node, findings: Findings) -> None:
    """Warn once if other users can read a configuration file that contains secrets in plain text."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return
    if sys.platform == "win32" or not mode & (stat.S_IRGRP | stat.S_IROTH):
        return
    locations = list(_find_literal_secrets(root))
    if locations:
        more = f" and {len(locations) - 1} more" if len(locations) > 1 else ""
        findings.warn(
            locations[0],
            f"other users can read this file (mode {mode:04o}), which contains this secret{more}; run chmod 600 "
            f"{path}, or write ${{VAR}} and set the variable",
        )


def _find_literal_secrets(node: Node) -> Iterator[YamlLocation]:
    match node:
        case Scalar():
            if "${" not in node.text and _is_secret(node):
                yield node.location
        case Items():
            for item in node.nodes:
                yield from _find_literal_secrets(item)
        case Table():
            for member in node.members.values():
                yield from _find_literal_secrets(member)


def _is_secret(scalar: Scalar) -> bool:
    keys, text = scalar.location.path, scalar.text
    if len(text) < _SHORTEST or _PATH.fullmatch(text):
        return False
    section = RENAMED.get(keys[-2], keys[-2]) if len(keys) > 1 else ""
    if section in ("env", "headers"):
        return bool(SECRET_NAMES.search(keys[-1]))
    return bool(_SECRET.fullmatch(".".join(keys))) or (bool(keys) and keys[-1] == "url" and _has_password(text))


def _has_password(url: str) -> bool:
    try:
        return bool(urlsplit(url).password)
    except ValueError:
        return False
