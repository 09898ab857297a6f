"""A reader of bar charts: tesseract reads the number, and the pixels have the colour. It is not a model."""

import base64
import colorsys
import io
import shutil
import subprocess
from typing import Any

import pytest
from PIL import Image

NEEDS_TESSERACT = pytest.mark.skipif(shutil.which("tesseract") is None, reason="tesseract is not installed")
HUES = {"red": 0, "orange": 35, "green": 130, "blue": 230}


def read_chart(messages: list[dict[str, Any]]) -> str:
    """Answer with the number and the colour in the last image of the messages."""
    contents = [message["content"] for message in messages if isinstance(message["content"], list)]
    urls = [part["image_url"]["url"] for content in contents for part in content if part["type"] == "image_url"]
    if not urls:
        return "I see no picture."
    kind, _, data = urls[-1].partition(";base64,")
    assert kind == "data:image/png"
    png = base64.b64decode(data, validate=True)
    return f"The number is {read_number(png)}, and the bar is {read_colour(png)}."


def read_number(png: bytes) -> str:
    command = ["tesseract", "-", "-", "--psm", "11", "-c", "tessedit_char_whitelist=0123456789"]
    return subprocess.run(command, input=png, capture_output=True, check=True, timeout=60).stdout.decode().strip()


def read_colour(png: bytes) -> str:
    """The name of the topmost colour that is neither black nor white."""
    image = Image.open(io.BytesIO(png)).convert("RGB")
    pixels = (image.getpixel((x, y)) for y in range(image.height) for x in range(image.width))
    for pixel in pixels:
        assert isinstance(pixel, tuple)
        hue, saturation, _ = colorsys.rgb_to_hsv(*(part / 255 for part in pixel))
        if saturation > 0.5:
            return min(HUES, key=lambda name: abs(HUES[name] - 360 * hue))
    return "white"
