"""A fuzz target for what reads strangers' bytes: `make fuzz`, or `python tests/fuzz/fuzz_wire.py -max_total_time=60`.

For every byte string: frames come out the same however the stream is cut; a frame is a message or a `WireError`;
what is lifted out and spliced back in is what was there; spans agree with a full parse.
"""

import json
import sys
from typing import Any

import atheris

with atheris.instrument_imports():
    from mcp_mirror.capture import CaptureRules
    from mcp_mirror.digest import Digest, Order, digest_frame
    from mcp_mirror.errors import WireError
    from mcp_mirror.frames import EventReader, LineReader, MemoryCollector
    from mcp_mirror.models import Buffer
    from mcp_mirror.resolve import find_pointers
    from mcp_mirror.spans import Miss, locate, members, trim
    from mcp_mirror.tokens import estimate_tokens
    from mcp_mirror.wire import find_mark, join, lift_arguments, line_of, open_message, recover_id, splice

BOUND = 64
ORDER = Order(CaptureRules("auto", 10, 10, wrapped=True), "compact", "t", b"{}", "t-1", "t-2", 1000)


def fuzz(data: bytes) -> None:
    """One input."""
    check_framing(data)
    check_message(data)
    check_spans(data)


def check_framing(data: bytes) -> None:
    """Fed whole, fed byte by byte."""
    readers: tuple[Any, ...] = (LineReader, EventReader)
    for reader in readers:
        whole, bitwise = reader(MemoryCollector(BOUND)), reader(MemoryCollector(BOUND))
        messages: list[Any] = [message for at in range(len(data)) for message in bitwise.feed(data[at : at + 1])]
        assert whole.feed(data) == messages


def check_message(data: bytes) -> None:
    """A message or a `WireError`, and lifting then splicing is the identity."""
    recover_id(data)
    try:
        message = open_message(data)
    except WireError:
        return
    if (lifted := lift_arguments(message, "token")) is not None:
        marked = find_mark(lifted.stub)
        assert marked is not None
        assert marked.token == "token"
        spliced = join(splice(marked, {"arguments": (lifted.members["arguments"],)}))
        again = open_message(spliced)
        assert isinstance(again.params, dict)
        assert isinstance(message.params, dict)
        assert bytes(again.params["arguments"]) == bytes(message.params.get("arguments", b"{}"))
        assert b"".join(line_of((spliced,))).count(b"\n") == 1
        check_pointers(lifted.members["arguments"])
    try:
        digest = digest_frame(data, ORDER, estimate_tokens)
    except WireError:
        return
    assert not isinstance(digest, Digest) or len(digest.notice) < 4000 + len(data)


def check_pointers(arguments: Buffer) -> None:
    """Pointers are looked for wherever one may stand."""
    for pointer in find_pointers(arguments, {"tool"}):
        assert bytes(arguments[pointer.span.start : pointer.span.start + 1]) == b'"'


def check_spans(data: bytes) -> None:
    """The same keys and values as a full parse."""
    try:
        value = json.loads(data)
        open_message(b'{"result":{"x":' + data + b"}}")
    except (ValueError, RecursionError, WireError):
        return
    if isinstance(value, dict):
        assert {member.key for member in members(data, trim(data))} == value.keys()
        for key, inner in value.items():
            span = locate(data, (key,))
            assert not isinstance(span, Miss)
            assert repr(json.loads(data[span.start : span.stop])) == repr(inner)
    elif isinstance(value, list):
        for index, inner in enumerate(value[:20]):
            span = locate(data, (str(index),))
            assert not isinstance(span, Miss)
            assert repr(json.loads(data[span.start : span.stop])) == repr(inner)
        assert locate(data, (str(len(value)),)) == Miss(0, "array", length=len(value))


if __name__ == "__main__":
    atheris.Setup(sys.argv, fuzz)
    atheris.Fuzz()
