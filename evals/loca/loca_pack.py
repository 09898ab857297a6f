"""`make loca-logs`: packs raw logs of LOCA-bench and their tables into one archive, such as for a release."""

import argparse
import json
import platform
from pathlib import Path
from typing import Final
from zipfile import ZIP_DEFLATED, ZipFile

from loca_report import write_tables
from loca_run import ROOT, origin

_LOCK: Final = ROOT / "evals" / "loca" / "requirements.lock"
"""The versions of the packages that the tasks use."""


def pack(archive: Path, logs: list[Path], versions: str) -> None:
    """Write an archive with the logs, the tables of all runs in them, and versions.

    Args:
        archive: The file to write; its folder is created.
        logs: JSON lines, as `--log` writes them. Of two runs with one key, the tables show the later.
        versions: A text about the commits and the machine.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    lines = [line for log in logs for line in log.read_text(encoding="utf-8").splitlines()]
    records = {record["key"]: record for record in map(json.loads, lines)}
    with ZipFile(archive, "w", ZIP_DEFLATED) as packed:
        for log in logs:
            packed.write(log, f"logs/{log.name}")
        packed.write(_LOCK, _LOCK.name)
        packed.writestr("tables.md", write_tables([*records.values()], versions))


def main() -> None:
    """Pack the logs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("archive", type=Path)
    parser.add_argument("logs", type=Path, nargs="+")
    options = parser.parse_args()
    if missing := [log for log in options.logs if not log.is_file()]:
        parser.error(f"The log {missing[0]} does not exist. Write one with: make loca LOCA_ARGS='--oracle --log FILE'")
    pack(options.archive, options.logs, f"{origin()} Python {platform.python_version()}, {platform.platform()}")
    print(options.archive)  # noqa: T201


if __name__ == "__main__":
    main()
