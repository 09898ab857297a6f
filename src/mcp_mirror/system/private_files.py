"""Files and folders that only this user may use.

The gateway revokes the access of others to this user's files, and refuses links and files of others. Permissions are
those of POSIX systems. On Windows nothing is checked: folders there inherit their access lists.
"""

import errno
import logging
import os
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
"""Permissions that a log file must not have. Its group may read it, so that log collectors can."""
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_DEVICES: Final = ("/dev/", "/proc/")
"""Folders with links that the system made, such as `/dev/stdout`."""


class UnsafePathError(MirrorError):
    """Another user may read or change a path. The message names the fix."""


def open_folder(folder: Path, own_names: Collection[str]) -> None:
    """Create a folder that only this user may use, or revoke the access of others to a folder of this user.

    Args:
        folder: Created with its parents if it does not exist.
        own_names: Globs of the names that the gateway itself puts into the folder. The permissions of a folder with
            other names are not changed.

    Raises:
        UnsafePathError: The folder is a link or belongs to another user; or others can write to it and it has other
            files; or it contains a link or another user's file.
        OSError: The folder cannot be created or read.
    """
    if folder.is_symlink():
        raise UnsafePathError(f"{folder} is a symbolic link. Configure the folder that it points to.")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not _HAS_MODES:
        return
    opened = os.open(folder, _FOLDER)
    try:
        found = os.fstat(opened)
        _refuse_foreign(folder, found)
        mode = stat.S_IMODE(found.st_mode)
        if mode & _OTHERS:
            _revoke_access(folder, opened, mode, own_names)
        for entry in folder.iterdir():
            if _is_own(entry.name, own_names):
                check_entry(entry)
    finally:
        os.close(opened)


def _revoke_access(folder: Path, opened: int, mode: int, own_names: Collection[str]) -> None:
    if all(_is_own(name, own_names) for name in os.listdir(opened)):
        os.fchmod(opened, 0o700)
        _logger.warning("%s was open to other users (mode %04o). Its mode is now 0700.", folder, mode)
    elif mode & _WRITABLE:
        raise UnsafePathError(
            f"Other users can write to {folder} (mode {mode:04o}), and it contains other files. Configure a separate "
            f"folder, or run: chmod 700 {folder}"
        )


def _is_own(name: str, own_names: Collection[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in own_names)


def check_entry(path: Path) -> None:
    """Check a file or folder of the gateway, if it exists, and revoke the access of others.

    The entries of a folder are checked too if others could write to the folder.

    Raises:
        UnsafePathError: The path is a link or belongs to another user.
        OSError: The path cannot be read.
    """
    try:
        found = path.lstat()
    except FileNotFoundError:
        return
    if stat.S_ISLNK(found.st_mode):
        raise UnsafePathError(f"{path} is a symbolic link that the gateway did not create. Remove the link.")
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
    """Open a log file. Only this user may read a new one; an existing one stays readable by its group at most.

    Raises:
        UnsafePathError: The path is a link, except a system link such as `/dev/stdout`, or the file belongs to another
            user.
        OSError: The file cannot be opened.
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
                _logger.warning("%s was open to other users (mode %04o). Now they have no access.", path, mode)
    except BaseException:
        os.close(opened)
        raise
    return opened


def check_shared(path: Path) -> None:
    """Check a file that every user may read but only this user may write.

    Raises:
        UnsafePathError: Every user can write the file, and it belongs to another user.
        OSError: The file cannot be read.
    """
    found = path.stat()
    if not _HAS_MODES or not found.st_mode & stat.S_IWOTH:
        return
    _refuse_foreign(path, found)
    path.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWOTH)
    _logger.warning("Every user could write to %s. Now only its owner can. Check its content.", path)


def open_secret(path: Path) -> int:
    """Open a file with secrets for reading.

    Raises:
        UnsafePathError: The path is a link, belongs to another user, or is readable by others.
        OSError: The file cannot be opened.
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


def _refuse_readable(path: Path, found: os.stat_result) -> None:
    if found.st_mode & _OTHERS:
        raise UnsafePathError(f"Other users can read the secrets in {path}. Run: chmod 600 {path}")


def _refuse_foreign(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise UnsafePathError(
            f"{path} belongs to another user (uid {found.st_uid}). Configure another path, or change the owner: "
            f"chown {os.geteuid()} {path}"
        )
