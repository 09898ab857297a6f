"""Whether a SQLite file is damaged. SQLite also reports a disk that fails at reading, perhaps only once, as damage."""

import sqlite3
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

_PIECE: Final = 1 << 20
_TABLES: Final = "SELECT name FROM sqlite_schema WHERE type = 'table'"


def is_sound(path: Path) -> bool:
    """Whether a complete check of a file finds no damage. It reads all of the file and decodes its texts.

    This process must have closed the file: reading it ends the locks of other connections of the process.

    Raises:
        OSError: The disk fails at reading.
    """
    for end in ("", "-wal"):
        with suppress(FileNotFoundError), path.with_name(f"{path.name}{end}").open("rb") as file:
            while file.read(_PIECE):
                pass
    try:
        with closing(sqlite3.connect(path)) as connection:
            checked = connection.execute("PRAGMA integrity_check(1)").fetchall()
            tables = [name for (name,) in connection.execute(_TABLES)]
            for table in tables:
                for _ in connection.execute(f"SELECT * FROM {table}"):  # noqa: S608  # ours
                    pass
    except sqlite3.Error:
        return False
    return bool(tables) and checked == [("ok",)]
