"""The order of the folders from which Python imports modules."""

import os
import sys
from contextlib import suppress


def prefer_own_libraries() -> None:
    """Import from the folders of `PYTHONPATH` and from the current folder only what no other folder has.

    These folders are for programs of the user. A module there may have the name of a library.
    """
    with suppress(FileNotFoundError):  # the current folder was removed, so Python imports nothing from it
        given = {os.path.abspath(folder) for folder in os.environ.get("PYTHONPATH", "").split(os.pathsep)}  # noqa: PTH100
        sys.path.sort(key=lambda folder: os.path.abspath(folder) in given)  # noqa: PTH100  # of any text
