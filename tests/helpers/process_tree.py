"""Processes and their descendants, read from /proc."""

from pathlib import Path


def stat_of(pid: int) -> tuple[str, int]:
    """Return the state and the parent of a process; `("", 0)` if it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return "", 0
    return fields[0], int(fields[1])


def command_of(pid: int) -> str:
    """Return the command line of a process."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
    except OSError:
        return ""


def offspring(pid: int) -> dict[int, str]:
    """Return all descendants of a process with their command lines."""
    parents = {int(path.name): stat_of(int(path.name))[1] for path in Path("/proc").iterdir() if path.name.isdecimal()}
    found, new = set[int](), {pid}
    while new := {child for child, parent in parents.items() if parent in new} - found:
        found |= new
    return {child: command_of(child) for child in sorted(found)}
