"""Reads texts whose order is not that of their letters: dates such as `9 Nov 2026`, versions, amounts."""

import re
from calendar import day_abbr, day_name, month_abbr, month_name
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from functools import reduce
from typing import Final

from mcp_mirror.errors import ToolError
from mcp_mirror.system.patterns import lazy_pattern

MAX_ORDERED: Final = 80
"""Characters of such a text."""
_NAMES: Final[Mapping[str, Iterable[str]]] = {
    "b": month_abbr[1:],
    "B": month_name[1:],
    "a": day_abbr,
    "A": day_name,
}
"""Names in dates by their directives of `strptime`. May is an abbreviation, as most names of months in data are."""
_MONTH: Final = lazy_pattern("|".join((r"\d\.\d\d?\.\d{4}", *month_abbr[1:])), re.IGNORECASE)
"""A sign of a date."""
_PART: Final = lazy_pattern(
    r"(?i:\b(?:"
    + "".join(f"(?P<{directive}>{'|'.join(names)})|" for directive, names in _NAMES.items())
    + r"(?P<p>[ap]m))\b)"
    r"|(?<!\d)(?:(?P<time>\d\d?:\d\d(?P<seconds>:\d\d)?)|(?P<dots>\d\d?\.\d\d?\.\d{4})|(?P<Y>\d{4})|(?P<d>\d\d?))(?!\d)"
    r"|(?<=[ \d])(?P<z>[+-]\d\d:?\d\d\b)",
    re.ASCII,
)
"""The parts of a date, with the directives of `strptime` as names of groups."""
_ZONED: Final = lazy_pattern(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d(?::?\d\d)?)", re.ASCII)
"""A time with its zone."""
_LITERAL: Final = lazy_pattern(r"(?:%[ABHIMSYabdmpz]|[A-Za-z ,./:()-])+")
_SPACES: Final = " '\u00a0\u202f"
"""Characters that group digits, whatever the decimal mark is."""
_AMOUNT: Final = (
    r"(?P<sign>[+\u2212-]?)(?P<before>[^\w.,(+\u2212-]*)(?P<inner>[+\u2212-]?)"
    r"(?P<number>(?:\d{{1,3}}(?:[{0}]\d{{3}})+|\d+)(?:{1}\d+)?)(?P<after>[^\d.,-]*)"
)
_AMOUNTS: Final = tuple(
    (lazy_pattern(_AMOUNT.format(group + _SPACES, f"[{mark}]"), re.ASCII), str.maketrans(mark, ".", group + _SPACES))
    for group, mark in ((",", "."), (".", ","))
)
"""Amounts with a decimal point and with a decimal comma, each with the translation to digits and a point."""
_PLAIN: Final = lazy_pattern(r"-?[\d.]+", re.ASCII)
"""A number without marks that a JSON number does not have."""
_MULTIPLES: Final[Mapping[str, float]] = {
    "": 1,
    "k": 1e3,
    **dict.fromkeys(("m", "mn", "million"), 1e6),
    **dict.fromkeys(("b", "bn", "billion"), 1e9),
    **dict.fromkeys(("t", "tn", "trillion"), 1e12),
}
"""What follows an amount of money such as `$1.2B`."""
_SLASHED: Final = "%d/%d/%Y"
"""What `_write_format` makes of the beginning of a date such as 12/31/2026; either number may be the month."""
_SIZE: Final = lazy_pattern(
    r"(?P<number>\d{1,3}(?:,\d{3})+|\d+(?:\.\d+)?) ?(?P<prefix>[kKMGTPE]?)(?P<binary>i?)(?P<unit>B?)", re.ASCII
)
"""A number of bytes, such as `1.2 GB`, `900K` or `512Mi`."""
_TIME_UNIT: Final = (
    "ms|msecs?|milliseconds?|[u\u00b5\u03bc]s|s|secs?|seconds?|m|mins?|minutes?|h|hrs?|hours?|d|days?|w|weeks?|months?"
    "|y|yrs?|years?"
)
DURATION: Final = rf"\d+(?:\.\d+)? ?(?:{_TIME_UNIT})(?: ?\d+(?:\.\d+)? ?(?:{_TIME_UNIT}))*"
"""A duration with units, such as `9 ms` or `1m30s`, in the syntax of RE2 and of Python."""
CLOCK: Final = r"(?:\d{1,3}:)?\d{1,3}:[0-5]\d(?:\.\d+)?"
"""A time of the day or a duration, such as `9:05` or `1:02:03.5`."""
LABELED: Final = r"[#~]?(?P<number>\d+(?:\.\d+)?)(?:\+|st|nd|rd|th| \([^()]*\)| of \d+)?"
"""A number with a sign, an ordinal, or a number with another one or a remark behind it: `12 (5m ago)`."""
_SECONDS: Final[Mapping[str, float]] = {
    "milli": 1e-3,
    "micro": 1e-6,
    "s": 1,
    "m": 60,
    "h": 3600,
    "d": 86400,
    "w": 604800,
    "month": 2_592_000,
    "y": 31_557_600,
}
_DURATION: Final = lazy_pattern(f"{DURATION}(?: ago)?", re.ASCII)
_DURATION_PART: Final = lazy_pattern(
    r"(?P<number>[\d.]+) ?(?:(?P<milli>ms|milli)|(?P<micro>[u\u00b5\u03bc])|(?P<month>month)|(?P<unit>[smhdwy]))",
    re.ASCII,
)
_LABELED: Final = lazy_pattern(LABELED, re.ASCII)
_CLOCK: Final = lazy_pattern(CLOCK, re.ASCII)
_VERSION: Final = lazy_pattern(
    r"(?P<numbers>v?\d+(?:\.\d+)*)(?:(?P<early>[-.]?(?:a|b|c|dev|m|pre|rc|snapshot)[\w.+-]*)|[-+.]?[a-z][\w.+-]*)?",
    re.ASCII | re.IGNORECASE,
)
"""A version, of which an early one such as `1.0-rc1` is before `1.0`."""


def find_date_format(text: str) -> str | None:
    """Return the format for `strptime` of a date with the name of its month, or with dots; None for any other text.

    The format of `Mon, 30 Nov 2026 10:00:00 +0100` is `%a, %d %b %Y %H:%M:%S %z`.
    """
    if len(text) > MAX_ORDERED or not _MONTH.search(text):
        return None
    form = _write_format(text)
    return form if _is_date_format(form) else None


def _write_format(text: str) -> str:
    """A text with directives of `strptime` in place of the parts of a date."""
    form = " ".join(_PART.sub(_write_directive, text).split())
    return form.replace("%H", "%I") if "%p" in form else form


def _write_directive(part: re.Match[str]) -> str:
    if part["time"]:
        return "%H:%M:%S" if part["seconds"] else "%H:%M"
    return "%d.%m.%Y" if part["dots"] else f"%{part.lastgroup}"


def _is_date_format(form: str) -> bool:
    """Whether a format is valid, and has a month and a day or a year, and no part twice."""
    directives = re.findall("%.", form)
    kinds = [directive.lower() if directive[1] in "AB" else directive for directive in directives]
    has_month = "%m" in kinds or ("%b" in kinds and ("%d" in kinds or "%Y" in kinds))
    return has_month and len(set(kinds)) == len(kinds) and _LITERAL.fullmatch(form) is not None


def read_order(texts: Sequence[object]) -> Sequence[float] | None:
    """Return the order of texts: times, durations, amounts in one unit such as `9.50 kg`, bytes, or ranks of versions.

    None for other values.

    Raises:
        ToolError: They are dates that have another order if the month is read as the day.
    """
    readers = (
        *(_read_dates, _read_slashed_dates, _read_amounts, _read_durations, _read_clocks),
        *(_read_sizes, _read_labeled, _rank_versions),
    )
    return next(filter(None, (read(texts) for read in readers)), None)


def _read_dates(texts: Sequence[object]) -> Sequence[float] | None:
    times: list[float] = []
    zones = set[object]()
    for text in texts:
        if not isinstance(text, str) or len(text) > MAX_ORDERED:
            return None
        is_iso = _ZONED.fullmatch(text) is not None
        try:
            date = datetime.fromisoformat(text) if is_iso else _read_date(text)
        except ValueError:  # such as 31 Feb 2026
            return None
        if date is None:
            return None
        zones.add(date.tzinfo if is_iso else None)
        times.append(_count_seconds(date))
    return None if len(zones) == 1 and None not in zones else times  # the order of one zone is that of the letters


def _read_date(text: str) -> datetime | None:
    form = find_date_format(text)
    if form is None:
        return None
    written = text.strip()
    if "%Y" not in form:
        written, form = f"2000 {written}", f"%Y {form}"  # a leap year
    return datetime.strptime(written, form)  # noqa: DTZ007  # the caller adds UTC


def _count_seconds(date: datetime) -> float:
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _read_slashed_dates(texts: Sequence[object]) -> Sequence[float] | None:
    both = (_read_with_format(texts, begin) for begin in ("%d/%m/%Y", "%m/%d/%Y"))
    orders = [order for order in both if order]
    if len({tuple(sorted(range(len(order)), key=order.__getitem__)) for order in orders}) > 1:
        raise ToolError(
            f"`expression` orders dates such as '{texts[0]}', which may begin with the day or the month. SQL converts "
            "them: strptime(KEY, '%d/%m/%Y') or strptime(KEY, '%m/%d/%Y')."
        )
    return next(iter(orders), None)


def _read_with_format(texts: Sequence[object], begin: str) -> Sequence[float] | None:
    """The times of dates such as 12/31/2026 10:00; None if one of them does not begin with a date of this format."""
    times: list[float] = []
    for text in texts:
        if not isinstance(text, str) or len(text) > MAX_ORDERED:
            return None
        form = _write_format(text).replace(_SLASHED, begin, 1)
        if not (form.startswith(begin) and _is_date_format(form)):
            return None
        try:
            date = datetime.strptime(text.strip(), form)  # noqa: DTZ007  # UTC is added
        except ValueError:
            return None
        times.append(_count_seconds(date))
    return times


def _match_all(pattern: re.Pattern[str], texts: Sequence[object]) -> Sequence[re.Match[str]]:
    """The matches of all texts; none if one of the values is another text, or no text."""
    found: list[re.Match[str]] = []
    for text in texts:
        match = pattern.fullmatch(text) if isinstance(text, str) and len(text) <= MAX_ORDERED else None
        if match is None:
            return ()
        found.append(match)
    return found


def _read_sizes(texts: Sequence[object]) -> Sequence[float] | None:
    sizes = _match_all(_SIZE, texts)
    prefixed = {size["unit"] for size in sizes if size["prefix"]}
    if not prefixed or any(size["binary"] and not size["prefix"] for size in sizes):
        return None
    if "" in prefixed and any(size["unit"] and not size["prefix"] for size in sizes):
        return None  # such as 850M and 1.2B: a B may be a billion
    return [
        float(size["number"].replace(",", ""))
        * (1024 if size["binary"] else 1000) ** " KMGTPE".index(size["prefix"].upper() or " ")
        for size in sizes
    ]


def _read_amounts(texts: Sequence[object]) -> Sequence[float] | None:
    for pattern, to_digits in _AMOUNTS:
        if amounts := _match_all(pattern, texts):
            return None if _match_all(_PLAIN, texts) else _count_amounts(amounts, to_digits)
    return None


def _count_amounts(amounts: Sequence[re.Match[str]], to_digits: Mapping[int, str | int | None]) -> list[float] | None:
    """The numbers of amounts; None if they have several units, or a sign on both sides of the unit."""
    if any(amount["sign"] and amount["inner"] for amount in amounts):
        return None
    numbers = [_read_sign(amount) * float(amount["number"].translate(to_digits)) for amount in amounts]
    units = {(amount["before"], amount["after"]) for amount in amounts}
    if len(units) == 1:
        return numbers
    after = [amount["after"].strip().lower() for amount in amounts]
    if len({before for before, _ in units} - {""}) != 1 or ("", "") in units or not {*after} <= _MULTIPLES.keys():
        return None
    return [number * _MULTIPLES[multiple] for number, multiple in zip(numbers, after, strict=True)]


def _read_sign(amount: re.Match[str]) -> int:
    return 1 if (amount["sign"] or amount["inner"]) in ("", "+") else -1


def _read_durations(texts: Sequence[object]) -> Sequence[float] | None:
    durations = _match_all(_DURATION, texts)
    return [sum(map(_count_part, _DURATION_PART.finditer(duration[0]))) for duration in durations] or None


def _count_part(part: re.Match[str]) -> float:
    """The seconds of a part of a duration, such as `1.5 min`."""
    return float(part["number"]) * _SECONDS[part["unit"] or str(part.lastgroup)]


def _read_clocks(texts: Sequence[object]) -> Sequence[float] | None:
    clocks = _match_all(_CLOCK, texts)
    return [reduce(lambda first, part: 60 * first + float(part), clock[0].split(":"), 0.0) for clock in clocks] or None


def _read_labeled(texts: Sequence[object]) -> Sequence[float] | None:
    found = _match_all(_LABELED, texts)
    has_label = any(label[0] != label["number"] for label in found)
    return [float(label["number"]) for label in found] if has_label else None


def _rank_versions(texts: Sequence[object]) -> Sequence[float] | None:
    written = _match_all(_VERSION, texts)
    if not any(version["numbers"].startswith("v") or version["numbers"].count(".") > 1 for version in written):
        return None
    versions = [
        (tuple(map(int, version["numbers"].removeprefix("v").split("."))), not version["early"]) for version in written
    ]
    ranks = {version: rank for rank, version in enumerate(sorted(set(versions)))}
    return [ranks[version] for version in versions]
