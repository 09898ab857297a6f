"""Files and folders that others can read, change or have planted: the gateway closes them or refuses to use them."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mcp_mirror.config import find_config, load_config
from mcp_mirror.config.lock_file import read_file, write_file
from mcp_mirror.errors import ConfigError, MirrorError, StoreError, UpstreamError
from mcp_mirror.observability.audit_file import AuditFile
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.pins import NO_LOCK
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.settings.limits import TrafficPolicy
from mcp_mirror.settings.policies import WirePolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.settings.upstreams import StdioEndpoint
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.system.files import UnsafePathError, open_folder
from mcp_mirror.upstreams.transports.commands import find_command

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.end_to_end.conftest import Configured, Run

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such modes")
SOMEBODY = 12_345
"""Another user's id."""
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


async def use_store(folder: Path) -> None:
    async with DiskStore(StorePolicy(), lambda: 0.0, folder):
        pass


async def test_a_store_that_others_can_write_to_is_closed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "store"
    await use_store(folder)
    for path in (folder, folder / "blobs"):
        path.chmod(0o777)
    (folder / "blobs" / "x").touch(0o600)
    (folder / "blobs" / "x").chmod(0o666)
    (folder / "index.sqlite").chmod(0o644)
    await use_store(folder)
    assert [mode_of(folder / name) for name in (".", "blobs", "index.sqlite")] == [0o700, 0o700, 0o600]
    assert f"{folder} was open to other users (mode 0777)" in caplog.text
    assert not (folder / "blobs" / "x").exists() or mode_of(folder / "blobs" / "x") == 0o600


def plant_folder(folder: Path, elsewhere: Path) -> None:
    folder.symlink_to(elsewhere)


def plant_within(name: str) -> Callable[[Path, Path], None]:
    def plant(folder: Path, elsewhere: Path) -> None:
        folder.mkdir(0o700)
        (folder / name).symlink_to(elsewhere if name == "blobs" else elsewhere / "file")

    return plant


def plant_blob(folder: Path, elsewhere: Path) -> None:
    (folder / "blobs").mkdir(parents=True)
    folder.chmod(0o700)
    (folder / "blobs").chmod(0o777)
    (folder / "blobs" / ("0" * 64)).symlink_to(elsewhere / "file")


PLANTED = {"the folder": plant_folder, "a blob": plant_blob} | {
    name: plant_within(name)
    for name in ("blobs", "index.sqlite", "index.sqlite-wal", "lock", "live-1", "damaged", "reserve")
}


@pytest.mark.parametrize("name", PLANTED)
async def test_a_planted_link_in_a_store_is_refused(tmp_path: Path, name: str) -> None:
    folder, elsewhere = tmp_path / "store", tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "file").write_text("kept")
    PLANTED[name](folder, elsewhere)
    with pytest.raises(StoreError, match=f"{folder}.* is a symbolic link"):
        await use_store(folder)
    assert {path.name: path.read_text() for path in elsewhere.iterdir()} == {"file": "kept"}


async def test_others_cannot_replace_a_store_in_folders_that_it_created(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        await use_store(tmp_path / "data" / "gateway" / "store")
    finally:
        os.umask(before)
    created = ("data", "data/gateway", "data/gateway/store")
    assert [mode_of(tmp_path / name) for name in created] == [0o755, 0o755, 0o700]


async def test_calls_are_not_logged_in_a_folder_that_replaced_the_store(tmp_path: Path) -> None:
    folder, other = tmp_path / "store", tmp_path / "other"
    other.mkdir()
    async with DiskStore(StorePolicy(), lambda: 0.0, folder) as store:
        folder.rename(tmp_path / "moved")
        folder.symlink_to(other)
        with pytest.raises(StoreError, match="The system reports: another user has replaced its folder"):
            await store.events.append("me", (b"entry",), {}, keep=9)
    assert not list(other.iterdir())


@needs_root
async def test_a_store_of_another_user_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "store"
    await use_store(folder)
    os.chown(folder / "index.sqlite", SOMEBODY, -1)
    with pytest.raises(StoreError, match=rf"index.sqlite belongs to another user \(uid {SOMEBODY}\)"):
        await use_store(folder)
    os.chown(folder, SOMEBODY, -1)
    with pytest.raises(StoreError, match=f"{folder} belongs to another user .* Run mcp-mirror as that user, or"):
        await use_store(folder)


@needs_root
def test_a_private_folder_of_another_user_is_refused_by_its_owner() -> None:
    with tempfile.TemporaryDirectory() as parent:  # `tmp_path` is below folders that others cannot enter
        folder = Path(parent, "store")
        folder.mkdir(mode=0o700)
        Path(parent).chmod(0o755)
        os.seteuid(SOMEBODY)
        try:
            with pytest.raises(UnsafePathError, match=rf"{folder} belongs to another user \(uid 0\)"):
                open_folder(folder, ())
        finally:
            os.seteuid(0)


@needs_root
def test_a_command_in_a_private_folder_of_another_user_is_named() -> None:
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder, "server")
        program.touch(mode=0o755)
        os.setresuid(SOMEBODY, SOMEBODY, 0)
        try:
            with pytest.raises(UpstreamError, match=f"may not enter a folder of the command '{program}'"):
                find_command(StdioEndpoint(str(program)))
        finally:
            os.setresuid(0, 0, 0)


async def test_the_mode_of_a_folder_with_other_files_is_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").touch()
    tmp_path.chmod(0o755)
    await use_store(tmp_path)
    assert mode_of(tmp_path) == 0o755
    tmp_path.chmod(0o1777)
    with pytest.raises(StoreError, match=f"Other users can write to {tmp_path} .mode 1777., and it contains other"):
        await use_store(tmp_path)
    assert mode_of(tmp_path) == 0o777


def test_a_spool_folder_is_closed_or_refused(tmp_path: Path) -> None:
    limits = WirePolicy(traffic=TrafficPolicy())
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with Spool(limits, shared) as spool:
        assert mode_of(shared) == 0o700
        assert mode_of(spool.directory) == 0o700
    (tmp_path / "link").symlink_to(shared)
    with pytest.raises(UnsafePathError, match="is a symbolic link"), Spool(limits, tmp_path / "link"):
        pass


def test_an_audit_log_is_closed_or_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    log = tmp_path / "audit.log"
    log.touch()
    log.chmod(0o666)
    AuditFile(str(log), PathHasher(b"k" * 32), lambda: 0.0).close()
    assert mode_of(log) == 0o640
    assert f"{log} was open to other users (mode 0666)" in caplog.text
    (tmp_path / "link").symlink_to(log)
    with pytest.raises(MirrorError, match=r"link is a symbolic link\. Name the file that it leads to"):
        AuditFile(str(tmp_path / "link"), PathHasher(b"k" * 32), lambda: 0.0)
    AuditFile("/dev/stderr", PathHasher(b"k" * 32), lambda: 0.0).close()


@needs_root
def test_an_audit_log_of_another_user_is_refused(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    log.touch()
    os.chown(log, SOMEBODY, -1)
    with pytest.raises(MirrorError, match="belongs to another user"):
        AuditFile(str(log), PathHasher(b"k" * 32), lambda: 0.0)


def test_other_users_cannot_write_a_lock_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file, victim = tmp_path / "mirror.lock.json", tmp_path / "victim"
    victim.write_text("kept")
    (tmp_path / "mirror.lock.json.new").symlink_to(victim)
    write_file(file, NO_LOCK)
    assert victim.read_text() == "kept"
    file.chmod(0o666)
    assert read_file(file) == NO_LOCK
    assert mode_of(file) == 0o664
    assert "Now users outside its group cannot" in caplog.text
    if os.geteuid() == 0:
        os.chown(file, SOMEBODY, -1)
        assert read_file(file) == NO_LOCK
        file.chmod(0o666)
        with pytest.raises(ConfigError, match="belongs to another user"):
            read_file(file)


@needs_root
def test_a_configuration_that_another_user_left_here_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = tmp_path / "mcp-mirror.yaml"
    config.touch(0o644)
    os.chown(config, SOMEBODY, -1)
    tmp_path.chmod(0o755)
    assert find_config(None, {}).path == Path("mcp-mirror.yaml"), "only this user can have put it there"
    for owner, mode in ((-1, 0o1777), (SOMEBODY, 0o755)):
        tmp_path.chmod(mode)
        os.chown(tmp_path, owner, -1)
        with pytest.raises(ConfigError, match=rf"uid {SOMEBODY}.* If you trust it, name it: --config {config}$"):
            find_config(None, {})
        assert find_config(config, {}).path == find_config(None, {"MCP_MIRROR_CONFIG": str(config)}).path == config
    os.chown(config, 0, -1)
    assert find_config(None, {}).path == Path("mcp-mirror.yaml")


SECRETS: dict[str, dict[str, Any]] = {
    "upstreams.web.headers.Authorization": {
        "url": "https://a.example/mcp",
        "headers": {"Authorization": "Bearer 12345"},
    },
    "upstreams.web.headers.X-Api-Key": {"url": "https://a.example/mcp", "headers": {"X-Api-Key": "0123456789"}},
    "upstreams.web.env.GITHUB_TOKEN": {"command": "x", "env": {"GITHUB_TOKEN": "ghp_0123456789"}},
    "upstreams.web.url": {"url": "https://ada:secret@a.example/mcp"},
}
SECTIONS: dict[str, dict[str, Any]] = {
    "auth.tokens.alice": {"auth": {"tokens": {"alice": "sha256:" + "0" * 64}}},
    "server.state_keys.0": {"server": {"state_keys": ["k" * 32]}},
    "audit.key": {"audit": {"path": "a.log", "key": "k" * 32}},
}


@pytest.mark.parametrize("place", [*SECRETS, *SECTIONS])
def test_a_configuration_with_secrets_that_others_can_read_is_reported(configured: Configured, place: str) -> None:
    config = configured({"web": SECRETS[place]} if place in SECRETS else {}, **SECTIONS.get(place, {}))
    for mode in (0o644, 0o640, 0o604):
        config.chmod(mode)
        (warning,) = load_config(config, {}).warnings
        assert warning.startswith(f"{config}:1: {place}: other users can read this file (mode {mode:04o})")
        assert f"chmod 600 {config}" in warning
    config.chmod(0o600)
    assert load_config(config, {}).warnings == ()


def test_a_configuration_without_secrets_may_be_readable(configured: Configured) -> None:
    web = {
        "url": "https://a.example/mcp",
        "headers": {"Authorization": "Bearer ${TOKEN}", "Accept-Language": "en-GB,en"},
    }
    files = {
        "command": "x",
        "env": {"GOOGLE_CREDENTIALS": "/etc/credentials.json", "KEYBOARD": "us", "LANG": "en_GB.UTF-8"},
    }
    config = configured({"web": web, "files": files})
    config.chmod(0o644)
    assert load_config(config, {"TOKEN": "x"}).warnings == ()


async def test_check_names_an_exposed_configuration_as_a_problem(configured: Configured, run: Run) -> None:
    config = configured({}, auth={"tokens": {"alice": "sha256:" + "0" * 64}})
    config.chmod(0o644)
    checked = await run("check", "--config", str(config))
    assert checked.code == 1
    assert "other users can read this file (mode 0644)" in checked.err
    config.chmod(0o600)
    assert (await run("check", "--config", str(config))).code == 0


async def test_serve_refuses_an_unsafe_store_with_advice(configured: Configured, run: Run, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    config = configured({}, store={"kind": "disk", "path": str(tmp_path / "link")})
    ended = await run("serve", "--config", str(config), "--http", "127.0.0.1:0")
    assert ended.code == 2
    assert f"{tmp_path / 'link'} is a symbolic link. Configure the folder that it points to." in ended.err
    assert json.loads(config.read_text())
