"""Files of clients and ours: read, written whole or not at all, and the JSON in them."""

import json
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from mcp_mirror.errors import ConfigError

_PRIVATE: Final = 0o600
"""Clients keep keys of servers in their files, and so does ours then."""


def full(path: str | Path) -> Path:
    """The path in full, of what a link leads to."""
    return Path(os.path.realpath(os.path.expanduser(path)))  # noqa: PTH111  # of any text


def is_there(path: Path) -> bool:
    """Whether there is such a file; there is none of a name that no file can have."""
    return os.path.exists(path)  # noqa: PTH110  # of any path


def read_bytes(path: Path) -> bytes:
    """What is in a file.

    Raises:
        ConfigError: It is not there, or cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(f"There is no {path}. Add a server in the client first, or name the client's file.") from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Check the path and its permissions.") from None


def write_file(path: Path, data: bytes) -> None:
    """Whole or not at all, with the rights it had; what a link leads to, not the link.

    Raises:
        ConfigError: It cannot be written.
    """
    draft = ""
    try:
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        mode = path.stat().st_mode & 0o777 if path.exists() else _PRIVATE
        file, draft = tempfile.mkstemp(dir=path.parent, prefix=f"{path.name}.")
        with os.fdopen(file, "wb") as opened:
            opened.write(data)
        Path(draft).chmod(mode)
        Path(draft).replace(path)
    except (OSError, RuntimeError) as error:
        with suppress(OSError):
            Path(draft).unlink()
        reason = getattr(error, "strerror", None) or "its links lead in a circle"
        raise ConfigError(f"{path} cannot be written: {reason}. Check the path and its permissions.") from None


def parse_json(data: bytes, file: Path) -> dict[str, Any]:
    """The object that a client's file holds; an empty one is one without servers.

    Raises:
        ConfigError: It is no JSON that could be written again as it was.
    """
    try:
        written = json.loads(data.decode("utf-8-sig").strip() or "{}", object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} cannot be read as plain JSON ({error}). Comments and doubled keys would be lost: move its servers "
            "by hand, as the README shows."
        ) from None
    if not isinstance(written, dict):
        raise ConfigError(f"{file} holds no JSON object, so it is no client's configuration. Name another file.")
    return written


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("a key comes twice")
    return members


def as_json(value: Any, file: Path) -> bytes:
    """The JSON of what is to stand in a file.

    Raises:
        ConfigError: There is none of it.
    """
    try:
        return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{file} holds a number or a text that JSON has no form for, or is nested too deep. Mend it first."
        ) from None
