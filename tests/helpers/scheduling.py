"""In which order tests begin, and which of them run in one process, one after another."""

from typing import Final

from xdist.scheduler import LoadGroupScheduling

LONG: Final = (
    "real",
    "everyday",
    "relay",
    "conformance",
    "hostile",
    "faults",
    "replicas",
    "end_to_end",
    "integration",
    "evals",
    "deploy",
    "signals",
)
"""Folders with the longest tests and groups: begun last, they would leave other processes without work at the end."""


def rank(nodeid: str) -> int:
    """The place of the folder of a test in `LONG`; folders with only short tests are last."""
    folder = nodeid.split("/", 2)[1]
    return LONG.index(folder) if folder in LONG else len(LONG)


class ModuleScheduling(LoadGroupScheduling):  # type: ignore[misc]  # xdist has no types
    """Gives a process a test with all its parameters, or a module of short tests, unless they have an `xdist_group`.

    Fixtures, caches and data are then made in one process instead of in each. With each test given out by itself,
    the process that gives them out would also look through all of them after each.
    """

    def _split_scope(self, nodeid: str) -> str:
        group: str = super()._split_scope(nodeid)
        if group != nodeid:
            return group
        module, _, test = nodeid.partition("::")
        return module if rank(nodeid) == len(LONG) else f"{module}::{test.partition('[')[0]}"
