"""The lock file: its effect, and the errors of one that cannot be used."""

from pathlib import Path

import pytest

from mcp_mirror.config.lock_file import read_file, read_pins, write_file
from mcp_mirror.errors import ConfigError
from mcp_mirror.security.pins import NO_PINS, Lock, Pinned, Pins
from mcp_mirror.settings.policies import LockPolicy
from mcp_mirror.settings.upstreams import LockMode

LOCK = Lock(1, {"up": Pinned("Hi.", {})})


@pytest.mark.parametrize("mode", [None, "warn", "block"])
def test_a_written_lock_file_is_enforced_unless_the_mode_is_off(mode: LockMode | None, tmp_path: Path) -> None:
    file = tmp_path / "mirror.lock.json"
    assert read_file(file) is None
    write_file(file, LOCK)
    write_file(file, LOCK)
    assert read_pins(LockPolicy(mode, str(file))) == Pins(LOCK, mode or "block")
    assert read_pins(LockPolicy("off", str(file))) == NO_PINS
    assert [path.name for path in tmp_path.iterdir()] == ["mirror.lock.json"]


def test_a_file_that_is_not_there_is_missed_where_it_is_wanted(tmp_path: Path) -> None:
    file = str(tmp_path / "mirror.lock.json")
    for policy in (LockPolicy(), LockPolicy(None, file), LockPolicy("off", file), LockPolicy("off")):
        assert read_pins(policy) == NO_PINS
    for mode, path in (("warn", file), ("block", file), ("block", None)):
        with pytest.raises(ConfigError, match=rf"`lock.mode` is {mode}. Write it with `mcp-mirror lock`"):
            read_pins(LockPolicy(mode, path))  # type: ignore[arg-type]  # literals


def test_a_link_to_a_lock_file_and_its_permissions_stay(tmp_path: Path) -> None:
    (file := tmp_path / "kept.json").touch(0o600)
    (link := tmp_path / "lock.json").symlink_to(file)
    write_file(link, LOCK)
    assert (link.is_symlink(), read_file(file)) == (True, LOCK)
    assert file.stat().st_mode & 0o777 == 0o600


def test_an_unusable_lock_file_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "mirror.lock.json"
    for content in (b"{", b"\xff", b"[]"):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=r"cannot be used: .* Restore it, or remove it and run"):
            read_pins(LockPolicy(None, str(file)))
    with pytest.raises(ConfigError, match=r"cannot be used: Is a directory"):
        read_file(tmp_path)
    with pytest.raises(ConfigError, match=r"cannot be written: No such file or directory. .*`lock.file`"):
        write_file(tmp_path / "none" / "lock", LOCK)
