"""The command `mcp-mirror usage`: calls and tokens by principal, tool, upstream or day."""

import json
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import reduce
from typing import Annotated, Final, Literal, get_args

import msgspec
import typer
from rich.table import Table

from mcp_mirror.callers import OWN_NAME, name_namespaces
from mcp_mirror.cli.console import new_table, print_problems, print_table
from mcp_mirror.cli.options import ConfigOption, JsonOption, StoreOption, parse_age
from mcp_mirror.cli.store import load_store_config, read_store
from mcp_mirror.core.amounts import format_bytes
from mcp_mirror.errors import MirrorError
from mcp_mirror.security.sanitize import sanitize_to_lines
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.event_log import DAY, HOUR, KEPT_SECONDS, SumKey, Sums

Grouping = Literal["principal", "tool", "upstream", "day"]
_GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)


def group_sums(usage: Mapping[str, Mapping[SumKey, Sums]], by: Grouping) -> dict[str, Sums]:
    """Return the sums by name: days in their order, others with the most calls first."""
    names = name_namespaces(usage)
    found: dict[str, Sums] = {}
    for namespace, sums in usage.items():
        for (hour, upstream, tool), one in sums.items():
            date = f"{datetime.fromtimestamp(hour * HOUR, UTC):%Y-%m-%d}"
            group = {"principal": names[namespace], "tool": tool, "upstream": upstream or OWN_NAME, "day": date}[by]
            found[group] = found.get(group, Sums()).plus(one)
    if by == "day":
        return dict(sorted(found.items()))
    return dict(sorted(found.items(), key=lambda item: (-item[1].calls, item[0])))


_COLUMNS: Final = ("calls", "errors", "refused", "bytes", "tokens sent", "tokens kept out", "mean ms")


def usage(
    by: Annotated[
        Grouping, typer.Option(help=f"The rows: {', '.join(_GROUPINGS[:-1])} or {_GROUPINGS[-1]} (UTC).")
    ] = "principal",
    since: Annotated[
        str, typer.Option(metavar="AGE", help="Only calls of this time, such as 12h or 7d, up to 90d.")
    ] = "7d",
    namespace: Annotated[
        str, typer.Option("--namespace", help="Only the calls of this principal, or of this namespace of `stats`.")
    ] = "",
    as_: JsonOption = False,
    config: ConfigOption = None,
    store: StoreOption = None,
) -> None:
    """Print calls and tokens by principal, tool, upstream or day.

    The table also has errors, refusals and bytes. The numbers are those of the event log, in whole hours. A running
    gateway adds its calls every two seconds.

    Example: mcp-mirror usage --by principal --since 7d
    """
    age = parse_age(since, "--since")
    if age > KEPT_SECONDS:
        age, since = KEPT_SECONDS, f"{KEPT_SECONDS // DAY}d"
        print_problems(
            [f"The event log keeps calls for {since}, so the numbers are those of --since {since}."], "warning"
        )
    first = time.time() - age
    loaded = load_store_config(config, store)

    async def run(opened: Store) -> None:
        log = opened.events
        names = name_namespaces(sorted(await log.namespaces()))
        chosen = [one for one, name in names.items() if namespace in {"", one, name}]
        if namespace and not chosen:
            raise MirrorError(
                f"The event log has no calls of {namespace!r}. `mcp-mirror usage --since 90d` prints all principals."
            )
        found = group_sums({name: await log.sums(name, first) for name in chosen}, by)
        if as_:
            print(json.dumps([{by: name} | msgspec.structs.asdict(one) for name, one in found.items()], indent=2))
        elif found:
            print_table(_build_table(found, by))
        else:
            reason = "" if loaded.events.enabled else " The configuration does not log calls (`events.enabled`)."
            print(f"The event log has no calls of the last {since or '0s'}.{reason}")

    read_store(loaded, run)


def _build_table(found: dict[str, Sums], by: Grouping) -> Table:
    table = new_table((by,), _COLUMNS)
    for name, one in found.items():
        table.add_row(sanitize_to_lines(name), *_format_row(one))
    if len(found) > 1:
        table.add_row("total", *_format_row(reduce(Sums.plus, found.values())))
    return table


def _format_row(one: Sums) -> tuple[str, ...]:
    numbers = (f"{number:,}" for number in (one.calls, one.errors, one.refused))
    mean = round(one.milliseconds / max(one.calls, 1))
    return (*numbers, format_bytes(one.bytes), f"{one.sent:,}", f"{one.kept_out:,}", f"{mean:,}")
