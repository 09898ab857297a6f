"""Splits segments into pieces of one size."""

from collections.abc import Iterator

from mcp_mirror.types import Buffer, Segments


def cut(blob: Segments, size: int) -> Iterator[Buffer]:
    """The bytes in pieces of `size`, the last one shorter. Only pieces across the edge of a segment are copied."""
    held: list[Buffer] = []
    room = size
    for segment in blob:
        view = memoryview(segment)
        while len(view) >= room:
            held.append(view[:room])
            yield held[0] if len(held) == 1 else b"".join(held)
            view, held, room = view[room:], [], size
        if view:
            held.append(view)
            room -= len(view)
    if held:
        yield held[0] if len(held) == 1 else b"".join(held)
