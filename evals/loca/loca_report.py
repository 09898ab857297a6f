"""The tables of LOCA-bench: all runs by arm and size, and each task with its arms side by side."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean
from typing import Final

from rich import box
from rich.console import Console
from rich.table import Table

from loca_arms import ARMS
from loca_suite import SIZES
from mcp_mirror.evals.log import VOID, Record
from mcp_mirror.evals.report import billed

Lines = list[list[str]]
_FIGURES: Final[Mapping[str, Callable[[Record], float]]] = {
    "input": lambda record: record["prompt_tokens"],
    "cached": lambda record: record["cached_tokens"],
    "output": lambda record: record["completion_tokens"],
    "billed": billed,
    "steps": lambda record: record["steps"],
    "calls": lambda record: record["calls"],
    "seconds": lambda record: record["seconds"],
}


_LARGEST: Final = ("context_tokens", "definition_tokens")


def summarize(records: Iterable[Record]) -> Lines:
    """A line for each model, size and arm: successes, largest context, and means per run."""
    groups: dict[tuple[str, int, int], list[Record]] = {}
    arms = list(ARMS)
    for record in records:
        key = (record["model"], SIZES.index(record["size"]), arms.index(record["arm"]))
        groups.setdefault(key, []).append(record)
    header = ["model", "size", "arm", "success", "largest context", "definitions", *_FIGURES, "overflow", "void"]
    lines = [header]
    for (model, size, arm), group in sorted(groups.items()):
        valid = [record for record in group if record["end"] != VOID]
        passed = sum(record["success"] for record in valid)
        largest = [max((record[name] for record in valid), default=0) for name in _LARGEST]
        overflows = sum(record["end"] == "overflow" for record in valid)
        figures = [f"{mean(map(read, valid)):,.0f}" if valid else "-" for read in _FIGURES.values()]
        ends = [str(overflows), str(len(group) - len(valid))]
        lines.append(
            [model, SIZES[size], arms[arm], f"{passed}/{len(valid)}", *(f"{one:,}" for one in largest), *figures, *ends]
        )
    return lines


def compare_arms(records: Iterable[Record]) -> Lines:
    """A line for each task and size: the messages of the largest context, steps and billed cost in each arm.

    The messages do not include the definitions of the tools.
    """
    cells: dict[tuple[str, int], dict[str, Record]] = {}
    for record in records:
        cells.setdefault((record["task"], SIZES.index(record["size"])), {})[record["arm"]] = record
    arms = [arm for arm in ARMS if any(arm in group for group in cells.values())]
    lines = [["task", "size", *(f"{arm}: context / steps / billed" for arm in arms)]]
    for (task, size), group in sorted(cells.items()):
        lines.append([task, SIZES[size], *(_cell(group.get(arm)) for arm in arms)])
    return lines


def _cell(record: Record | None) -> str:
    if record is None:
        return "-"
    if record["end"] == VOID:
        return "void"
    messages = record["context_tokens"] - record["definition_tokens"]
    figures = f"{messages:,} / {record['steps']} / {billed(record):,.0f}"
    return figures if record["success"] else f"failed: {figures}"


def _as_table(lines: Lines, console: Console) -> None:
    table = Table(*lines[0], box=box.SIMPLE, pad_edge=False)
    for line in lines[1:]:
        table.add_row(*line)
    console.print(table)


def as_markdown(lines: Lines) -> str:
    """Write a table in Markdown."""
    rows = [lines[0], ["---"] * len(lines[0]), *lines[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _as_markdown(lines: Lines, console: Console) -> None:
    console.print(f"{as_markdown(lines)}\n", soft_wrap=True, highlight=False, markup=False)


def _as_json(lines: Lines, console: Console) -> None:
    console.print_json(json.dumps([dict(zip(lines[0], line, strict=True)) for line in lines[1:]]))


FORMATS: Final[Mapping[str, Callable[[Lines, Console], None]]] = {
    "table": _as_table,
    "markdown": _as_markdown,
    "json": _as_json,
}
_MARKED: Final = re.compile(r"(<!-- loca: [^\n]*-->\n).*?(<!-- end of loca -->)", re.DOTALL)


def write_report(records: Sequence[Record], form: str, console: Console) -> None:
    """Print both tables.

    Args:
        records: The runs.
        form: One of `FORMATS`.
        console: The place to print to.
    """
    for lines in (summarize(records), compare_arms(records)):
        FORMATS[form](lines, console)


def write_docs(records: Sequence[Record], page: Path, origin: str) -> None:
    """Write the first table between the markers of a page.

    Args:
        records: The runs.
        page: The page.
        origin: A line about the origin of the figures.
    """
    text = page.read_text(encoding="utf-8")
    table = f"{origin}\n\n{as_markdown(summarize(records))}\n"
    page.write_text(_MARKED.sub(lambda found: f"{found[1]}{table}{found[2]}", text), encoding="utf-8")


def write_tables(records: Sequence[Record], origin: str) -> str:
    """Both tables in Markdown, under a line about the origin of the figures."""
    tables = (as_markdown(lines) for lines in (summarize(records), compare_arms(records)))
    return "\n\n".join([origin, *tables]) + "\n"
