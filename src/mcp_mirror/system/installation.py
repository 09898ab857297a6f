"""Whether the files of this program are still those of its start. An upgrade replaces them while the program runs."""

from pathlib import Path
from typing import Final

from mcp_mirror.system.files import read_file_version

_FILE: Final = Path(__file__)
_AT_START: Final = read_file_version(_FILE)


def is_replaced() -> bool:
    """Whether an upgrade has replaced the files of the program, or they were removed."""
    return read_file_version(_FILE) != _AT_START
