"""Read and atomically write the files of clients and of the gateway, and the command of mcp-mirror in them."""

import json
import os
import shlex
import shutil
import sys
import time
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

from mcp_mirror.errors import ConfigError
from mcp_mirror.system.files import UNFINISHED_NAMES, atomic_write
from mcp_mirror.system.patterns import lazy_pattern

BACKUP_SUFFIX: Final = ".before-mcp-mirror"
"""Suffix of the backup of a client's file."""
_UNFINISHED: Final = lazy_pattern(r"\.[0-9a-f]{16}\.part")
"""The name of an unfinished file of `atomic_write`."""
_ABANDONED: Final = 10.0
"""Seconds after its last change in which an unfinished file may belong to a running process."""
_UV_CACHE: Final = "archive-v0"
"""The folder in uv's cache in which `uvx` creates environments that it may remove later."""


def resolve_path(path: str | Path) -> Path:
    """Return the absolute path, with links resolved."""
    return Path(os.path.realpath(os.path.expanduser(path)))  # noqa: PTH111  # of any text


def has_file(path: Path) -> bool:
    """Return whether the file exists; False for an impossible name."""
    return os.path.exists(path)  # noqa: PTH110  # of any path


def is_file(path: Path) -> bool:
    """Return whether the path is a file; False in a folder that this user may not enter: its client may not either."""
    return os.path.isfile(path)  # noqa: PTH113  # `Path.is_file` raises there


def read_bytes(path: Path) -> bytes:
    """Return the content of a file; ConfigError if it does not exist or cannot be read."""
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            f"{path} does not exist. Add a server in the client first, or name the client's file."
        ) from None
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}. Check the path and its permissions.") from None


def write_file(path: Path, data: bytes) -> None:
    """Write a file atomically, through links, and remove what killed processes left; ConfigError if that fails."""
    try:
        path = Path(os.path.realpath(path))
        with suppress(FileNotFoundError):
            path.stat()  # an error if links form a circle
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, (data,), 0o600, keep_mode=True)  # private: clients store secrets of servers in their files
        for part in path.parent.glob(UNFINISHED_NAMES):
            with suppress(OSError):  # such as that of another user
                if _UNFINISHED.fullmatch(part.name) and time.time() - part.lstat().st_mtime > _ABANDONED:
                    part.unlink()  # it contains a copy of a client's file too
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}. Check the path and its permissions.") from None


def find_program() -> list[str]:
    """Return the command of mcp-mirror with an absolute path, because desktop clients have a `PATH` of their own.

    Under `uvx` it is a command of `uvx`: the environment of the running program is temporary.
    """
    if _UV_CACHE in Path(sys.prefix).parts and (uvx := shutil.which("uvx")):
        source = _read_source()
        return [uvx, "--from", source, "mcp-mirror"] if source else [uvx, "mcp-mirror"]
    script = shutil.which("mcp-mirror", path=str(Path(sys.executable).parent))
    return [script] if script else [sys.executable, "-P", "-m", "mcp_mirror"]


def describe_command(*words: str) -> str:
    """Return a command of mcp-mirror as the user types it: under `uvx`, through `uvx`."""
    program = find_program()
    typed = ["uvx", *program[1:]] if Path(program[0]).stem == "uvx" else ["mcp-mirror"]
    return shlex.join([*typed, *words])


def _read_source() -> str | None:
    """Return the file or address that the package was installed from (PEP 610); None for an index."""
    try:
        text = distribution("mcp-mirror").read_text("direct_url.json")
    except PackageNotFoundError:
        return None
    url = json.loads(text).get("url") if text else None
    return url if isinstance(url, str) else None
