"""Reads texts whose order is not that of their letters: dates such as `9 Nov 2026`, versions, amounts."""

import re
from calendar import day_abbr, day_name, month_abbr, month_name
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

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
_AMOUNT: Final = lazy_pattern(
    r"(?P<before>[^\w.,(\u2212-]*)(?P<number>[\u2212-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?)(?P<after>[^\d.,-]*)",
    re.ASCII,
)
_VERSION: Final = lazy_pattern(r"v\d+(?:\.\d+)*|\d+(?:\.\d+){2,}", re.ASCII)


def find_date_format(text: str) -> str | None:
    """Return the format for `strptime` of a date with the name of its month, or with dots; None for any other text.

    The format of `Mon, 30 Nov 2026 10:00:00 +0100` is `%a, %d %b %Y %H:%M:%S %z`.
    """
    if len(text) > MAX_ORDERED or not _MONTH.search(text):
        return None
    form = " ".join(_PART.sub(_write_directive, text).split())
    if "%p" in form:
        form = form.replace("%H", "%I")
    return form if _LITERAL.fullmatch(form) and _is_date(re.findall("%.", form)) else None


def _write_directive(part: re.Match[str]) -> str:
    if part["time"]:
        return "%H:%M:%S" if part["seconds"] else "%H:%M"
    return "%d.%m.%Y" if part["dots"] else f"%{part.lastgroup}"


def _is_date(directives: Sequence[str]) -> bool:
    """Whether a format has a month and a day or a year, and no part twice."""
    kinds = [directive.lower() if directive[1] in "AB" else directive for directive in directives]
    has_month = "%m" in kinds or ("%b" in kinds and ("%d" in kinds or "%Y" in kinds))
    return has_month and len(set(kinds)) == len(kinds)


def read_order(texts: Sequence[object]) -> Sequence[float] | None:
    """Return the order of texts: times in seconds, amounts in one unit such as `9.50 kg`, or the ranks of versions.

    None for other values.
    """
    return _read_dates(texts) or _read_amounts(texts) or _rank_versions(texts)


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
        times.append((date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp())
    return None if len(zones) == 1 and None not in zones else times  # the order of one zone is that of the letters


def _read_date(text: str) -> datetime | None:
    form = find_date_format(text)
    return datetime.strptime(text.strip(), form) if form else None  # noqa: DTZ007  # the caller adds UTC


def _read_amounts(texts: Sequence[object]) -> Sequence[float] | None:
    numbers: list[float] = []
    units = set[tuple[str, str]]()
    for text in texts:
        amount = _AMOUNT.fullmatch(text) if isinstance(text, str) and len(text) <= MAX_ORDERED else None
        if amount is None:
            return None
        units.add((amount["before"], amount["after"]))
        numbers.append(float(amount["number"].replace(",", "").replace("\u2212", "-")))
    are_plain = units == {("", "")} and not any("," in str(text) for text in texts)
    return None if are_plain or len(units) > 1 else numbers


def _rank_versions(texts: Sequence[object]) -> Sequence[float] | None:
    versions: list[tuple[int, ...]] = []
    for text in texts:
        if not isinstance(text, str) or len(text) > MAX_ORDERED or not _VERSION.fullmatch(text):
            return None
        versions.append(tuple(map(int, text.removeprefix("v").split("."))))
    ranks = {version: rank for rank, version in enumerate(sorted(set(versions)))}
    return [ranks[version] for version in versions]
