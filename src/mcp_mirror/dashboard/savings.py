"""Savings: tokens that stayed out of the context, the money that they would have cost, and what they cost instead.

A provider charges a token again in every later step of a conversation, at the price of cached input. A call of a memory
tool is an extra step: it costs the tokens that it shows, and the whole context again. This module has no I/O.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from operator import add, attrgetter
from typing import Any, Final, TypeVar

import msgspec

from mcp_mirror.callers import OWN_NAME, OWN_UPSTREAM
from mcp_mirror.settings.policies import PricePolicy
from mcp_mirror.stores.event_log import DAY, HOURS_PER_DAY, SumKey, Sums

_PRICES: Final = (
    PricePolicy("claude-opus", 4.0, 0.2),
    PricePolicy("claude-sonnet", 2.0, 0.1),
    PricePolicy("claude-haiku", 0.1, 0.01),
    PricePolicy("gpt-6-sol", 2.0, 0.1),
    PricePolicy("gpt-6-luna", 0.1, 0.01),
    PricePolicy("gemini-3.1-pro", 2.0, 0.2),
    PricePolicy("gemini-3.8-flash", 0.75, 0.075),
    PricePolicy("gemini-2.5-pro", 1.25, 0.125),
    PricePolicy("gemini-2.5-flash", 0.3, 0.03),
)
"""List prices in USD per million tokens of input; `dashboard.prices` replaces them.

Those of Claude are of Opus 5.5, Sonnet 5.5 and Haiku 5.5, that of `gpt-6-sol` is of GPT-6.1 Sol. They apply to prompts
up to 100,000 (Haiku), 200,000 (Gemini Pro) and 272,000 tokens (GPT). Gemini 3.8 Flash costs twice as much from 2027 on.
"""
PRICES_READ: Final = "November 2026"
"""When the prices were compared with the lists of the providers."""
_DEFAULT_MODEL: Final = "claude-sonnet"

LATER_STEPS: Final = 5
"""Steps of a conversation after a result, in which the provider would read the result again."""
STEP_CONTEXT: Final = 20_000
"""Tokens of the context that an extra step costs again."""
MAX_ROWS: Final = 50
"""Rows of one table."""

_MILLION: Final = 1_000_000
_Counts = tuple[int, ...]
"""The members of `Sums`."""
_Group = dict[tuple[str, bool], _Counts]
"""By a name, and whether the tools are the gateway's own."""
_Key = TypeVar("_Key")
_read_counts: Final = attrgetter(*(one.name for one in msgspec.structs.fields(Sums)))


class Assumptions(msgspec.Struct, frozen=True):
    """Facts that the store does not know: the model's price and the length of conversations."""

    price: PricePolicy
    later_steps: int = LATER_STEPS
    step_context: int = STEP_CONTEXT

    @property
    def per_token(self) -> float:
        """USD for a token that enters the context: once as new input, and in each later step as cached input."""
        return (self.price.input + self.later_steps * self.price.cached) / _MILLION

    @property
    def per_step(self) -> float:
        """USD for the context that an extra step costs again."""
        return self.step_context * self.price.cached / _MILLION


def merge_prices(configured: Sequence[PricePolicy]) -> tuple[PricePolicy, ...]:
    """Return the configured prices and those of the page, each name once; configured ones first."""
    names = {one.name for one in configured}
    return (*configured, *(one for one in _PRICES if one.name not in names))


def find_price(prices: Sequence[PricePolicy], name: str) -> PricePolicy:
    """Return the price of a name, else the default one, else the first."""
    by_name = {one.name: one for one in prices}
    return by_name.get(name) or by_name.get(_DEFAULT_MODEL) or prices[0]


def build_savings(sums: Mapping[str, Mapping[SumKey, Sums]], assumed: Assumptions) -> dict[str, Any]:
    """Return totals and rows by day, upstream, tool and principal, as an object for JSON.

    It takes up to a second, so it must run in a thread: 90 days of a busy gateway have tens of thousands of sums.
    """
    # There are few days and sources, so the sums of hours are added only twice.
    of_days: dict[tuple[int, str], _Counts] = {}
    of_sources: dict[tuple[str, str, str], _Counts] = {}
    for principal, each in sums.items():
        for (hour, upstream, tool), one in each.items():
            counts = _read_counts(one)
            _add(of_days, (hour // HOURS_PER_DAY, upstream), counts)
            _add(of_sources, (principal, upstream, tool), counts)
    days, upstreams, tools, principals, total = (_Group({}) for _ in range(5))
    for (day, upstream), counts in of_days.items():
        _add(days, (f"{datetime.fromtimestamp(day * DAY, UTC):%Y-%m-%d}", upstream == OWN_UPSTREAM), counts)
    for (principal, upstream, tool), counts in of_sources.items():
        is_own = upstream == OWN_UPSTREAM
        _add(upstreams, (upstream or OWN_NAME, is_own), counts)
        _add(tools, (tool, is_own), counts)
        _add(principals, (principal, is_own), counts)
        _add(total, ("total", is_own), counts)
    return {
        "total": _build_row("total", total, assumed),
        "by_day": sorted(_build_rows(days, assumed), key=lambda row: row["name"]),
        "by_upstream": _rank_rows(upstreams, assumed),
        "by_tool": _rank_rows(tools, assumed),
        "by_principal": _rank_rows(principals, assumed),
    }


def _add(found: dict[_Key, _Counts], key: _Key, counts: _Counts) -> None:
    known = found.get(key)
    found[key] = counts if known is None else tuple(map(add, known, counts))


def _build_rows(group: _Group, assumed: Assumptions) -> list[dict[str, Any]]:
    return [_build_row(name, group, assumed) for name in dict.fromkeys(name for name, _ in group)]


def _build_row(name: str, group: _Group, assumed: Assumptions) -> dict[str, Any]:
    """Return the figures of a name; each call of the gateway's own tools is an extra step."""
    own, others = Sums(*group.get((name, True), ())), Sums(*group.get((name, False), ()))
    both = own.plus(others)
    avoided, shown = both.kept_out * assumed.per_token, own.sent * assumed.per_token
    step_cost = own.calls * assumed.per_step
    return {
        "name": name,
        **msgspec.structs.asdict(both),
        "steps": own.calls,
        "read_again": own.sent,
        "avoided": avoided,
        "shown": shown,
        "step_cost": step_cost,
        "net": avoided - shown - step_cost,
    }


def _rank_rows(group: _Group, assumed: Assumptions) -> list[dict[str, Any]]:
    """Return the rows that saved most, and one with the sums of the others."""
    rows = _build_rows(group, assumed)
    rows.sort(key=lambda row: (-row["kept_out"], -row["calls"], row["name"]))
    if len(rows) <= MAX_ROWS:
        return rows
    rest = rows[MAX_ROWS - 1 :]
    joined = {key: sum(row[key] for row in rest) for key in rest[0] if key != "name"}
    return [*rows[: MAX_ROWS - 1], {"name": "(others)", **joined}]
