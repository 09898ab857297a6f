"""The log of an evaluation: JSON lines, one per run. A later evaluation adds the missing runs."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

from mcp_mirror.errors import ConfigError

Record = Mapping[str, Any]
"""A run in the log; `docs/evaluation/index.md` describes its keys."""

_OPENING: Final = b'{"key": "'
"""The beginning of each line."""
VOID: Final = "error"
"""The `end` of a void run: an endpoint or a server failed. The next evaluation repeats the run."""


class Log:
    """Records in a file, or without a file only in memory."""

    def __init__(self, path: Path | None) -> None:
        """Read the records in the file; ConfigError if it cannot be read or written, or is not a log."""
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
                    record = _read(path, number, line)
                    self._records[record["key"]] = record
                # The beginning of a record: the process ended while it wrote the line.
                if not (rest.startswith(_OPENING) or _OPENING.startswith(rest)):
                    raise _not_a_run(path, len(lines) + 1)
                file.truncate(file.tell() - len(rest))
        except OSError as error:
            raise ConfigError(f"{path}: the log cannot be used: {error.strerror}.") from None

    def has(self, key: str) -> bool:
        """Whether the log has a run with this key that is not void."""
        return key in self._records and self._records[key]["end"] != VOID

    def add(self, record: Record) -> None:
        """Add a run, which replaces an earlier record of the same run, and write it to the file."""
        self._records[record["key"]] = record
        if self._path:
            with self._path.open("ab") as file:
                file.write(json.dumps(record, ensure_ascii=False).encode("utf-8", "replace") + b"\n")

    def of(self, keys: Iterable[str]) -> list[Record]:
        """The records of those runs that the log has."""
        return [self._records[key] for key in keys if key in self._records]


def _read(path: Path, number: int, line: bytes) -> Record:
    try:
        record = json.loads(line)
        if isinstance(record, dict) and isinstance(record["key"], str) and isinstance(record["end"], str):
            return record
    except (ValueError, KeyError):
        pass
    raise _not_a_run(path, number)


def _not_a_run(path: Path, number: int) -> ConfigError:
    return ConfigError(f"{path}:{number}: this line is not a run of an evaluation. Give --log another file.")
