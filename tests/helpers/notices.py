"""Reads paths and values from the text that a model gets for a stored result."""


def path_in(notice: str) -> str:
    """The memory path of a notice in the compact style: its first line, or the line below a value that is shown."""
    return notice.rpartition("Path: ")[2].splitlines()[0].strip('"')
