"""Files that only this user may use, locks, and files written by rename.

The gateway revokes the access of others to this user's files, and refuses links and files of others. Permissions are
those of POSIX systems. On Windows nothing is checked: folders there inherit their access lists.
"""

import errno
import logging
import os
import secrets
import shutil
import stat
import struct
import sys
from collections.abc import Collection, Iterable
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path, PurePath
from typing import Final

from mcp_mirror.errors import MirrorError
from mcp_mirror.types import Buffer

if sys.platform == "win32":
    import msvcrt
else:
    import fcntl

_logger = logging.getLogger(__name__)

BINARY: Final = getattr(os, "O_BINARY", 0)
"""The flag with which Windows opens a file without converting line breaks."""
_HAS_MODES: Final = sys.platform != "win32"
_OTHERS: Final = 0o077
_WRITABLE: Final = 0o022
_EVERYONE_ELSE: Final = 0o027
"""Permissions that a log file must not have. Its group may read it, so that log collectors can."""
_FOLDER: Final = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0) | getattr(os, "O_NOFOLLOW", 0)
_NO_LINK: Final = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_LOG: Final = (
    os.O_WRONLY | os.O_APPEND | os.O_CREAT | BINARY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0)
)
_DEVICES: Final = ("/dev/", "/proc/")
"""Folders with links that the system made, such as `/dev/stdout`."""
NO_LOCKS: Final = frozenset({errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS})
"""The errors of file systems that cannot lock files, such as some of networks."""
UNFINISHED_NAMES: Final = ".*.part"
"""A glob of the names of unfinished files, which a killed process leaves behind."""
_NEW: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_CLOEXEC", 0) | BINARY
_SET_FLAGS: Final = 0x40000000 | struct.calcsize("l") << 16 | ord("f") << 8 | 2
"""`FS_IOC_SETFLAGS` of Linux."""
_NO_COPIES: Final = (0x00800000).to_bytes(4, sys.byteorder) + bytes(4)
"""`FS_NOCOW_FL`, which file systems that always overwrite in place refuse."""

FileVersion = tuple[int, int, int]
"""Values that change with a file."""


class UnsafePathError(MirrorError):
    """Another user may read or change a path. The message names the fix."""


def open_folder(folder: Path, own_names: Collection[str]) -> None:
    """Create a folder that only this user may use, or revoke the access of others to a folder of this user.

    Missing parents are created too. `own_names` are globs of the names that the gateway itself puts into the folder;
    the permissions of a folder with other names are not changed.

    Raises:
        UnsafePathError: The folder is a link or belongs to another user; or others can write to it and it has other
            files; or it contains a link or another user's file.
        OSError: The folder cannot be created or read.
    """
    if folder.is_symlink():
        raise UnsafePathError(f"{folder} is a symbolic link. Configure the folder that it points to.")
    create_folder(folder)
    if not _HAS_MODES:
        return
    try:
        opened = os.open(folder, _FOLDER)
    except PermissionError:
        _refuse_foreign(folder, folder.stat())
        raise
    try:
        found = os.fstat(opened)
        _refuse_foreign(folder, found)
        mode = stat.S_IMODE(found.st_mode)
        if mode & _OTHERS:
            _revoke_access(folder, opened, mode, own_names)
        for entry in folder.iterdir():
            if _is_own(entry.name, own_names):
                _check_entry(entry)
    finally:
        os.close(opened)


def create_folder(folder: Path) -> None:
    """Create a folder that only this user may use, unless it exists, and its missing parents.

    Only this user may write to the new parents, whatever the umask: who can write to a parent can replace the folder.

    Raises:
        OSError: A folder cannot be created.
    """
    for parent in reversed([one for one in folder.parents if not one.exists()]):
        parent.mkdir(mode=0o777 & ~_WRITABLE, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)


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


def _check_entry(path: Path) -> None:
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
            _check_entry(entry)


def open_log(path: str) -> int:
    """Open a log file to append. Only this user may read a new one, and at most its group an existing one.

    Raises:
        UnsafePathError: The path is a link, except a system link such as `/dev/stdout`, or the file belongs to another
            user.
        OSError: The file cannot be opened.
    """
    is_device = path.startswith(_DEVICES)
    opened = os.open(path, _LOG, 0o600) if is_device else _open_no_link(path, _LOG)
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
    """Check a file that every user may read, and only its owner and its group may write.

    Raises:
        UnsafePathError: Every user can write the file, and it belongs to another user.
        OSError: The file cannot be read.
    """
    found = path.stat()
    if not _HAS_MODES or not found.st_mode & stat.S_IWOTH:
        return
    _refuse_foreign(path, found)
    path.chmod(stat.S_IMODE(found.st_mode) & ~stat.S_IWOTH)
    _logger.warning("Every user could write to %s. Now users outside its group cannot. Check its content.", path)


def open_secret(path: Path) -> int:
    """Open a file with secrets for reading.

    Raises:
        UnsafePathError: The path is a link, belongs to another user, or is readable by others.
        OSError: The file cannot be opened.
    """
    opened = _open_no_link(path, os.O_RDONLY | BINARY)
    try:
        if _HAS_MODES:
            found = os.fstat(opened)
            _refuse_foreign(path, found)
            if found.st_mode & _OTHERS:
                raise UnsafePathError(f"Other users can read the secrets in {path}. Run: chmod 600 {path}")  # noqa: TRY301  # it must be closed
    except BaseException:
        os.close(opened)
        raise
    return opened


def _open_no_link(path: Path | str, flags: int) -> int:
    try:
        return os.open(path, flags | _NO_LINK, 0o600)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafePathError(f"{path} is a symbolic link. Name the file that it leads to.") from None
        raise


def _refuse_foreign(path: Path, found: os.stat_result) -> None:
    if found.st_uid != os.geteuid():
        raise UnsafePathError(
            f"{path} belongs to another user (uid {found.st_uid}). Run mcp-mirror as that user, or configure another "
            f"path. If the files are to belong to this user, stop all gateways that use them, and run: "
            f"chown -R {os.geteuid()} {path}"
        )


def try_lock(file: int) -> None:
    """Lock an open file between processes until its descriptor is closed, or its process ends.

    Raises:
        OSError: Another process has locked the file, or the file system cannot lock files (`NO_LOCKS`).
    """
    if sys.platform == "win32":
        msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
    else:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def open_lock(path: Path) -> int:
    """Open a file to be locked, which only this user can open; create it if it does not exist.

    Raises:
        OSError: The path is a link, or cannot be opened or created.
    """
    return os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o600)


def _claim_folder(folder: Path) -> int | None:
    """Lock a folder, so that `remove_unclaimed` of other processes does not remove it.

    Returns:
        An open descriptor that keeps the lock until it is closed or the process ends; None where folders cannot be
        locked (Windows, some network file systems).
    """
    if sys.platform == "win32":
        return None
    opened = os.open(folder, _FOLDER)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
    except OSError:
        os.close(opened)
        return None
    return opened


def create_claimed_folder(parent: Path | None, prefix: str) -> tuple[Path, int | None]:
    """Create a folder that only this user can open, and claim it.

    Its name begins with `prefix`. `parent` will contain the folder; None: the folder of temporary files.

    Returns:
        The folder, and what `_claim_folder` returned for it.

    Raises:
        OSError: It cannot be created.
    """
    import tempfile  # noqa: PLC0415  # few worker processes need it

    while True:
        created = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        with suppress(FileNotFoundError):  # between the two steps, another process took it for an unclaimed one
            claim = _claim_folder(created)
            if created.exists():
                return created, claim
            if claim is not None:
                os.close(claim)


def remove_unclaimed(parent: Path, prefix: str) -> None:
    """Remove folders of this user that no process has locked: those of killed processes.

    Their names begin with `prefix`. `parent` may be open to all users, or not exist.
    """
    if sys.platform == "win32":
        return
    with suppress(OSError):
        for folder in parent.glob(f"{prefix}*"):
            with suppress(OSError):  # such as that of another user, or one in use
                _remove_unless_claimed(folder)


def _remove_unless_claimed(folder: Path) -> None:
    opened = os.open(folder, _FOLDER)
    try:
        if os.fstat(opened).st_uid == os.geteuid():
            try_lock(opened)
            shutil.rmtree(folder)
    finally:
        os.close(opened)


def atomic_write(
    path: Path | str,
    pieces: Iterable[Buffer],
    mode: int = 0o600,
    *,
    folder: int | None = None,
    overwrite: bool = True,
    keep_mode: bool = False,
) -> int:
    """Write a file by rename, synced to the disk, and return its size in bytes.

    Args:
        path: The file. With `folder`, a name in that folder.
        pieces: The content.
        mode: The permissions of the file, without those of the umask.
        folder: Descriptor of the folder; None on systems without `dir_fd`.
        overwrite: Replace an existing file.
        keep_mode: A file that is replaced keeps its permissions, and its owner if root replaces it.

    Raises:
        FileExistsError: The file exists, and `overwrite` is false.
        OSError: The file cannot be written.
    """
    unfinished = str(PurePath(path).with_name(f".{secrets.token_hex(8)}.part"))
    file = os.open(unfinished, _NEW, mode, dir_fd=folder)
    try:
        with os.fdopen(file, "wb") as stream:
            size = sum(stream.write(piece) for piece in pieces)
            stream.flush()
            os.fsync(file)
            if keep_mode and Path(path).exists():
                _copy_access(Path(path).stat(), file, unfinished)
        if not overwrite:
            os.close(os.open(path, _NEW, mode, dir_fd=folder))  # reserves the name; fails if it exists
        os.replace(unfinished, path, src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        with suppress(FileNotFoundError):
            os.unlink(unfinished, dir_fd=folder)
    return size


def _copy_access(before: os.stat_result, file: int, path: str) -> None:
    """Give an open file the permissions of another one and, for root (`sudo mcp-mirror install`), its owner."""
    mode = before.st_mode & 0o777
    if sys.platform == "win32":
        Path(path).chmod(mode)
        return
    if os.geteuid() == 0:
        os.fchown(file, before.st_uid, before.st_gid)
    os.fchmod(file, mode)


def create_private(path: Path) -> None:
    """Create an empty file that only this user may use, if it does not exist.

    An existing file is not opened: closing it would release the locks of this process on it, such as those of SQLite.
    """
    with suppress(FileExistsError):
        os.close(os.open(path, _NEW, 0o600))


def create_mapped(path: Path) -> None:
    """Create an empty file that only this user may use, and that processes write through maps, if it does not exist.

    The file system overwrites the file in place. btrfs would write copies of its pages, and kill a process that changes
    a page while the disk is full. An existing file is not opened, as in `create_private`.
    """
    with suppress(OSError):
        file = os.open(path, _NEW, 0o600)
        try:
            if sys.platform == "linux":
                fcntl.ioctl(file, _SET_FLAGS, _NO_COPIES)
        finally:
            os.close(file)


def identify_file(path: Path) -> tuple[int, int]:
    """Return the identity of the file with this name; zeros without such a file."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return (0, 0)
    return status.st_dev, status.st_ino


def read_file_version(path: Path) -> FileVersion | None:
    """Return the version of a file; None if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino


def write_all(file: int, data: Buffer) -> None:
    """Write all bytes to a descriptor."""
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
