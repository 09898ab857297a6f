"""A system that starts no further process."""

import errno
import os

import anyio
import pytest


def refuse_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let each start of a process fail, as without a free file handle."""

    async def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    monkeypatch.setattr(anyio, "open_process", refuse)
