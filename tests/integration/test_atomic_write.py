"""Files written by rename: complete or unchanged."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from mcp_mirror.system.files import atomic_write

POSIX = pytest.mark.skipif(sys.platform == "win32", reason="permissions and folder descriptors of POSIX")


def test_a_new_file_has_all_pieces(tmp_path: Path) -> None:
    assert atomic_write(tmp_path / "file", (b"one ", memoryview(b"two"))) == 7
    assert (tmp_path / "file").read_bytes() == b"one two"


def test_a_write_that_fails_keeps_the_old_content(tmp_path: Path) -> None:
    def failing() -> Iterator[bytes]:
        yield b"new"
        raise OSError("no more")

    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(OSError, match="no more"):
        atomic_write(tmp_path / "file", failing())
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("file", b"old")]


def test_an_existing_file_is_kept_without_overwrite(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")
    with pytest.raises(FileExistsError):
        atomic_write(tmp_path / "file", (b"new",), overwrite=False)
    atomic_write(tmp_path / "other", (b"new",), overwrite=False)
    found = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert found == {"file": b"old", "other": b"new"}


def test_a_name_of_the_maximum_length_can_be_written(tmp_path: Path) -> None:
    atomic_write(tmp_path / ("n" * 255), (b"x",))
    assert [len(path.name) for path in tmp_path.iterdir()] == [255]


@POSIX
def test_permissions_are_private_or_those_of_the_replaced_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    atomic_write(path, (b"x",))
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o646)
    atomic_write(path, (b"y",), keep_mode=True)
    assert path.stat().st_mode & 0o777 == 0o646
    atomic_write(path, (b"z",))
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() != 0, reason="only root can give files to others")
def test_root_leaves_a_replaced_file_to_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x")
    os.chown(path, 12_345, 23_456)
    atomic_write(path, (b"y",), keep_mode=True)
    assert (path.stat().st_uid, path.stat().st_gid, path.read_bytes()) == (12_345, 23_456, b"y")


@POSIX
def test_a_name_is_relative_to_the_descriptor_of_a_folder(tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    try:
        assert atomic_write("file", (b"x",), folder=folder) == 1
    finally:
        os.close(folder)
    assert (tmp_path / "file").read_bytes() == b"x"
