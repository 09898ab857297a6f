"""A chart server: its pictures are PNG files, and only the pictures have the numbers and colours."""

import base64
import random
import struct
import zlib
from typing import Final

import mcp_types as types

from witness import Tool, serve

Colour = tuple[int, int, int]

WIDTH: Final = 640
HEIGHT: Final = 480
WHITE: Final[Colour] = (255, 255, 255)
BLACK: Final[Colour] = (0, 0, 0)
COLOURS: Final[dict[str, Colour]] = {
    "red": (210, 30, 30),
    "green": (30, 150, 50),
    "blue": (30, 60, 200),
    "orange": (240, 140, 20),
}
DIGITS: Final = (
    "01110 10001 10011 10101 11001 10001 01110", "00100 01100 00100 00100 00100 00100 01110",
    "01110 10001 00001 00110 01000 10000 11111", "01110 10001 00001 00110 00001 10001 01110",
    "00010 00110 01010 10010 11111 00010 00010", "11111 10000 11110 00001 00001 10001 01110",
    "00110 01000 10000 11110 10001 10001 01110", "11111 00001 00010 00100 01000 01000 01000",
    "01110 10001 10001 01110 10001 10001 01110", "01110 10001 10001 01111 00001 00010 01100",
)  # fmt: skip
"""Seven rows of five dots for each digit."""
DOT: Final = 6
"""Pixels of a dot."""
BAR: Final = 90
BASELINE: Final = 440


class Picture:
    """A picture of RGB pixels."""

    def __init__(self) -> None:
        self.rows = [bytearray(bytes(WHITE) * WIDTH) for _ in range(HEIGHT)]

    def fill(self, left: int, top: int, width: int, height: int, colour: Colour) -> None:
        for row in self.rows[top : top + height]:
            row[3 * left : 3 * (left + width)] = bytes(colour) * width

    def write(self, number: int, left: int, top: int) -> None:
        for index, digit in enumerate(str(number)):
            for y, dots in enumerate(DIGITS[int(digit)].split()):
                for x, dot in enumerate(dots):
                    if dot == "1":
                        self.fill(left + DOT * (6 * index + x), top + DOT * y, DOT, DOT, BLACK)

    def png(self) -> bytes:
        pixels = zlib.compress(b"".join(b"\0" + row for row in self.rows))
        header = struct.pack(">IIBBBBB", WIDTH, HEIGHT, 8, 2, 0, 0, 0)
        parts = ((b"IHDR", header), (b"IDAT", pixels), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(map(_chunk, *zip(*parts, strict=True)))


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def draw_chart(station: str) -> types.CallToolResult:
    """Four bars of different colours. The number above the tallest bar is only in the picture."""
    dice = random.Random(station)
    colours = dice.sample(sorted(COLOURS), len(COLOURS))
    heights = [300, *(dice.randint(80, 220) for _ in colours[1:])]
    dice.shuffle(heights)
    picture = Picture()
    for index, (colour, height) in enumerate(zip(colours, heights, strict=True)):
        left = 60 + index * (BAR + 45)
        picture.fill(left, BASELINE - height, BAR, height, COLOURS[colour])
        if height == max(heights):
            picture.write(dice.randint(100, 999), left - 5, BASELINE - height - 70)
    data = base64.b64encode(picture.png()).decode()
    return types.CallToolResult(
        content=[
            types.TextContent(type="text", text=f"Chart of {station}: rain by quarter, in millimetres."),
            types.ImageContent(type="image", data=data, mime_type="image/png"),
        ]
    )


TOOLS: Final = (
    Tool("draw_chart", "Draw the rain of a station as a bar chart.", {"station": {"type": "string"}}, draw_chart),
)


if __name__ == "__main__":
    serve("charts", TOOLS)
