"""The variables of a configuration: environment variables, and files that environment variables name.

`NAME_FILE` is the convention of container images for secrets, which an environment variable would show to every program
that may read the process's environment. No message contains a value or the path of a file.
"""

import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from mcp_mirror.errors import ConfigError

_FILE_SUFFIX: Final = "_FILE"
_MAX_VARIABLE_BYTES: Final = 1 << 20


class Variables:
    """The variables for one reading of a configuration; a file is read once, when the first variable needs it."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._read: dict[str, str] = {}

    def get(self, name: str) -> str | None:
        """Return the variable `name`; if it is unset or empty, the text of the file that `name_FILE` names.

        The text has no line breaks at its end, which editors and `echo` add. None if neither variable is set.

        Raises:
            ConfigError: The file cannot be used.
        """
        named = self._environ.get(f"{name}{_FILE_SUFFIX}")
        if self._environ.get(name) or not named:
            return self._environ.get(name)
        if name not in self._read:
            text = _read_file(Path(named), f"the file that the environment variable {name}{_FILE_SUFFIX} names")
            self._read[name] = text.rstrip("\r\n")
        return self._read[name]


def _read_file(path: Path, called: str) -> str:
    """Return the text of a file; a ConfigError names it as `called`."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe could wait forever, and has nothing left at a reload
            raise ConfigError(f"{called} is not a regular file")
        with path.open("rb") as file:
            data = file.read(_MAX_VARIABLE_BYTES + 1)
        text = data.decode()
    except UnicodeDecodeError:
        raise ConfigError(f"{called} is not UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise ConfigError(f"{called} cannot be read: {reason}") from None
    if len(data) > _MAX_VARIABLE_BYTES:
        raise ConfigError(f"{called} is larger than {_MAX_VARIABLE_BYTES} bytes")
    if not text.rstrip("\r\n"):
        raise ConfigError(f"{called} is empty")
    if "\0" in text:
        raise ConfigError(f"{called} is not text")
    return text
