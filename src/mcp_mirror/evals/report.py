"""The table of an evaluation: successes, exact paths, and costs."""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import mean
from typing import Any, Final, Literal, NamedTuple

import msgspec
from rich import box
from rich.table import Table

from mcp_mirror.evals.log import VOID, Record
from mcp_mirror.evals.matrix import Matrix

Format = Literal["table", "markdown", "json"]
By = Literal["case", "setting", "both"]

_Z: Final = 1.959964
"""The quantile for a two-sided interval of 95 %."""
_CACHED_PRICE: Final = 0.1
"""The price of a cached input token, in that of an input token. These are the ratios of Anthropic's price list for
Claude Sonnet: 3, 0.30 and 15 USD per million tokens of input, cached input and output."""
_OUTPUT_PRICE: Final = 5.0
"""The price of an output token, in that of an input token."""
_SETTING: Final = ("model", "notice", "variant", "few_shot", "gateway")
_ALL: Final = "all"


class Row(msgspec.Struct, frozen=True):
    """Runs with the same labels."""

    labels: Mapping[str, Any]
    runs: int
    """Runs that are not void."""
    void: int
    """Runs in which an endpoint or a server failed."""
    success: int
    exact: tuple[int, int]
    """Runs with only exact paths, and runs that this was checked for."""
    received: tuple[int, int]
    means: Mapping[str, float]
    """Means per run: tokens (read and written, as the endpoint counts), billed (in the price of an input token),
    conversation (each message once, estimated), seconds, steps, calls, failed_calls."""
    requires: str = ""
    """What the model lacks, for a case that was skipped; empty: the case was run."""


def rows_of(records: Iterable[Record], by: By) -> list[Row]:
    """Group records: by setting and case, only by setting, or both."""
    groups: dict[tuple[Any, ...], list[Record]] = {}
    for record in records:
        setting = tuple(record[name] for name in _SETTING)
        cases = {"case": (record["case"],), "setting": (_ALL,), "both": (record["case"], _ALL)}[by]
        for case in cases:
            groups.setdefault((*setting, case), []).append(record)
    ordered = sorted(groups.items(), key=lambda group: group[0][-1] == _ALL)
    return [_row(dict(zip((*_SETTING, "case"), key, strict=True)), group) for key, group in ordered]


def skipped_rows(matrix: Matrix) -> list[Row]:
    """A row for each case that the matrix skips with a model."""
    means = dict.fromkeys(_MEANS, 0.0)
    unset = dict.fromkeys(_SETTING, "")
    return [
        Row({**unset, "model": model.name, "case": case.name}, 0, 0, 0, (0, 0), (0, 0), means, ", ".join(case.requires))
        for case, model in matrix.skipped()
    ]


def _row(labels: Mapping[str, Any], group: Sequence[Record]) -> Row:
    valid = [record for record in group if record["end"] != VOID]
    return Row(
        labels=labels,
        runs=len(valid),
        void=len(group) - len(valid),
        success=sum(record["success"] for record in valid),
        exact=_count(valid, "exact"),
        received=_count(valid, "received"),
        means={name: mean(map(read, valid)) if valid else 0.0 for name, read in _MEANS.items()},
    )


def _count(records: Iterable[Record], name: str) -> tuple[int, int]:
    values = [record[name] for record in records if record[name] is not None]
    return sum(values), len(values)


def billed(record: Record) -> float:
    """The cost of a run in the price of an input token."""
    cached = record["cached_tokens"]
    read = record["prompt_tokens"] - cached + _CACHED_PRICE * cached
    return float(read + _OUTPUT_PRICE * record["completion_tokens"])


_MEANS: Final[Mapping[str, Callable[[Record], float]]] = {
    "tokens": lambda record: float(record["prompt_tokens"] + record["completion_tokens"]),
    "billed": billed,
    "conversation": lambda record: float(record["estimated_tokens"].get("conversation", 0)),
    "seconds": lambda record: float(record["seconds"]),
    "steps": lambda record: float(record["steps"]),
    "calls": lambda record: float(record["calls"]),
    "failed_calls": lambda record: float(record["failed_calls"]),
}


def wilson(successes: int, runs: int) -> tuple[float, float]:
    """The confidence interval (95 %) of a rate: its lower and upper bound.

    E. B. Wilson, "Probable inference, the law of succession, and statistical inference", 1927.
    """
    if not runs:
        return 0.0, 1.0
    rate, z2 = successes / runs, _Z * _Z
    centre = (rate + z2 / (2 * runs)) / (1 + z2 / runs)
    half_width = _Z / (1 + z2 / runs) * math.sqrt(rate * (1 - rate) / runs + z2 / (4 * runs * runs))
    return max(0.0, centre - half_width), min(1.0, centre + half_width)


_FIGURES: Final[Sequence[tuple[str, Callable[[Row], str]]]] = (
    ("success", lambda row: _share(row.success, row.runs)),
    ("95 %", lambda row: "{:.0%} to {:.0%}".format(*wilson(row.success, row.runs))),
    ("copied exactly", lambda row: _share(*row.exact)),
    ("received", lambda row: _share(*row.received)),
    ("tokens", lambda row: f"{row.means['tokens']:,.0f}"),
    ("billed", lambda row: f"{row.means['billed']:,.0f}"),
    ("conversation", lambda row: f"{row.means['conversation']:,.0f}"),
    ("seconds", lambda row: f"{row.means['seconds']:.1f}"),
    ("steps", lambda row: f"{row.means['steps']:.1f}"),
    ("calls", lambda row: f"{row.means['calls']:.1f}"),
    ("failed", lambda row: f"{row.means['failed_calls']:.1f}"),
    ("void", lambda row: str(row.void or "")),
)


def _share(count: int, runs: int) -> str:
    return f"{count}/{runs}" if runs else "-"


class _Column(NamedTuple):
    name: str
    cells: list[str]
    is_number: bool = False


def _list_columns(rows: Sequence[Row]) -> list[_Column]:
    """The columns that are not empty. Those of settings are left out if all rows have the same value."""
    columns: list[_Column] = []
    for label in ("case", *_SETTING):
        cells = [{True: "yes", False: "no"}.get(row.labels[label], str(row.labels[label])) for row in rows]
        if label == "case" or len({*cells} - {""}) > 1:
            columns.append(_Column(label.replace("_", "-"), cells))
    for name, write in _FIGURES:
        # The row of a skipped case has only what the model lacks.
        skipped = "skipped, requires {}" if name == "success" else ""
        cells = [skipped.format(row.requires) if row.requires else write(row) for row in rows]
        columns.append(_Column(name, cells, is_number=True))
    return [column for column in columns if any(column.cells)]


def _list_lines(columns: Sequence[_Column]) -> Iterable[Sequence[str]]:
    return zip(*(column.cells for column in columns), strict=True)


def as_table(rows: Sequence[Row]) -> Table:
    """Write a table for a terminal."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    columns = _list_columns(rows)
    for column in columns:
        table.add_column(column.name, justify="right" if column.is_number else "left")
    for cells in _list_lines(columns):
        table.add_row(*cells)
    return table


def as_markdown(rows: Sequence[Row]) -> str:
    """Write a table in Markdown."""
    columns = _list_columns(rows)
    names = [column.name for column in columns]
    rules = ["---:" if column.is_number else "---" for column in columns]
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, rules, *_list_lines(columns)))


def as_json(rows: Sequence[Row]) -> str:
    """Write the rows as JSON, with counts instead of rates."""
    listed = [
        {
            **row.labels,
            "runs": row.runs,
            "void": row.void,
            **({"requires": row.requires} if row.requires else {}),
            "success": row.success,
            "success_interval": [round(bound, 4) for bound in wilson(row.success, row.runs)],
            "exact": list(row.exact),
            "received": list(row.received),
            **{name: round(value, 3) for name, value in row.means.items()},
        }
        for row in rows
    ]
    return json.dumps(listed, indent=1)
