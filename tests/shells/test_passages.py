"""Payloads on their way past the SDK, upstream and on our own faces: found again, and never left lying."""

import json
import logging
import sys
from pathlib import Path

import pytest

from mcp_mirror.errors import ToolError
from mcp_mirror.faces.postbox import Postbox
from mcp_mirror.spool import SpooledFrame
from mcp_mirror.telemetry import set_up_logging
from mcp_mirror.upstreams.bypass import Bypass
from mcp_mirror.wire import MARK, join

CALL = b'{"jsonrpc":"2.0","id":%b,"method":"tools/call","params":{"name":"x","arguments":{"a": 1e400}}}'


def request(token: str, identity: object) -> bytes:
    params = {"name": "x", "arguments": {}, "_meta": {MARK: token}}
    return json.dumps({"jsonrpc": "2.0", "id": identity, "method": "tools/call", "params": params}).encode()


@pytest.mark.parametrize("echoed", [b"7", b'"7"'])
def test_a_result_is_lifted_though_the_upstream_echoes_the_id_as_text(echoed: bytes) -> None:
    bypass = Bypass()
    token = bypass.open((b'{"a":1}',))
    assert b'"arguments":{"a":1}' in join(bypass.outbound(request(token, 7)))
    stub = bypass.inbound(b'{"jsonrpc":"2.0","id":%b,"result":{"content":[1e400],"vendor":1}}' % echoed)
    assert b"1e400" not in bytes(stub or b"")
    arrived = bypass.take(token)
    assert isinstance(arrived, dict)
    assert {key: bytes(raw) for key, raw in arrived.items()} == {
        "content": b"[1e400]",
        "vendor": b"1",
    }
    bypass.close(token)
    assert len(bypass) == 0
    assert not bypass.awaits(7)


def test_a_request_that_is_sent_twice_is_awaited_until_it_is_closed() -> None:
    bypass = Bypass()
    token = bypass.open((b"{}",))
    bypass.outbound(request(token, 1))
    bypass.outbound(request(token, 2))
    assert bypass.awaits(1)
    assert bypass.awaits("2")
    bypass.close(token)
    assert not bypass.awaits(1)
    assert not bypass.awaits(2)


def test_an_answer_that_nobody_waits_for_any_more_is_not_read(tmp_path: Path) -> None:
    bypass = Bypass()
    token = bypass.open((b"{}",))
    bypass.outbound(request(token, 3))
    bypass.close(token)
    late = b'{"jsonrpc":"2.0","id":3,"result":{"content":["%b"]}}' % (b"x" * 1000)
    assert json.loads(bytes(bypass.inbound(late) or b"")) == {"jsonrpc": "2.0", "id": 3, "result": {}}
    path = tmp_path / "frame"
    path.write_bytes(late)
    assert bypass.inbound(SpooledFrame(path, len(late), late, late)) is None
    assert not path.exists()


def test_a_large_message_that_answers_no_call_is_the_sdks_to_read(tmp_path: Path) -> None:
    frame = b'{"jsonrpc":"2.0","id":3,"result":{"instructions":"%b"}}' % (b"x" * 100_000)
    assert Bypass().inbound(frame) == frame
    path = tmp_path / "frame"
    path.write_bytes(frame)
    assert Bypass().inbound(SpooledFrame(path, len(frame), frame[:100], frame[-100:])) == frame
    assert not path.exists()


def letter(postbox: Postbox, identity: bytes = b"1") -> tuple[dict[str, str], str]:
    frame, token = postbox.inbound(CALL % identity)
    assert token is not None
    assert b"1e400" not in bytes(frame)
    return json.loads(bytes(frame))["params"]["_meta"], token


def test_arguments_and_result_go_by_one_letter() -> None:
    postbox = Postbox()
    meta, token = letter(postbox)
    assert bytes(postbox.arguments(meta, {})) == b'{"a": 1e400}'
    stub = postbox.stub({"content": []}, {"content": b"[1e400]"}, meta)
    sent = json.dumps({"jsonrpc": "2.0", "id": 1, "result": stub}).encode()
    assert len(postbox) == 1
    assert b'"content":[1e400]' in join(postbox.outbound(sent))
    assert len(postbox) == 0
    postbox.discard(token)


def test_a_discarded_letter_is_gone_and_its_arguments_are_not_taken_for_empty_ones() -> None:
    postbox = Postbox()
    meta, token = letter(postbox)
    postbox.discard(token)
    assert len(postbox) == 0
    with pytest.raises(ToolError, match="Call again"):
        postbox.arguments(meta, {})
    postbox.stub({"content": []}, {"content": b"[1]"}, meta)
    assert len(postbox) == 0


def test_what_did_not_come_as_a_letter_is_taken_as_it_was_parsed() -> None:
    assert Postbox().arguments(None, {"a": 1}) == b'{"a":1}'
    assert Postbox().arguments({}, None) == b"{}"


def test_letters_that_nobody_fetched_are_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("mcp_mirror.faces.postbox.time.monotonic", lambda: now)
    postbox = Postbox()
    waiting, _ = letter(postbox)
    working, _ = letter(postbox)
    postbox.arguments(working, {})
    now += 601
    letter(postbox)
    assert len(postbox) == 2
    with pytest.raises(ToolError):
        postbox.arguments(waiting, {})
    stub = postbox.stub({}, {"content": b"[5]"}, working)
    assert b"[5]" in join(postbox.outbound(json.dumps({"id": 1, "result": stub}).encode()))


def test_a_librarys_message_is_logged_without_its_words(capsys: pytest.CaptureFixture[str]) -> None:
    root, level = logging.getLogger(), logging.getLogger("mcp_mirror").level
    handlers, root_level = root.handlers[:], root.level
    try:
        set_up_logging(2)
        for message in ("secret", "", "two\nlines secret", 7):
            logging.getLogger("some.library").error(message)
        try:
            int("secret")
        except ValueError:
            logging.getLogger("some.library").exception("secret %s", "secret")
        logging.getLogger("some.library").warning("secret")
        logging.getLogger("mcp_mirror.x").debug("ours")
        said = capsys.readouterr().err
        assert "secret" not in said
        assert "Traceback" not in said
        assert len(said.splitlines()) == 6
        assert "on ValueError" in said
        assert said.splitlines()[-1].endswith("debug mcp_mirror.x: ours")
    finally:
        root.handlers[:] = handlers
        root.setLevel(root_level)
        logging.getLogger("mcp_mirror").setLevel(level)
    assert sys.stderr is not None
