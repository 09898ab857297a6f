"""Work of the event loop in slices, and work that is too long for it in threads.

Other tasks run between two slices, so long work delays no client. Whether other work runs on the event loop or in a
thread depends on what it visits. These amounts take at most about 20 ms, and run on the event loop:

    run_by_size     reads, copies or hashes bytes               32 KiB
    run_by_parts    visits each string, object and array        32 KiB with few of them
    run_by_values   visits each value and estimates tokens      4 KiB, or 32 KiB with few values and long words
"""

from collections.abc import Callable, Generator, Iterable
from time import monotonic
from typing import Final, TypeVar, TypeVarTuple

import anyio
import anyio.lowlevel

from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.types import Buffer, Segments

_SLICE: Final = 0.002
"""Seconds of work after which other tasks run."""
_PIECES: Final = 16
"""Pieces of work after which other tasks run: each may have woken a task, whose work is not measured."""

INLINE_BYTES: Final = 1 << 15
"""Bytes of JSON that the event loop reads at once: with very many keys or content blocks they take about 10 ms."""
_INLINE_PARTS: Final = 1 << 12
"""Quotes of JSON text that the event loop visits at once, in about 10 ms. An object or an array counts as eight."""
_INLINE_ANY: Final = 1 << 12
"""Bytes whose tokens the event loop estimates at once whatever they contain: long words take about 6 ms."""
_INLINE_VALUES: Final = 1 << 12
"""Commas and opening brackets of longer texts that the event loop visits at once, in about 20 ms."""
_NO_VALUE: Final = bytes(byte for byte in range(256) if byte not in b",[{")
_LONG_WORD: Final = 16
"""Bytes of a word, on average, above which the estimate of a text's tokens takes long: base64, Chinese and the like."""
_NO_SEPARATOR: Final = bytes(byte for byte in range(256) if not chr(byte).isascii() or chr(byte).isalnum()) + b"+/=-_"


class Pacer:
    """Lets other tasks run after each slice of work. Tasks that share a pacer rest at the same time."""

    def __init__(self, rest: float = 0.0) -> None:
        """Start without work.

        `rest` is the time to rest in seconds for each second of work. With 0, other tasks get one turn.
        """
        self._rest = rest
        self._began: float | None = None
        self._spent = 0.0
        self._rested = 0.0
        """The end of the rest."""
        self._pieces = 0
        """Pieces of work since other tasks ran."""

    def begin(self) -> None:
        """Start measuring work."""
        self._began = monotonic()

    def skip(self) -> None:
        """Do not count the work since `begin`."""
        self._began = None

    async def end(self) -> None:
        """Stop measuring a piece of work, and let other tasks run if the slice is over."""
        if self._began is not None:
            self._spent += monotonic() - self._began
        self._pieces += 1
        if self._spent >= _SLICE:
            self._rested = max(self._rested, monotonic()) + self._rest * self._spent
            self._spent, self._pieces = 0.0, 0
            await anyio.lowlevel.checkpoint()
        elif self._pieces == _PIECES:
            self._pieces = 0
            await anyio.lowlevel.checkpoint()
        while (pause := self._rested - monotonic()) > 0:  # noqa: ASYNC110  # other tasks extend the rest
            await anyio.sleep(pause)


T = TypeVar("T")
Args = TypeVarTuple("Args")
Steps = Generator[None, None, T]
"""Work in small steps, so that others can run between them; the result is its return value."""


def finish(steps: Steps[T]) -> T:
    """Take all steps at once and return the result."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result


async def take_sliced(steps: Steps[T]) -> T:
    """Take all steps, let other tasks run after each slice of 2 ms, and return the result."""
    began = monotonic()
    while True:
        try:
            next(steps)
        except StopIteration as end:
            result: T = end.value
            return result
        if monotonic() > began + _SLICE:
            await anyio.lowlevel.checkpoint()
            began = monotonic()


async def run_by_size(size: int, work: Callable[[*Args], T], *args: *Args, principal: str) -> T:
    """Return the result of work on `size` bytes, which runs in a thread if they are too many for the event loop.

    Principals share few such threads fairly.
    """
    return work(*args) if size <= INLINE_BYTES else await run_fairly(principal, work, *args)


def has_few_parts(text: Buffer) -> bool:
    """Whether the event loop may visit each string, object and array of a JSON text at once."""
    text = bytes(text)
    return text.count(b'"') + 8 * (text.count(b"{") + text.count(b"[")) <= _INLINE_PARTS


async def run_by_parts(text: Buffer, work: Callable[[*Args], T], *args: *Args, principal: str) -> T:
    """Return the result of work that visits each part of `text`.

    It runs in a thread if that is too much for the event loop. Principals share few such threads fairly.
    """
    if len(text) <= INLINE_BYTES and has_few_parts(text):
        return work(*args)
    return await run_fairly(principal, work, *args)


async def run_by_values(
    texts: Iterable[Buffer | Segments], work: Callable[[*Args], T], *args: *Args, principal: str
) -> T:
    """Return the result of work that visits each value of JSON texts and may estimate their tokens.

    It runs in a thread if that is too much for the event loop. Principals share few such threads fairly.
    """
    segments: list[Buffer] = []
    for text in texts:
        segments += text if isinstance(text, tuple) else (text,)
    size = sum(map(len, segments))
    if size <= _INLINE_ANY or (size <= INLINE_BYTES and _has_few_values(b"".join(segments))):
        return work(*args)
    return await run_fairly(principal, work, *args)


def _has_few_values(text: bytes) -> bool:
    """Whether a text has neither very many values nor many long words."""
    if len(text.translate(None, _NO_VALUE)) > _INLINE_VALUES:
        return False
    return len(text) <= _LONG_WORD * len(text.translate(None, _NO_SEPARATOR))
