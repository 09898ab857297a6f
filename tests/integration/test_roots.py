"""Only files under the roots are accessible."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mcp_mirror.errors import ToolError
from mcp_mirror.memory.tools import roots as module
from mcp_mirror.memory.tools.roots import Roots

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(params=["walked", "resolved"])
def roots(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Roots:
    """Two roots, the second behind a link of the operator's own; both ways of getting to a file."""
    if request.param == "resolved":
        monkeypatch.setattr(module, "_HAS_DIR_FD", False)  # as on Windows
    for name in ("one/below", "two", "outside"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "two")
    (tmp_path / "outside" / "secret").write_bytes(b"secret")
    (tmp_path / "one" / "below" / "file").write_bytes(b"one")
    (tmp_path / "two" / "deep").mkdir()
    for name in ("other", "deep/other"):
        (tmp_path / "two" / name).write_bytes(b"two")
    return Roots((str(tmp_path / "one"), str(tmp_path / "link")))


def content(roots: Roots, name: str) -> bytes:
    with roots.open_file(name) as file:
        return os.read(file, 100)


def test_a_file_is_found_under_any_root_by_either_path(roots: Roots, tmp_path: Path) -> None:
    assert content(roots, "below/file") == b"one"
    assert content(roots, str(tmp_path / "one" / "below" / "file")) == b"one"
    assert content(roots, "other") == content(roots, "deep/other") == b"two"
    assert content(roots, str(tmp_path / "link" / "other")) == b"two"


def test_no_link_no_folder_and_nothing_outside_is_read(roots: Roots, tmp_path: Path) -> None:
    one, outside = tmp_path / "one", tmp_path / "outside"
    (one / "file_link").symlink_to(outside / "secret")
    (one / "folder_link").symlink_to(outside)
    (one / "own_link").symlink_to(one / "below" / "file")
    if sys.platform != "win32":
        os.mkfifo(one / "pipe")
    names = ["file_link", "folder_link/secret", "own_link", "below", "pipe", "../outside/secret", "none", "", "/", "~"]
    names += [str(one), f"{one}/.", str(outside / "secret"), "below/../../outside/secret", "a\0b"]
    names += ["below/file/x", "~nobody/x"]
    for name in names:
        with pytest.raises(ToolError):
            content(roots, name)


def test_a_file_is_written_whole_or_not_at_all(roots: Roots, tmp_path: Path) -> None:
    def breaks() -> Iterator[bytes]:
        yield b"half"
        raise ToolError("broken")

    with pytest.raises(ToolError, match="broken"):
        roots.write("new", breaks(), overwrite=False)
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["below"]
    assert roots.write("new", [b"a", b"bc"], overwrite=False) == 3
    with pytest.raises(ToolError, match="set `overwrite`"):
        roots.write("new", [b"other"], overwrite=False)
    with pytest.raises(ToolError, match="broken"):
        roots.write("new", breaks(), overwrite=True)
    assert (tmp_path / "one" / "new").read_bytes() == b"abc"
    assert roots.write("new", [b"other"], overwrite=True) == 5
    assert (tmp_path / "one" / "new").read_bytes() == b"other"
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == ["below", "new"]
    assert (tmp_path / "one" / "new").stat().st_mode & 0o077 == 0 or sys.platform == "win32"


def test_nothing_is_written_through_a_link_or_elsewhere(roots: Roots, tmp_path: Path) -> None:
    one, outside = tmp_path / "one", tmp_path / "outside"
    (one / "folder_link").symlink_to(outside)
    names = ["folder_link/x", str(outside / "x"), "../outside/x", "none/x", "below", "below/file/x", str(one)]
    for name in (*names, str(tmp_path / "link")):
        with pytest.raises(ToolError):
            roots.write(name, [b"x"], overwrite=True)
    assert [path.name for path in outside.iterdir()] == ["secret"]
    assert sorted(path.name for path in one.rglob("*")) == ["below", "file", "folder_link"]


def test_an_error_about_a_missing_folder_names_the_roots(roots: Roots) -> None:
    for name in ("one/new", "none/x"):
        with pytest.raises(ToolError) as missing:
            roots.write(name, [b"x"], overwrite=False)
        with pytest.raises(ToolError) as outside:
            roots.write("../x", [b"x"], overwrite=False)
        listed = str(outside.value).partition(" under ")[2].rstrip(".")
        assert str(missing.value).startswith(f"The folder of '{name}' does not exist under the roots {listed} ")


@pytest.mark.posix
def test_every_file_and_folder_is_closed(roots: Roots) -> None:
    before = len([*Path("/dev/fd").iterdir()])
    assert content(roots, "below/file") == b"one"
    assert roots.write("below/new", [b"x"], overwrite=False) == 1
    for name in ("below", "below/file/x", "below/none/x"):
        with pytest.raises(ToolError):
            content(roots, name)
        with pytest.raises(ToolError):
            roots.write(name, [b"x"], overwrite=False)
    assert len([*Path("/dev/fd").iterdir()]) == before


def test_an_error_about_a_link_or_a_file_in_a_path_says_so(roots: Roots, tmp_path: Path) -> None:
    (tmp_path / "one" / "folder_link").symlink_to(tmp_path / "outside")
    (tmp_path / "one" / "file_link").symlink_to(tmp_path / "outside" / "secret")
    for name in ("folder_link/secret", "file_link"):
        with pytest.raises(ToolError, match="a part of its path is a symbolic link or a file"):
            content(roots, name)


def test_a_link_in_the_place_of_a_new_file_is_not_followed(roots: Roots, tmp_path: Path) -> None:
    secret = tmp_path / "outside" / "secret"
    (tmp_path / "one" / "link").symlink_to(secret)
    with pytest.raises(ToolError):
        roots.write("link", [b"x"], overwrite=False)
    assert secret.read_bytes() == b"secret"
