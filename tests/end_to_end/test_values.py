"""`mcp-mirror values`: listing, exporting and deleting stored values."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import shlex
import sys
import time
from asyncio.subprocess import PIPE
from typing import TYPE_CHECKING, Any

import pytest

from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.disk.store import DiskStore
from mcp_mirror.types import Descriptor, Provenance, Traffic

if TYPE_CHECKING:
    from pathlib import Path

    from tests.end_to_end.conftest import Configured, OpenLines, Run

TEXT = "".join(f"line {number} \u00e9\n" for number in range(4000))
JSON = '{"rows":[1.10,2e400],"name":"x"}'
PIXELS = bytes(range(256)) * 4


@pytest.fixture
async def stored(configured: Configured, open_lines: OpenLines, raw: Any) -> tuple[str, dict[str, str]]:
    """A configuration, and the paths of a text, an object and a picture."""
    config = configured({"raw": raw()}, mirror={"capture": "always"}, store={"kind": "disk"})
    image = {"type": "image", "data": base64.b64encode(PIXELS).decode(), "mimeType": "image/png"}
    results = {
        "text": json.dumps({"content": [{"type": "text", "text": TEXT}]}),
        "json": f'{{"content":[],"structuredContent":{JSON}}}',
        "image": json.dumps({"content": [image]}),
    }
    async with open_lines(config) as client:
        await client.greet()
        for result in results.values():
            await client.call("say_mirrored", json.dumps({"result": result}))
        listed = [line.split()[0].strip('"') for line in (await client.text("memory_list")).splitlines()[:3]]
    return str(config), dict(zip(results, reversed(listed), strict=True))


async def test_list_prints_each_value_with_its_provenance(stored: tuple[str, dict[str, str]], run: Run) -> None:
    config, paths = stored
    ended = await run("values", "list", "--config", config)
    assert ended.code == 0, ended.err
    rows = [line.split() for line in ended.out.splitlines() if line.strip().startswith("say-")]
    assert [row[0] for row in rows] == [paths[name] for name in ("image", "json", "text")]
    assert all(row[1:3] == ["say", "raw"] for row in rows)
    assert [row[3] for row in rows] == ["image/png", "object", "text"]
    assert rows[0][-2:] in (["6", "d"], ["7", "d"])
    values = json.loads((await run("values", "list", "--config", config, "--json", "--limit", "2")).out)
    assert [one["path"] for one in values] == [paths["image"], paths["json"]]
    ended = await run("values", "list", "--config", config, "--tool", "told")
    assert ended.out == "No values of tool 'told' are stored for local.\n"
    assert values[1].keys() >= {"tool", "upstream", "kind", "bytes", "tokens", "stored", "expires"}


async def test_export_writes_text_json_and_media_as_they_are(
    stored: tuple[str, dict[str, str]], run: Run, tmp_path: Path
) -> None:
    config, paths = stored
    wanted = {"text": TEXT.encode(), "json": JSON.encode(), "image": PIXELS}
    for name, content in wanted.items():
        file = tmp_path / f"{name}.out"
        ended = await run("values", "export", paths[name], str(file), "--config", config)
        assert (ended.code, ended.err) == (0, f"Written: {len(content):,} bytes to {file}.\n")
        assert file.read_bytes() == content
    part = tmp_path / "part"
    await run("values", "export", f"{paths['json']}/rows/1", str(part), "--config", config)
    assert part.read_text() == "2e400"


async def test_export_writes_bytes_to_standard_output(
    stored: tuple[str, dict[str, str]], run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, paths = stored
    monkeypatch.chdir(tmp_path)
    ended = await run("values", "export", paths["text"], "-", "--config", config)
    assert (ended.code, ended.out, ended.err) == (0, TEXT, "")
    assert not (tmp_path / "-").exists()


async def test_export_replaces_a_file_only_with_force(
    stored: tuple[str, dict[str, str]], run: Run, tmp_path: Path
) -> None:
    config, paths = stored
    (file := tmp_path / "there").write_text("mine")
    ended = await run("values", "export", paths["json"], str(file), "--config", config)
    assert (ended.code, file.read_text()) == (2, "mine")
    assert "exists already. Name another file, or replace it with --force." in ended.err
    ended = await run("values", "export", paths["json"], str(file), "--force", "--config", config)
    assert (ended.code, file.read_text()) == (0, JSON)
    ended = await run("values", "export", paths["json"], str(tmp_path / "no" / "x"), "--config", config)
    assert ended.code == 2
    assert "cannot be written: No such file or directory" in ended.err


@pytest.mark.skipif(sys.platform == "win32", reason="links and pipes")
async def test_export_keeps_links_and_permissions_and_replaces_no_device(
    stored: tuple[str, dict[str, str]], run: Run, tmp_path: Path
) -> None:
    config, paths = stored
    (file := tmp_path / "file").touch(0o640)
    (link := tmp_path / "link").symlink_to(file)
    ended = await run("values", "export", paths["json"], str(link), "--config", config)
    assert (ended.code, file.read_text()) == (2, "")
    ended = await run("values", "export", paths["json"], str(link), "--force", "--config", config)
    assert (ended.code, link.is_symlink(), file.read_text()) == (0, True, JSON)
    assert file.stat().st_mode & 0o777 == 0o640
    os.mkfifo(pipe := tmp_path / "pipe")
    for path in (pipe, tmp_path):
        ended = await run("values", "export", paths["json"], str(path), "--force", "--config", config)
        assert (ended.code, "is not a regular file. Name another file." in ended.err) == (2, True)
    assert pipe.is_fifo()


async def test_show_prints_provenance_and_the_beginning(stored: tuple[str, dict[str, str]], run: Run) -> None:
    config, paths = stored
    ended = await run("values", "show", paths["text"], "--config", config)
    assert ended.code == 0
    assert "tool:       say\nupstream:   raw\n" in ended.out
    assert "line 0 \u00e9\nline 1" in ended.out
    assert len(ended.out) < 3000
    assert ended.out.endswith("... `mcp-mirror values export` writes all of it.\n")
    assert "Media cannot be printed" in (await run("values", "show", paths["image"], "--config", config)).out
    part = (await run("values", "show", paths["json"] + "/rows", "--config", config)).out
    assert "kind:       array\nbytes:      12\nstored:" in part
    assert part.endswith("\n[1.10,2e400]\n")
    ended = await run("values", "show", paths["text"][:-4] + "ffff", "--config", config)
    assert ended.code == 2
    assert f'call again with "{paths["text"]}"' in ended.err


async def test_clear_deletes_only_what_is_older_and_confirmed(stored: tuple[str, dict[str, str]], run: Run) -> None:
    config, _ = stored
    ended = await run("values", "clear", "--older-than", "1h", "--yes", "--config", config)
    assert (ended.code, ended.err) == (0, "Deleted 0 values.\n")
    ended = await run("values", "clear", "--config", config)
    assert ended.code == 2
    assert "would delete 3 values" in ended.err
    assert "Confirm with --yes." in ended.err
    ended = await run("values", "clear", "--older-than", "soon", "--config", config)
    assert (ended.code, "such as 7d; got 'soon'" in ended.err) == (2, True)
    assert (await run("values", "clear", "--yes", "--config", config)).err == "Deleted 3 values.\n"
    assert (await run("values", "list", "--config", config)).out == "No values are stored for local.\n"


async def test_values_of_another_namespace_are_listed_by_its_name(stored: tuple[str, dict[str, str]], run: Run) -> None:
    config, paths = stored
    ended = await run("values", "list", "--namespace", "alice", "--config", config)
    assert ended.out == "No values are stored for alice. Other namespaces: local (--namespace).\n"
    ended = await run("values", "show", paths["json"], "--namespace", "alice", "--config", config)
    assert (ended.code, "name" in ended.out) == (2, False)


async def test_clear_names_the_other_namespaces_or_clears_all(tmp_path: Path, run: Run) -> None:
    folder = str(tmp_path / "store")
    provenance = Provenance("up", "tool", "0" * 64)
    async with DiskStore(StorePolicy(), time.time, tmp_path / "store") as store:
        for name, ahead in {"alice": 0, "bob": 86_400}.items():  # bob's gateway had a wrong clock
            described = Descriptor("tool-1", "text", 3, 1, (), time.time() + ahead, 9e12, provenance)
            await store.put(f'["token", "{name}"]', described, (b'"a"',))
    ended = await run("values", "clear", "--yes", "--store", folder)
    assert ended.err == "Deleted 0 values. Other namespaces: alice, bob (--namespace).\n"
    ended = await run("values", "clear", "--all", "--namespace", "alice", "--store", folder)
    assert (ended.code, "Choose one of --all and --namespace." in ended.err) == (2, True)
    ended = await run("values", "clear", "--all", "--store", folder)
    assert (ended.code, "would delete 2 values, 6 B, of 2 namespaces. Confirm" in ended.err) == (2, True)
    assert (await run("values", "clear", "--all", "--older-than", "1h", "--yes", "--store", folder)).err == (
        "Deleted 0 values.\n"
    )
    assert (await run("values", "clear", "--all", "--yes", "--store", folder)).err == "Deleted 2 values.\n"


async def test_a_few_of_many_other_namespaces_are_named(tmp_path: Path, run: Run) -> None:
    async with DiskStore(StorePolicy(), time.time, tmp_path / "store") as store:
        for number in range(1_030):
            await store.count(f'["token", "p{number:04}"]', Traffic(1, 1))
    ended = await run("values", "list", "--store", str(tmp_path / "store"))
    named = ", ".join(f"p{number:04}" for number in range(20))
    assert ended.out == (
        f"No values are stored for local. Other namespaces: {named}, and 1,010 more, which `mcp-mirror stats` lists "
        "(--namespace).\n"
    )


async def test_a_media_type_does_not_control_the_terminal(tmp_path: Path, run: Run) -> None:
    known = Descriptor(
        "t-1", "binary", 2, 1, (), time.time(), time.time() + 900, Provenance("u", "t", ""), "image/png\x1b[2J"
    )
    async with DiskStore(StorePolicy(), time.time, tmp_path / "store") as store:
        await store.put("local", known, (b"{}",))
    ended = await run("values", "list", "--store", str(tmp_path / "store"))
    assert "\x1b" not in ended.out
    assert "image/png" in ended.out


async def test_principals_are_named_as_the_option_takes_them(tmp_path: Path, run: Run) -> None:
    folder = str(tmp_path / "store")
    async with DiskStore(StorePolicy(), time.time, tmp_path / "store") as store:
        for namespace in ('["token", "alice"]', '["token", "bob"]', '["https://login.example.com", "bob"]'):
            await store.count(namespace, Traffic(1, 1))
    ended = await run("values", "list", "--store", folder)
    assert ended.out == (
        "No values are stored for local. "
        'Other namespaces: ["https://login.example.com", "bob"], ["token", "bob"], alice (--namespace).\n'
    )
    table = (await run("stats", "--store", folder)).out
    assert [line.split("  ")[0] for line in table.splitlines()[2:]] == [
        '["https://login.example.com", "bob"]',
        "alice",
        '["token", "bob"]',
    ]
    assert '["token", "alice"]' in json.loads((await run("stats", "--store", folder, "--json")).out)


async def test_a_namespace_of_a_program_may_look_like_json(tmp_path: Path, run: Run) -> None:
    async with DiskStore(StorePolicy(), time.time, tmp_path / "store") as store:
        for namespace in ("[1", "[]", '["token", "bob"]'):
            await store.count(namespace, Traffic(1, 1))
    ended = await run("values", "list", "--namespace", "bob", "--store", str(tmp_path / "store"))
    assert ended.out.startswith('No values are stored for ["token", "bob"].')


@pytest.mark.parametrize("command", [["values", "list"], ["values", "clear", "--yes"], ["stats"], ["usage"]])
async def test_a_folder_of_other_files_is_not_made_a_store(command: list[str], tmp_path: Path, run: Run) -> None:
    (tmp_path / "letter.txt").write_text("mine")
    tmp_path.chmod(0o755)
    ended = await run(*command, "--store", str(tmp_path))
    assert (ended.code, ended.out) == (2, "")
    assert f"{tmp_path} has other files and no stored values. Name the folder of a store." in ended.err
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]
    assert tmp_path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize(
    "command", [["values", "list"], ["values", "show", "x"], ["stats"], ["usage"], ["dashboard", "--no-browser"]]
)
async def test_a_mistyped_store_folder_is_an_error_and_not_made(command: list[str], tmp_path: Path, run: Run) -> None:
    ended = await run(*command, "--store", str(tmp_path / "stroe"))
    assert (ended.code, ended.out) == (2, "")
    assert f"{tmp_path / 'stroe'} does not exist. Name the folder of a store" in ended.err
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize("command", [["stats"], ["memory"], ["wrap", "no-such-server"]])
async def test_an_empty_store_folder_is_not_the_current_one(command: list[str], run: Run) -> None:
    ended = await run(*command[:1], "--store", "", *command[1:])
    assert (ended.code, ended.out) == (2, "")
    assert "A store needs a folder" in ended.err


async def test_a_folder_that_cannot_be_read_is_reported(run: Run) -> None:
    folder = "/" + "x" * 300  # like a folder that this user may not enter: the system refuses it
    ended = await run("stats", "--store", folder)
    assert (ended.code, ended.err.startswith(f"mcp-mirror: {folder} cannot be read: ")) == (2, True)


async def test_a_folder_of_an_unknown_user_is_reported(run: Run) -> None:
    ended = await run("stats", "--store", "~nobody-of-this-name/store")
    assert (ended.code, ended.out) == (2, "")
    assert "~nobody-of-this-name/store does not exist. Name the folder of a store" in ended.err


async def test_values_of_a_memory_store_are_an_error_with_the_reason(configured: Configured, run: Run) -> None:
    ended = await run("values", "list", "--config", str(configured({}, store={"kind": "memory"})))
    assert (ended.code, ended.out) == (2, "")
    assert "keeps nothing outside the running gateway" in ended.err


@pytest.mark.skipif(sys.platform == "win32", reason="head")
async def test_output_that_is_read_in_part_is_not_an_error(stored: tuple[str, dict[str, str]]) -> None:
    config, paths = stored
    mirror = shlex.join([sys.executable, "-m", "mcp_mirror", "values", "show", paths["text"], "--config", config])
    shell = await asyncio.create_subprocess_shell(f"{mirror} | true", stdout=PIPE, stderr=PIPE)
    async with asyncio.timeout(60):
        out, err = await shell.communicate()
    assert (out, err) == (b"", b"")
