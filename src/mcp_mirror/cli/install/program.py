"""The command that starts this installation of mcp-mirror, as clients write it."""

import json
import shlex
import shutil
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Final

_UV_CACHE: Final = "archive-v0"
"""The folder in uv's cache in which `uvx` creates environments that it may remove later."""


def find_program() -> list[str]:
    """Return the command of mcp-mirror with an absolute path, because desktop clients have a `PATH` of their own.

    Under `uvx` it is a command of `uvx`: the environment of the running program is temporary.
    """
    if _UV_CACHE in Path(sys.prefix).parts and (uvx := shutil.which("uvx")):
        source = _read_source()
        return [uvx, "--from", source, "mcp-mirror"] if source else [uvx, "mcp-mirror"]
    script = shutil.which("mcp-mirror", path=str(Path(sys.executable).parent))
    return [script] if script else [sys.executable, "-m", "mcp_mirror"]


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
