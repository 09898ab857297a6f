"""The command `mcp-mirror usage`: calls and tokens by principal, tool, upstream or day."""

import json
import time
from dataclasses import asdict
from typing import Annotated, Final

import typer
from rich import box
from rich.table import Table

from mcp_mirror.cli.ages import parse_age
from mcp_mirror.cli.console import open_console
from mcp_mirror.cli.options import ConfigOption, JsonOption, StoreOption
from mcp_mirror.cli.run import load_store_config, run_until_signal
from mcp_mirror.core.preview import format_bytes
from mcp_mirror.observability.usage import GROUPINGS, Grouping, group_sums, read_usage, sum_up
from mcp_mirror.security.sanitize import sanitize_to_lines
from mcp_mirror.stores.event_log import Sums
from mcp_mirror.stores.opening import open_persistent_store

_COLUMNS: Final = ("calls", "errors", "refused", "bytes", "tokens sent", "tokens kept out", "mean ms")


def usage(
    by: Annotated[
        Grouping, typer.Option(help=f"The rows: {', '.join(GROUPINGS[:-1])} or {GROUPINGS[-1]} (UTC).")
    ] = "principal",
    since: Annotated[
        str, typer.Option(metavar="AGE", help="Only calls of this time, such as 12h or 7d, up to 90d.")
    ] = "7d",
    as_: JsonOption = False,
    config: ConfigOption = None,
    store: StoreOption = None,
) -> None:
    """Print calls, errors, refusals, bytes and tokens by principal, tool, upstream or day, from the event log.

    A running gateway adds its calls every two seconds. Whole hours are counted.

    Example: mcp-mirror usage --by principal --since 7d
    """
    first = time.time() - parse_age(since, "--since")
    loaded = load_store_config(config, store)

    async def run() -> None:
        async with open_persistent_store(loaded) as opened:
            found = group_sums(await read_usage(opened.events, first), by)
        if as_:
            print(json.dumps([{by: name} | asdict(one) for name, one in found.items()], indent=2))
        elif found:
            open_console().print(_build_table(found, by), markup=False, highlight=False)
        else:
            reason = "" if loaded.events.enabled else " The configuration does not log calls (`events.enabled`)."
            print(f"The event log has no calls of the last {since or '0s'}.{reason}")

    run_until_signal(run())


def _build_table(found: dict[str, Sums], by: Grouping) -> Table:
    table = Table(box=box.SIMPLE)
    table.add_column(by, overflow="fold")
    for name in _COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for name, one in found.items():
        table.add_row(sanitize_to_lines(name), *_format_row(one))
    if len(found) > 1:
        table.add_section()
        table.add_row("total", *_format_row(sum_up(found)))
    return table


def _format_row(one: Sums) -> tuple[str, ...]:
    numbers = (f"{number:,}" for number in (one.calls, one.errors, one.refused))
    mean = round(one.milliseconds / max(one.calls, 1))
    return (*numbers, format_bytes(one.bytes), f"{one.sent:,}", f"{one.kept_out:,}", f"{mean:,}")
