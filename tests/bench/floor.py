"""The floor that a gateway's CPU time is held against: one process that reads a result from a pipe, scans it once,
writes it to a file, splices it into a call and writes that to a pipe. No protocol, no second look.

    python floor.py SECOND_STAGE_COMMAND...    < frames    prints CPU seconds a byte on standard error
"""

import os
import sys
import tempfile
import time

import msgspec


class Frame(msgspec.Struct):
    """A response, its result's members as the bytes that came."""

    result: dict[str, msgspec.Raw]


def main() -> None:
    """Relay every line of the input."""
    decoder = msgspec.json.Decoder(Frame)
    relayed = 0
    pieces: list[bytes] = []
    while data := os.read(0, 1 << 20):
        *ended, rest = data.split(b"\n")
        for end in ended:
            pieces.append(end)
            relayed += relay(decoder, b"".join(pieces))
            pieces = []
        pieces.append(rest)
    sys.stderr.write(f"{time.process_time()} {relayed}\n")


def relay(decoder: "msgspec.json.Decoder[Frame]", line: bytes) -> int:
    """One result in, one call out; gives the bytes moved."""
    members = decoder.decode(line).result
    payload = memoryview(members.get("structuredContent") or members["content"])
    with tempfile.TemporaryFile(buffering=0) as file:
        write_all(file.fileno(), payload)
    for segment in (b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"x":', payload, b"}}}\n"):
        write_all(1, memoryview(segment))
    return len(line) + len(payload)


def write_all(file: int, data: memoryview) -> None:
    """Write everything, in pieces of 256 KiB."""
    while data:
        data = data[os.write(file, data[: 1 << 18]) :]


if __name__ == "__main__":
    main()
