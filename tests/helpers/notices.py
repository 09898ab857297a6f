"""Reads paths and values from the text that a model gets for a stored result."""

from mcp_mirror.paths import parse_path


def path_in(notice: str) -> str:
    """The memory path of a notice in the compact style: its first line, or the line below JSON that is shown."""
    first = notice.partition("\n")[0].strip('"')
    return first if parse_path(first) else notice.rpartition("Path: ")[2].splitlines()[0].strip('"')
