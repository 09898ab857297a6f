"""The log of an evaluation: JSON lines, one a run, to which another start adds what is missing."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from mcp_mirror.errors import ConfigError

Record = Mapping[str, Any]
"""A run as it stands in the log; `docs/evaluation/index.md` describes its keys."""

_OPENING: Final = b'{"key": "'
"""What each line begins with."""
VOID: Final = "error"
"""How a run ended that says nothing of the model, and is made again."""


class Log:
    """Records, in a file or, without one, in memory alone."""

    def __init__(self, path: Path | None) -> None:
        """Read what is there.

        Raises:
            ConfigError: The file cannot be read or written, or is something else.
        """
        self._path = path
        self._records: dict[str, Record] = {}
        if path is None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("a+b") as file:
                file.seek(0)
                lines = file.read().split(b"\n")
                rest = lines.pop()
                for number, line in enumerate(lines, 1):
                    self._take(_read(path, number, line))
                if not _is_broken_off(rest):
                    raise _not_ours(path, len(lines) + 1)
                file.truncate(file.tell() - len(rest))
        except OSError as error:
            raise ConfigError(f"{path}: the log cannot be used: {error.strerror}.") from None

    def _take(self, record: Record) -> None:
        """A later record of a run stands for an earlier one."""
        self._records[record["key"]] = record

    def has(self, key: str) -> bool:
        """Whether a run is there that need not be made again."""
        return key in self._records and self._records[key]["end"] != VOID

    def add(self, record: Record) -> None:
        """Add a run; it is in the file when this returns."""
        self._take(record)
        if self._path:
            with self._path.open("ab") as file:
                file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def of(self, keys: Iterable[str]) -> list[Record]:
        """The records of these runs, as far as there are any."""
        return [self._records[key] for key in keys if key in self._records]


def _read(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line)
        if isinstance(record, dict) and isinstance(record["key"], str) and isinstance(record["end"], str):
            return record
    except (ValueError, KeyError):
        pass
    raise _not_ours(path, number)


def _is_broken_off(line: bytes) -> bool:
    """Whether it is the beginning of a record: the process ended while it was written."""
    return line.startswith(_OPENING) or _OPENING.startswith(line)


def _not_ours(path: Path, number: int) -> ConfigError:
    return ConfigError(f"{path}:{number}: this line is no run of an evaluation; give --log another file.")
