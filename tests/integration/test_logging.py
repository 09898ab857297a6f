"""The log filter and the log format."""

import errno
import io
import json
import logging
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from threading import Event

import pytest

from mcp_mirror.config import load_config
from mcp_mirror.observability.logging import SafeFormatter, configure_logging, log_members, print_status
from mcp_mirror.observability.standard_error import writing_in_background
from mcp_mirror.security.redaction import HIDDEN
from mcp_mirror.security.sanitize import PathHasher
from mcp_mirror.settings.policies import Config

BASE = "report-9c1d4f0e-6a55-4b8e-9d0a-0f3b2f6f6a11"
KEYS = {name: f"c4nary-{name}-{'x' * 32}" for name in ("state", "store", "audit", "redis", "env", "head", "query")}
CONFIG = """
upstreams:
  one: {command: x, env: {SECRET: "${env}"}}
  two: {url: "https://u:us3rpass@example.com/mcp?key=${query}", headers: {Authorization: "Bearer ${head}"}}
server: {state_keys: ["${state}"], log_format: FORMAT}
store: {kind: redis, url: "redis://u:${redis}@h/0", encryption: {keys: ["${store}"]}}
audit: {key: "${audit}"}
"""

Log = Callable[..., list[str]]


def config(tmp_path: Path, style: str) -> Config:
    path = tmp_path / "mirror.yaml"
    path.write_text(CONFIG.replace("FORMAT", style))
    return load_config(path, KEYS)


@pytest.fixture
def log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Iterator[Log]:
    """Log messages of the gateway and return the lines."""
    root, ours = logging.getLogger(), logging.getLogger("mcp_mirror")
    before = (root.handlers[:], root.level, ours.level)

    def write(*messages: str, style: str = "text") -> list[str]:
        configure_logging(2, config(tmp_path, style))
        for message in messages:
            logging.getLogger("mcp_mirror.x").warning("%s", message)
        return capsys.readouterr().err.splitlines()

    yield write
    root.handlers[:] = before[0]
    root.setLevel(before[1])
    ours.setLevel(before[2])


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize("name", KEYS)
def test_secrets_of_the_configuration_are_redacted(log: Log, name: str, style: str) -> None:
    (line,) = log(f"it said '{KEYS[name]}' and {json.dumps(KEYS[name])}", style=style)
    assert "c4nary" not in line
    assert line.count("***") == 2


@pytest.mark.parametrize(
    ("message", "redacted"),
    [
        ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer ***"),
        ("token mcpm_abc-def_123 is", "token *** is"),
        ("at http://me:pw@host.example/x?key=1", "at http://***@host.example/x?***"),
        ("redis://:pw@h/0", "redis://***@h/0"),
        ("a\nforged line\u202e\x1b[31m", "a\\u000aforged line\\u202e\\u001b[31m"),
        ("nothing to hide, /a/b?c", "nothing to hide, /a/b?c"),
    ],
)
def test_credentials_and_line_breaks_are_redacted(log: Log, message: str, redacted: str) -> None:
    (line,) = log(message)
    assert line.endswith(f"Z warning mcp_mirror.x: {redacted}")


def test_memory_paths_are_hashed_as_in_the_audit_log(log: Log) -> None:
    (line,) = log(f'under "{BASE}/secret key" there is')
    short = PathHasher(KEYS["audit"].encode()).hash_path(f"{BASE}/secret key")
    assert line.endswith(f": under (path {short}) there is")


def test_a_message_is_bounded() -> None:
    assert len(SafeFormatter(None).clean("x" * 100_000)) == 4000


def test_many_addresses_in_one_word_take_little_time() -> None:
    formatter, word = SafeFormatter(None), "http://" * 2_000

    def measure() -> float:
        began = time.process_time()
        assert formatter.clean(word) == word[:3_997] + "..."
        return time.process_time() - began

    assert min(measure() for _ in range(3)) < 0.02


def test_a_line_can_be_json(log: Log) -> None:
    (line,) = log('with "quotes"', style="json")
    record = json.loads(line)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", record.pop("time"))
    assert record == {"level": "warning", "logger": "mcp_mirror.x", "message": 'with "quotes"'}


def test_an_error_is_logged_by_kind_and_place(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    log()
    try:
        int("c4nary")
    except ValueError:
        logging.getLogger("mcp_mirror.x").exception("it failed")
    (line,) = capsys.readouterr().err.splitlines()
    assert "it failed (ValueError at integration/test_logging.py:" in line
    assert "c4nary" not in line


def test_a_shortage_that_a_library_reports_is_explained(log: Log, capsys: pytest.CaptureFixture[str]) -> None:
    log()
    for number in (errno.EMFILE, errno.ENOENT):
        logging.getLogger("asyncio").error("socket.accept() failed", exc_info=OSError(number, "c4nary"))
    shortage, other = capsys.readouterr().err.splitlines()
    assert shortage.endswith(
        ", on OSError: the gateway has no free file handle. Close sessions, or raise its limit (`ulimit -n`)"
    )
    assert other.endswith(", on FileNotFoundError")
    assert "c4nary" not in shortage + other


def test_other_handlers_get_redacted_messages_also_after_a_reload(log: Log) -> None:
    messages: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(self.format(record))

    handler = Handler()
    logging.getLogger("mcp_mirror").addHandler(handler)
    try:
        log(f"see {KEYS['env']}")
    finally:
        logging.getLogger("mcp_mirror").removeHandler(handler)
    assert messages == [f"see {HIDDEN}"]


def test_status_lines_have_the_log_format(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for style in ("text", "json"):
        print_status(config(tmp_path, style), "mcp-mirror: it is taken.")
    text, line = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]+Z info mcp_mirror: it is taken\.", text)
    assert json.loads(line)["message"] == "it is taken."


def test_members_of_a_record_are_members_of_json_and_words_of_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: Log
) -> None:
    log()
    members: dict[str, str | int] = {"tool": KEYS["env"], "upstream": "", "ms": 33}
    for style in ("text", "json"):
        configure_logging(1, config(tmp_path, style))
        log_members(logging.getLogger("mcp_mirror.x"), "call", members)
    text, line = capsys.readouterr().err.splitlines()
    assert text.endswith(f"info mcp_mirror.x: call tool={HIDDEN} upstream=- ms=33")
    expected = {"level": "info", "logger": "mcp_mirror.x", "message": "call", "tool": HIDDEN, "ms": 33}
    assert {name: member for name, member in json.loads(line).items() if name != "time"} == expected


def test_a_status_line_and_its_line_break_are_one_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[str] = []

    class Unbuffered(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    monkeypatch.setattr(sys, "stderr", Unbuffered())
    print_status(config(tmp_path, "text"), "mcp-mirror: it is taken.")
    [written] = writes
    assert written.endswith("Z info mcp_mirror: it is taken.\n")


def test_the_name_of_an_upstream_is_not_redacted_as_an_argument(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: Log
) -> None:
    given = {"upstreams": {"customers": {"command": "python", "args": ["server.py", "customers", "another-word"]}}}
    path = tmp_path / "named.yaml"
    path.write_text(json.dumps(given))
    log()
    configure_logging(2, load_config(path, {}))
    logging.getLogger("mcp_mirror.x").warning("call tool=list_customers upstream=customers another-word")
    assert capsys.readouterr().err.endswith(f"call tool=list_customers upstream=customers {HIDDEN}\n")


@pytest.mark.usefixtures("log")
def test_lines_that_find_no_reader_are_lost_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = os.pipe()
    with open(source, encoding="utf-8") as reader, open(sink, "w", encoding="utf-8") as writer:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", writer)
        configure_logging(0)
        with writing_in_background():
            for number in range(5_000):
                logging.getLogger("mcp_mirror.x").warning("%d %s", number, "x" * 300)
            lines = iter(reader.readline, "")
            shown = [int(line.split()[3]) for line in takewhile(lambda line: "has lost" not in line, lines)]
            logging.getLogger("mcp_mirror.x").warning("later")
            found = next(line for line in lines if "later" in line)
        writer.close()
        rest = reader.read()
    assert shown == list(range(len(shown)))
    assert 1_000 <= len(shown) < 2_000
    assert found.endswith("mcp_mirror.x: later\n")
    assert rest == ""


@pytest.mark.usefixtures("log")
def test_a_line_that_a_full_disk_truncated_ends_before_the_next_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    parts, is_full, system_write = iter((10, 5)), Event(), os.write

    def write_part(descriptor: int, data: bytes) -> int:
        if descriptor == file.fileno() and not is_full.is_set():
            if size := next(parts, 0):
                return system_write(descriptor, data[:size])
            is_full.set()
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return system_write(descriptor, data)

    monkeypatch.setattr(os, "write", write_part)
    with (tmp_path / "log").open("w+", encoding="utf-8") as file:
        monkeypatch.setattr(sys, "stderr", file)
        configure_logging(0)
        with writing_in_background():
            logging.getLogger("mcp_mirror.x").warning("first")
            assert is_full.wait(60)
            logging.getLogger("mcp_mirror.x").warning("later")
        first, lost, later = (tmp_path / "log").read_text().splitlines()
    assert len(first) == 15
    assert lost.endswith(": This log has lost 1 line: nothing read standard error, or its disk was full.")
    assert later.endswith("mcp_mirror.x: later")


def test_the_end_does_not_wait_for_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    source, sink = os.pipe()
    with open(source, encoding="utf-8"), open(sink, "w", encoding="utf-8") as writer:  # noqa: PTH123
        monkeypatch.setattr(sys, "stderr", writer)
        began = time.monotonic()
        with writing_in_background():
            sys.stderr.write("x" * 300_000)
        assert time.monotonic() - began < 10
