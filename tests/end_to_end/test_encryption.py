"""Encryption at rest: files contain no clear values, and clients see no difference."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.end_to_end.conftest import Configured, OpenLines, Run

CANARY = "canary-7d2e"
KEY = "an example of a secret of 32 characters"


def everything_in(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
@pytest.mark.parametrize("words", [20, 20_000, 2_000_000])
async def test_a_value_is_used_as_ever_and_nothing_of_it_is_in_the_folder(
    words: int, configured: Configured, open_lines: OpenLines, raw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The largest comes in a file, is sealed, searched and passed on."""
    monkeypatch.setenv("TMPDIR", str(tmp_path / "elsewhere"))
    (tmp_path / "elsewhere").mkdir()
    config = configured({"lab": raw()}, store={"encryption": {"keys": ["${STORE_KEY}"]}})
    monkeypatch.setenv("STORE_KEY", KEY)
    value = {CANARY: f"{CANARY} " * words, "rows": ["the last one"]}
    arguments = json.dumps({"result": json.dumps({"content": [], "structuredContent": value})})
    async with open_lines(config) as client:
        await client.greet()
        notice = json.loads(await client.call("say_mirrored", arguments))["result"]["content"][0]["text"]
        (base,) = set(re.findall(r"say-[0-9a-f-]{36}", notice))
        assert CANARY.encode() not in everything_in(tmp_path / "store")
        received = await client.text("hear_mirrored", {"value": f"{base}/rows"})
        assert '["the last one"]' in received
        assert "the last one" in await client.text("memory_grep", {"memory_path": base, "pattern": "^the last"})
        found = await client.text("memory_read", {"memory_path": f"{base}/{CANARY}", "offset": -12})
        assert CANARY in found
        passed = await client.text("hear_mirrored", {"value": f"{base}/{CANARY}"})
        (other,) = set(re.findall(r"hear-[0-9a-f-]{36}", passed))
        answer = await client.text("memory_grep", {"memory_path": other, "pattern": "canary-7d2e $", "limit": 1})
        assert CANARY in answer
    assert CANARY.encode() not in everything_in(tmp_path / "store")
    async with open_lines(config) as client:
        await client.greet()
        assert "the last one" in await client.text("memory_read", {"memory_path": f"{base}/rows"})


@pytest.mark.parametrize("kind", [{"kind": "disk"}, {}], ids=["disk", "default"])
async def test_a_missing_key_is_reported_at_startup(
    kind: dict[str, str], configured: Configured, open_lines: OpenLines, run: Run, raw: Any, tmp_path: Path
) -> None:
    sealed = {"encryption": {"keys": [KEY]}}
    async with open_lines(configured({"lab": raw()}, store={**kind, **sealed})) as client:
        await client.greet()
        await client.text("memory_put", {"value": "kept"})
    for store in ({}, {"encryption": {"keys": [KEY[::-1]]}}):
        ended = await run("check", "--config", str(configured({"lab": raw()}, store={**kind, **store})))
        assert ended.code == 2
        assert "store has 1 value of keys that are not in" in ended.err
        assert "`store.encryption.keys`" in ended.err
    assert KEY.encode() not in everything_in(tmp_path / "store")
