"""Large parts of mapped files, which are searched and written to pipes without a copy.

On Linux, `vmsplice(2)` puts references to pages into a pipe, which takes a tenth of the time of copying them. The
reader copies the pages, so only files that nothing changes may be written this way.
"""

import ctypes
import os
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Final, Self

import msgspec

from mcp_mirror.system.mapped_files import FileMap
from mcp_mirror.types import Buffer

_LEAST: Final = 1 << 16
"""Bytes from which a part of a mapped file is written by its pages."""
_PAUSE: Final = 0.0003
"""Seconds in which a reader empties a part of a wide pipe. Otherwise each read of a page would wake the writer, which
takes longer than to write the pages."""
_LINE_BREAKS: Final = (ord("\n"), ord("\r"))


class _PyBuffer(ctypes.Structure):
    """CPython's `Py_buffer` (https://docs.python.org/3/c-api/buffer.html): its first member, and room for more."""

    _fields_ = (("buf", ctypes.c_void_p), ("others", ctypes.c_void_p * 10))


class _Vector(ctypes.Structure):
    """The system's `struct iovec`."""

    _fields_ = (("start", ctypes.c_void_p), ("size", ctypes.c_size_t))


def find_address(buffer: Buffer) -> int:
    """The memory address of a buffer's bytes."""
    view = _PyBuffer()
    ctypes.pythonapi.PyObject_GetBuffer(ctypes.py_object(buffer), ctypes.byref(view), 0)
    address = int(view.buf or 0)
    ctypes.pythonapi.PyBuffer_Release(ctypes.byref(view))
    return address


def _load(name: str, returned: Any, *types: Any) -> Callable[..., Any] | None:
    """A function of the C library; None if the library does not have it."""
    with suppress(AttributeError, OSError, TypeError):  # TypeError: Windows cannot open the program itself
        function: Any = getattr(ctypes.CDLL(None, use_errno=True), name)
        function.restype, function.argtypes = returned, types
        return function  # type: ignore[no-any-return]
    return None


_MEMCHR: Final = _load("memchr", ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t)
_VMSPLICE: Final = _load(
    "vmsplice", ctypes.c_ssize_t, ctypes.c_int, ctypes.POINTER(_Vector), ctypes.c_size_t, ctypes.c_uint
)


class Pages(msgspec.Struct, frozen=True):
    """A part of a mapped file."""

    view: memoryview
    _address: int

    @classmethod
    def of(cls, buffer: Buffer) -> Self | None:
        """The pages of a buffer; None if it is small, or not in a mapped file, or the system cannot write pages."""
        if len(buffer) < _LEAST or not isinstance(buffer, memoryview) or not isinstance(buffer.obj, FileMap):
            return None
        return cls(buffer, find_address(buffer)) if _MEMCHR and _VMSPLICE else None

    def cut(self, size: int) -> Iterator[Self]:
        """Parts of so many bytes, the last one shorter."""
        for at in range(0, len(self.view), size):
            yield type(self)(self.view[at : at + size], self._address + at)

    def has_line_break(self) -> bool:
        """Whether the bytes contain a newline or a carriage return. Other threads run during the search."""
        assert _MEMCHR is not None  # noqa: S101  # as `of` has checked
        return any(_MEMCHR(self._address, code, len(self.view)) for code in _LINE_BREAKS)

    def write(self, file: int) -> None:
        """Write all bytes to a blocking descriptor: by reference to a pipe, as a copy to others.

        The pipe should be wide (512 KiB or more): after it was full, the writer waits a moment.

        Raises:
            OSError: The other end is closed.
        """
        assert _VMSPLICE is not None  # noqa: S101  # as `of` has checked
        written = 0
        while written < len(self.view):
            vector = _Vector(self._address + written, len(self.view) - written)
            count = _VMSPLICE(file, ctypes.byref(vector), 1, 0)
            written += count if count > 0 else os.write(file, self.view[written:])
            if 0 < count < vector.size:
                time.sleep(_PAUSE)
