"""Sizes, counts, times and names as texts for people and models."""

from datetime import UTC, datetime
from typing import Final

_UNITS: Final = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))
_UNIT_FROM: Final = 0.9995
"""Amounts from here on are written in this unit rather than the smaller one."""
_NO_FRACTION_FROM: Final = 99.95
"""Amounts from here on are written without a fraction."""


def format_bytes(size: int) -> str:
    """A size in a readable unit: `19.8 MB`."""
    for unit, scale in _UNITS:
        if (amount := size / scale) >= _UNIT_FROM:
            return f"{amount:.0f} {unit}" if amount >= _NO_FRACTION_FROM else f"{amount:.3g} {unit}"
    return f"{size} B"


def format_count(number: int, noun: str) -> str:
    """A number of things: `1 line`, `1,500 lines`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_time(seconds: float) -> str:
    """A time in seconds since the epoch as text: `2026-11-22 17:05:00 UTC`."""
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def shorten(text: str, most: int) -> str:
    """A text; of a longer one, this many of its characters and `...`."""
    return text if len(text) <= most else f"{text[:most]}..."


def quote_name(name: str, most: int) -> str:
    """A name in quotes, with at most this many of its characters."""
    return repr(shorten(name, most))
