"""Read and atomically write the files of clients and of the gateway, and the JSON in them."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from mcp_mirror.errors import ConfigError
from mcp_mirror.system.atomic_write import atomic_write

BACKUP_SUFFIX: Final = ".before-mcp-mirror"
"""Suffix of the backup of a client's file."""
_PRIVATE: Final = 0o600
"""Clients store secrets of servers in their files, and `install` copies them."""


def resolve_path(path: str | Path) -> Path:
    """Return the absolute path, with links resolved."""
    return Path(os.path.realpath(os.path.expanduser(path)))  # noqa: PTH111  # of any text


def has_file(path: Path) -> bool:
    """Return whether the file exists; False for an impossible name."""
    return os.path.exists(path)  # noqa: PTH110  # of any path


def read_bytes(path: Path) -> bytes:
    """Return the content of a file.

    Raises:
        ConfigError: The file does not exist or cannot be read.
    """
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist. Add a server in the client first, or name the client's file."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Check the path and its permissions.") from None


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically, keep its permissions, and follow links.

    Raises:
        ConfigError: The file cannot be written.
    """
    try:
        path = path.resolve()
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, (data,), _PRIVATE, keep_mode=True)
    except (OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or "its links form a circle"
        raise ConfigError(f"{path} cannot be written: {reason}. Check the path and its permissions.") from None


def remove_file(path: Path) -> None:
    """Remove a file if it exists."""
    with suppress(OSError):
        path.unlink()


def parse_json(data: bytes, file: Path) -> dict[str, Any]:
    """Return the JSON object of a client's file; an empty file is an empty object.

    Raises:
        ConfigError: The file is not plain JSON, so rewriting it would lose something.
    """
    try:
        written = json.loads(data.decode("utf-8-sig").strip() or "{}", object_pairs_hook=_check_unique_keys)
    except (ValueError, RecursionError) as error:
        raise ConfigError(
            f"{file} cannot be read as plain JSON ({error}). Comments and duplicate keys would be lost. Move "
            "its servers by hand, as the README shows."
        ) from None
    if not isinstance(written, dict):
        raise ConfigError(f"{file} is not a client's configuration: it contains no JSON object. Name another file.")
    return written


def _check_unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) < len(pairs):
        raise ValueError("duplicate key")
    return members


def as_json(value: Any, file: Path) -> bytes:
    """Return the JSON text of a value.

    Raises:
        ConfigError: JSON cannot express the value.
    """
    try:
        return (json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{file} contains a number or a text that JSON cannot express, or is nested too deeply. Fix it first."
        ) from None
