"""Sums over the calls in the event log, by principal, tool, upstream or day."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Final, Literal, get_args

from mcp_mirror.callers import name_principal
from mcp_mirror.stores.event_log import HOUR, EventLog, SumKey, Sums

Grouping = Literal["principal", "tool", "upstream", "day"]
GROUPINGS: Final[tuple[Grouping, ...]] = get_args(Grouping)
OWN: Final = "mcp-mirror"
"""The name of the gateway as the upstream of its own tools."""


async def read_usage(log: EventLog, since: float) -> dict[str, Mapping[SumKey, Sums]]:
    """Return the sums of each namespace from a time on.

    Args:
        log: The event log.
        since: Seconds since the epoch; the whole hour that contains it counts.

    Raises:
        StoreError: The store failed.
    """
    return {namespace: await log.sums(namespace, since) for namespace in sorted(await log.namespaces())}


def group_sums(usage: Mapping[str, Mapping[SumKey, Sums]], by: Grouping) -> dict[str, Sums]:
    """Return the sums by name: days in their order, others with the most calls first.

    Args:
        usage: The sums of each namespace.
        by: The grouping.
    """
    names = name_namespaces(usage)
    found: dict[str, Sums] = {}
    for namespace, sums in usage.items():
        for (hour, upstream, tool), one in sums.items():
            date = f"{datetime.fromtimestamp(hour * HOUR, UTC):%Y-%m-%d}"
            group = {"principal": names[namespace], "tool": tool, "upstream": upstream or OWN, "day": date}[by]
            found[group] = found.get(group, Sums()).plus(one)
    if by == "day":
        return dict(sorted(found.items()))
    return dict(sorted(found.items(), key=lambda item: (-item[1].calls, item[0])))


def name_namespaces(namespaces: Mapping[str, object]) -> dict[str, str]:
    """Return the name of each namespace: that of its principal, or the whole namespace if several have that name."""
    names = [name_principal(namespace) for namespace in namespaces]
    return {
        namespace: name if names.count(name) == 1 else namespace
        for namespace, name in zip(namespaces, names, strict=True)
    }


def sum_up(sums: Mapping[str, Sums]) -> Sums:
    """Return the sums over all groups."""
    total = Sums()
    for one in sums.values():
        total = total.plus(one)
    return total
