"""A fake of Windows on Linux, because no machine with Windows was at hand: `make test-as-windows`.

Python imports this module at the start of each process, if its folder is in PYTHONPATH. The modules of the package then
see the platform of Windows and a standard library without the modules, functions and constants that Windows lacks; all
other code sees Linux. As on Windows, files in use cannot be removed or replaced, folders cannot be opened, files that
are opened without `O_BINARY` get other line breaks, event loops wait only for sockets, and each signal ends a process
at once. Paths, permissions and the start of programs are those of Linux.
"""

import asyncio
import builtins
import errno
import fcntl
import importlib.machinery
import inspect
import os
import select
import signal
import socket
import stat
import sys
import types
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

_PACKAGE = "mcp_mirror"
_BINARY = 1 << 15
"""The value of `O_BINARY` on Windows."""
_GONE = frozenset(("fcntl", "grp", "posix", "pwd", "pty", "resource", "termios", "tty"))
"""Modules that Windows lacks."""
_MISSING = {
    os: "O_CLOEXEC O_DIRECTORY O_NOCTTY O_NOFOLLOW O_NONBLOCK WNOHANG chown copy_file_range eventfd fchmod fchown fork "
    "getegid geteuid getgid getpgid getuid killpg memfd_create mkfifo pidfd_open posix_fadvise posix_fallocate pread "
    "pwrite readv register_at_fork sched_getaffinity sendfile set_blocking setsid splice statvfs sysconf uname writev",
    signal: "SIGALRM SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGSTOP SIGUSR1 SIGUSR2 SIG_BLOCK SIG_UNBLOCK alarm "
    "pthread_sigmask setitimer",
    select: "POLLIN POLLOUT epoll poll",
    socket: "AF_UNIX SO_REUSEPORT recv_fds send_fds",
}

_text_files: set[int] = set()
"""Descriptors of files that were opened without `O_BINARY`."""
_open, _read, _write, _close = os.open, os.read, os.write, os.close
_unlink, _replace, _rename, _import = os.unlink, os.replace, os.rename, builtins.__import__


def _open_file(path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    if dir_fd is not None:
        raise NotImplementedError("dir_fd unavailable on this platform")
    if Path(path).is_dir():
        raise PermissionError(errno.EACCES, "Permission denied", path)
    opened = _open(path, flags & ~_BINARY, mode)
    if not flags & _BINARY and stat.S_ISREG(os.fstat(opened).st_mode):
        _text_files.add(opened)
    return opened


def _read_file(file: int, size: int) -> bytes:
    data = _read(file, size)
    return data.replace(b"\r\n", b"\n") if file in _text_files else data


def _write_file(file: int, data: Any) -> int:
    if file not in _text_files:
        return _write(file, data)
    text = bytes(data).replace(b"\n", b"\r\n")
    while text:
        text = text[_write(file, text) :]
    return len(data)


def _close_file(file: int) -> None:
    _text_files.discard(file)
    _close(file)


def _kill(process: int, _: int) -> None:
    os.kill(process, signal.SIGKILL)


def _is_used(path: Any) -> bool:
    """Whether a process of this user has opened or mapped a regular file."""
    named = Path(path).resolve()
    if not named.is_file():
        return False
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            for file in (process / "fd").iterdir():
                with suppress(OSError):
                    if file.readlink() == named:
                        return True
            if str(named) in (process / "maps").read_text(encoding="utf-8"):
                return True
    return False


def _refuse_used(*paths: Any) -> None:
    for path in filter(_is_used, paths):
        raise PermissionError(errno.EACCES, "The file is being used by another process", path)


def _unlink_file(path: Any, *, dir_fd: int | None = None) -> None:
    if _is_called_by(_PACKAGE, "shutil", "pathlib"):
        _refuse_used(path)
    _unlink(path, dir_fd=dir_fd)


def _replace_file(source: Any, target: Any, **folders: Any) -> None:
    if _is_called_by(_PACKAGE, "pathlib"):
        _refuse_used(source, target)
    _replace(source, target, **folders)


def _rename_file(source: Any, target: Any, **folders: Any) -> None:
    if _is_called_by(_PACKAGE, "pathlib"):
        if Path(target).exists():
            raise FileExistsError(errno.EEXIST, "File exists", target)
        _refuse_used(source)
    _rename(source, target, **folders)


def _is_called_by(*modules: str) -> bool:
    """Whether the function that called this one was called by one of these top-level modules."""
    frame = inspect.currentframe()
    for _ in range(2):
        frame = frame and frame.f_back
    return frame is not None and str(frame.f_globals.get("__name__")).partition(".")[0] in modules


def _lock(file: int, mode: int, _: int) -> None:
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, "Permission denied") from None


class _Reduced(types.ModuleType):
    """A module without some names, and with others."""

    def __init__(self, module: types.ModuleType, missing: str = "", **others: Any) -> None:
        super().__init__(module.__name__)
        self.__dict__.update({name: value for name, value in vars(module).items() if name not in missing.split()})
        self.__dict__.update(others)


class _ReducedSys(types.ModuleType):
    """The module `sys`, whose streams and hooks change while a program runs, on another platform."""

    def __getattribute__(self, name: str) -> Any:
        return "win32" if name == "platform" else getattr(sys, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(sys, name, value)


_locks = types.ModuleType("msvcrt")
_locks.locking, _locks.LK_NBLCK = _lock, fcntl.LOCK_EX  # type: ignore[attr-defined]
_REPLACED: dict[str, types.ModuleType] = {
    "sys": _ReducedSys("sys"),
    "msvcrt": _locks,
    **{module.__name__: _Reduced(module, missing) for module, missing in _MISSING.items()},
}
vars(_REPLACED["os"]).update(
    name="nt", open=_open_file, read=_read_file, write=_write_file, close=_close_file, kill=_kill, O_BINARY=_BINARY,
    unlink=_unlink_file, remove=_unlink_file, replace=_replace_file, rename=_rename_file, supports_dir_fd=frozenset(),
)  # fmt: skip


def _import_module(name: str, *arguments: Any, **options: Any) -> Any:
    if name in _GONE:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return _REPLACED.get(name) or _import(name, *arguments, **options)


class _Loader(importlib.machinery.SourceFileLoader):
    """Runs a module whose imports are those of Windows."""

    def exec_module(self, module: types.ModuleType) -> None:
        vars(module)["__builtins__"] = {**vars(builtins), "__import__": _import_module}
        super().exec_module(module)


class _Finder(importlib.machinery.PathFinder):
    """Finds the modules of the package."""

    @classmethod
    def find_spec(
        cls, fullname: str, path: Sequence[str] | None = None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] != _PACKAGE:
            return None
        found = super().find_spec(fullname, path, target)
        if found is not None and found.origin is not None:
            found.loader = _Loader(fullname, found.origin)
        return found


def _refuse(owner: Any, name: str, is_allowed: Callable[..., bool]) -> None:
    """Let a function raise `NotImplementedError` for other arguments than the allowed ones."""
    function = getattr(owner, name)

    def call(*arguments: Any) -> Any:
        if not is_allowed(*arguments):
            raise NotImplementedError
        return function(*arguments)

    setattr(owner, name, call)


def _is_socket(file: Any) -> bool:
    return stat.S_ISSOCK(os.fstat(file if isinstance(file, int) else file.fileno()).st_mode)


def main() -> None:
    """Change the standard library of this process."""
    sys.meta_path.insert(0, _Finder)
    vars(os).update(unlink=_unlink_file, remove=_unlink_file, replace=_replace_file, rename=_rename_file)
    for name in ("add_signal_handler", "remove_signal_handler"):
        _refuse(asyncio.SelectorEventLoop, name, lambda *_: False)
    for name in ("wait_readable", "wait_writable"):
        _refuse(anyio, name, _is_socket)


main()
