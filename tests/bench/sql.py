"""SQL over stored values, beside DuckDB on the same files."""

import csv
import io
import json
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
from measures import show
from rich.console import Console

from mcp_mirror import Mirror

_ORDERS: Final = 100_000
_USERS: Final = 50_000
_JOIN: Final = (
    "SELECT u.city, count(*) AS n, sum(o.cents) AS cents FROM {} o JOIN {} u ON u.id = o.user "
    "GROUP BY ALL ORDER BY city"
)


async def sql(console: Console, runs: int, large: bool) -> None:  # noqa: ARG001, FBT001  # a table of one signature
    """Each duration is a median; the gateway and DuckDB alternate."""
    rows: list[tuple[str, ...]] = []
    with tempfile.TemporaryDirectory() as folder:
        async with Mirror() as mirror:
            began = time.perf_counter()
            await mirror.sql("SELECT 1")
            first = time.perf_counter() - began
            for kind, texts in _write_tables().items():
                files = [Path(folder) / f"{name}.{kind}" for name in texts]
                for file, text in zip(files, texts.values(), strict=True):
                    file.write_text(text, encoding="utf-8")
                values = {n: json.loads(text) if kind == "json" else text for n, text in texts.items()}
                paths = {name: await mirror.put(value) for name, value in values.items()}
                ours, own = [], []
                for _ in range(2 * runs + 1):
                    began = time.perf_counter()
                    reply = await mirror.sql(_JOIN.format(*texts), paths)
                    ours.append(time.perf_counter() - began)
                    began = time.perf_counter()
                    found = _query_files(files)
                    own.append(time.perf_counter() - began)
                    if [tuple(row.values()) for row in reply.value] != found:
                        raise ValueError(f"{reply} differs from {found}")
                mine, theirs = statistics.median(ours[1:]), statistics.median(own[1:])
                size = sum(len(text) for text in texts.values()) / 1e6
                rows.append((f"{kind}, {size:.1f} MB", _show(mine), _show(theirs), f"{mine / theirs:.1f} x"))
    show(console, "Join of 100,000 and 50,000 rows", ("", "memory_query", "DuckDB", "ratio of the two"), rows)
    show(console, "Start", ("", ""), [("first query, with the start of a worker process", _show(first))])


def _show(seconds: float) -> str:
    return f"{1e3 * seconds:.0f} ms"


def _query_files(files: list[Path]) -> list[tuple[Any, ...]]:
    with duckdb.connect(":memory:") as database:
        return database.execute(_JOIN.format(*(f"'{file}'" for file in files))).fetchall()


def _write_tables() -> dict[str, dict[str, str]]:
    """The texts of both tables, by the kind of file and by name."""
    tables = {"orders": list(_make_orders()), "users": list(_make_users())}
    return {
        "json": {name: json.dumps(rows) for name, rows in tables.items()},
        "csv": {name: _write_csv(rows) for name, rows in tables.items()},
    }


def _make_orders() -> Iterator[dict[str, Any]]:
    for n in range(_ORDERS):
        at = f"2026-01-{n % 28 + 1:02}T10:00:00Z"
        yield {"id": n, "user": n * 7919 % _USERS, "cents": n * 31 % 9973, "status": "paid", "at": at, "rate": n / 7}


def _make_users() -> Iterator[dict[str, Any]]:
    for n in range(_USERS):
        yield {"id": n, "name": f"user {n}", "city": ("Bonn", "Oslo", "Rome")[n % 3]}


def _write_csv(rows: list[dict[str, Any]]) -> str:
    sink = io.StringIO()
    writer = csv.DictWriter(sink, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return sink.getvalue()
