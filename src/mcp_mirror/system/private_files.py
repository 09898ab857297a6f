"""Files and folders that only this user may use: what is ours and too open is closed, anything else is refused.

Permissions are those of POSIX systems. On Windows nothing is checked: folders there inherit their access lists.
"""

import errno
import logging
import os
import secrets
import stat
import sys
from collections.abc import Collection
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from mcp_mirror.errors import MirrorError

_logger = logging.getLogger(__name__)

_HAS_MODES: Final = sys.platform != "win32"
_OTHERS: Final = 0o077
_WRITABLE: Final = 0o022
_EVERYONE_ELSE: Final = 0o027
"""What a log file must not allow: a group may read it, so that programs that collect logs can."""
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_DEVICES: Final = ("/dev/", "/proc/")
"""Folders of the system's own links, such as `/dev/stdout`."""


class UnsafePathError(MirrorError):
    """Somebody else may read or change what is at a path; the message says what to do."""


def open_folder(folder: Path, own_names: Collection[str]) -> None:
    """Make a folder that only this user may use, or close one of ours that is open to others.

    Args:
        folder: Made with its parents if it is not there.
        own_names: Globs of the names that the gateway itself puts into the folder. The permissions of a folder with
            other names are not changed.

    Raises:
        UnsafePathError: The folder is a link or another user's, or others can write to it and it has other files; or
            it holds a link or another user's file.
        OSError: It cannot be made or read.
    """
    if folder.is_symlink():
        raise UnsafePathError(f"{folder} is a symbolic link. Name the folder that it leads to.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _HAS_MODES:
        return
    opened = os.open(folder, _FOLDER)
    try:
        found = os.fstat(opened)
        _refuse_foreign(folder, found)
        mode = stat.S_IMODE(found.st_mode)
        if mode & _OTHERS:
            _close(folder, opened, mode, own_names)
        for entry in folder.iterdir():
            if _is_own(entry.name, own_names):
                check_entry(entry)
    finally:
        os.close(opened)


def _close(folder: Path, opened: int, mode: int, own_names: Collection[str]) -> None:
    if all(_is_own(name, own_names) for name in os.listdir(opened)):
        os.fchmod(opened, 0o700)
        _logger.warning("%s was open to other users (mode %04o). Its mode is now 0700.", folder, mode)
    elif mode & _WRITABLE:
        raise UnsafePathError(
            f"Other users can write to {folder} (mode {mode:04o}), and it has other files. Name a folder of its own, "
            f"or run: chmod 700 {folder}"
        )


def _is_own(name: str, own_names: Collection[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in own_names)


def check_entry(path: Path) -> None:
    """Check a file or folder of the gateway's own, if it is there; close it if it is open to others.

    What is in a folder is checked too if others could write to the folder.

    Raises:
        UnsafePathError: It is a link, or another user's.
        OSError: It cannot be read.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise UnsafePathError(f"{path} is a symbolic link, and the gateway did not make it. Remove the link.")
    if not _HAS_MODES:
        return
    _refuse_foreign(path, found)
    mode = stat.S_IMODE(found.st_mode)
    if mode & _OTHERS:
        path.chmod(mode & ~_OTHERS)
        _logger.warning("%s was open to other users (mode %04o). Its mode is now %04o.", path, mode, mode & ~_OTHERS)
    if mode & _WRITABLE and stat.S_ISDIR(found.st_mode):
        for entry in path.iterdir():
            check_entry(entry)


def open_log(path: str, flags: int) -> int:
    """Open a log file; a new one is for this user alone, and an old one loses the rights of everybody but its group.

    Raises:
        UnsafePathError: The path is a link, but not one of the system's such as `/dev/stdout`, or the file is another
            user's.
        OSError: It cannot be opened.
    """
    is_device = path.startswith(_DEVICES)
    try:
        opened = os.open(path, flags if is_device else flags | _NO_LINK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafePathError(f"{path} is a symbolic link. Name the file that it leads to.") from None
        raise
    try:
        found = os.fstat(opened)
        if _HAS_MODES and stat.S_ISREG(found.st_mode) and not is_device:
            _refuse_foreign(Path(path), found)
            mode = stat.S_IMODE(found.st_mode)
            if mode & _EVERYONE_ELSE:
                os.fchmod(opened, mode & ~_EVERYONE_ELSE)
                _logger.warning("%s was open to other users (mode %04o). Now it is not.", path, mode)
    except BaseException:
        os.close(opened)
        raise
    return opened


def check_shared(path: Path) -> None:
    """Check a file that everybody may read: nobody else may write it.

    Raises:
        UnsafePathError: Everybody can write it, and it is another user's.
        OSError: It cannot be read.
    """
    found = path.stat()
    if not _HAS_MODES or not found.st_mode & stat.S_IWOTH:
        return
    _refuse_foreign(path, found)
    path.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWOTH)
    _logger.warning("Every user could write to %s. Now they cannot. Check what is in it.", path)


def open_secret(path: Path) -> int:
    """Open a file with secrets to read it.

    Raises:
        UnsafePathError: It is a link or another user's, or others can read it.
        OSError: It cannot be opened.
    """
    try:
        opened = os.open(path, os.O_RDONLY | _NO_LINK | getattr(os, "O_BINARY", 0))
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafePathError(f"{path} is a symbolic link. Name the file that it leads to.") from None
        raise
    found = os.fstat(opened)
    try:
        if _HAS_MODES:
            _refuse_foreign(path, found)
            _refuse_readable(path, found)
    except BaseException:
        os.close(opened)
        raise
    return opened


def replace_file(path: Path, content: bytes, mode: int = 0o600) -> None:
    """Write a file that is never half written, and that nobody else can read meanwhile.

    Raises:
        OSError: It cannot be written.
    """
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0), mode)
    try:
        with os.fdopen(file, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        draft.replace(path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise


def _refuse_readable(path: Path, found: os.stat_result) -> None:
    if found.st_mode & _OTHERS:
        raise UnsafePathError(f"Other users can read the secrets in {path}. Run: chmod 600 {path}")


def _refuse_foreign(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise UnsafePathError(
            f"{path} belongs to another user (uid {found.st_uid}). Name another path, or change its owner: "
            f"chown {os.geteuid()} {path}"
        )
