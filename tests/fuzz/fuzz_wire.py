"""A fuzz target for parsers of foreign bytes. Run it with `make fuzz`.

For every byte string: frames do not depend on how the stream is cut; a frame is a message or a `WireError`; a lifted
payload is spliced back unchanged; spans agree with a full parse.
"""

import json
import sys
from typing import Any

import atheris

with atheris.instrument_imports():
    from memory_collector import MemoryCollector

    from mcp_mirror.core.resolve import find_pointers
    from mcp_mirror.core.results.capture import CaptureRules
    from mcp_mirror.core.results.processing import ProcessedResult, ProcessingOptions, process_frame
    from mcp_mirror.errors import WireError
    from mcp_mirror.paths import FixedBases
    from mcp_mirror.payload.framing import EventReader, LineReader
    from mcp_mirror.payload.json_rpc import (
        Message,
        lift_params,
        line_of,
        object_of,
        open_message,
        recover_id,
        recover_method,
    )
    from mcp_mirror.payload.json_spans import Miss, locate, members, trim
    from mcp_mirror.types import Buffer
    from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.requests import PendingRequest

BOUND = 64
ORDER = ProcessingOptions(
    CaptureRules("auto", 10, 10, is_wrapped=True), "compact", "t", b"{}", FixedBases("t-1", "t-2"), 1000
)


def fuzz(data: bytes) -> None:
    """One input."""
    check_framing(data)
    check_message(data)
    check_spans(data)


def check_framing(data: bytes) -> None:
    """Fed whole, fed byte by byte."""
    readers: tuple[Any, ...] = (LineReader, EventReader)
    for reader in readers:
        by_chunks, bitwise = reader(MemoryCollector(BOUND)), reader(MemoryCollector(BOUND))
        messages: list[Any] = [message for at in range(len(data)) for message in bitwise.feed(data[at : at + 1])]
        assert by_chunks.feed(data) == messages


def check_message(data: bytes) -> None:
    """A message or a `WireError`, and lifting then splicing is the identity."""
    recover_id(data)
    recover_method(data)
    try:
        message = open_message(data)
    except WireError:
        return
    check_request(message)
    check_result(message)
    try:
        digest = process_frame(data, ORDER)
    except WireError:
        return
    assert not isinstance(digest, ProcessedResult) or len(digest.notice) < 4000 + len(data)


def check_request(message: Message) -> None:
    """What is lifted out of a request and put back in is what was there."""
    if (lifted := lift_params(message, "token")) is None:
        return
    stub = open_message(lifted.stub)
    assert isinstance(stub.params, dict)
    past = {key: bytes(raw) for key, raw in lifted.members.items() if key != "_meta"}
    sent = {key: bytes(raw) for key, raw in stub.params.items() if key != "_meta"} | past
    unsaid = {"arguments": b"{}"} if message.method == "tools/call" else {}
    assert sent == unsaid | past
    assert b"".join(line_of(object_of(past))).count(b"\n") == 1
    check_pointers(lifted.members.get("arguments", b"{}"))


def check_result(message: Message) -> None:
    """The caller of a request gets all members of its result, whatever they are."""
    if not isinstance(message.result, dict):
        return
    sent = {key: memoryview(raw) for key, raw in message.result.items()}
    bypass, request = PayloadBypass(), PendingRequest("tools/call", (b"{}",))
    bypass.begin(request)
    frame = b"".join(object_of({"result": object_of(sent), "id": b"%d" % request.id}))
    assert bypass.inbound(frame) is None
    assert isinstance(request.outcome, dict)
    assert {key: bytes(raw) for key, raw in request.outcome.items()} == {key: bytes(raw) for key, raw in sent.items()}


def check_pointers(arguments: Buffer) -> None:
    """Pointers are looked for wherever one may stand."""
    for pointer in find_pointers(arguments, frozenset({"tool"})):
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
