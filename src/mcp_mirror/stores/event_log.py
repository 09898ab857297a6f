"""The interface of event logs: the newest calls of each namespace, and sums by hour, upstream and tool.

An entry is a record in bytes; this module does not know its content.
"""

from collections.abc import Mapping, Sequence
from operator import add
from typing import Final, Protocol

import msgspec

KEPT_SECONDS: Final = 90 * 86_400
"""Seconds for which entries and sums are kept."""
HOUR: Final = 3600
HOURS_PER_DAY: Final = 24
DAY: Final = HOUR * HOURS_PER_DAY
_FULL_SHARES: Final = 10
"""Namespaces that keep as many entries as the configuration permits for one."""


class Sums(msgspec.Struct, frozen=True):
    """Sums over calls."""

    calls: int = 0
    errors: int = 0
    """Calls with an error as their result, and cancelled ones."""
    refused: int = 0
    """Calls that the gateway refused."""
    bytes: int = 0
    """Bytes of the replies."""
    sent: int = 0
    """Tokens of the replies."""
    kept_out: int = 0
    """Tokens that the results would have cost in addition if they had not been stored."""
    milliseconds: int = 0
    """The duration of all calls together."""

    def plus(self, other: "Sums") -> "Sums":
        """The sums over both."""
        return Sums(*map(add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))


SumKey = tuple[int, str, str]
"""The hour (seconds since the epoch // 3600), the upstream and the tool."""


class EventLog(Protocol):
    """Entries and sums by namespace. A namespace sees only its own.

    Entries and sums are kept for 90 days, and of the entries of a namespace only the newest; see `fair_share`.
    """

    async def append(self, namespace: str, entries: Sequence[bytes], sums: Mapping[SumKey, Sums], *, keep: int) -> None:
        """Append entries, the oldest first, and add to the sums. They need not be on the disk on return.

        Of all entries of one namespace the newest `keep` are kept.

        Raises:
            StoreError: Nothing was appended, or the store's confirmation was lost.
        """

    async def read(
        self, namespace: str, *, before: str | None = None, after: str | None = None, limit: int
    ) -> tuple[tuple[str, bytes], ...]:
        """The newest entries with their cursors, newest first.

        A cursor is a text. Of two cursors of a namespace, the one of the later entry sorts after the other. With
        `before` and `after`, only entries between these cursors, whose entries may have been removed.

        Raises:
            StoreError: The entries cannot be read.
            ValueError: A cursor is not one of this log.
        """

    async def sums(self, namespace: str, since: float) -> Mapping[SumKey, Sums]:
        """The sums of a namespace from the hour that contains `since`, in seconds since the epoch."""

    async def daily_calls(self, namespace: str, since: float) -> Mapping[int, int]:
        """The number of calls that were not refused by day (UTC: seconds since the epoch // 86,400).

        `since` is a time in the first day, in seconds since the epoch.
        """

    async def namespaces(self) -> frozenset[str]:
        """The namespaces with entries or sums."""


def fair_share(keep: int, namespaces: int) -> int:
    """The number of entries that one of several namespaces keeps: `keep`, or less if there are more than ten."""
    return max(1, min(keep, keep * _FULL_SHARES // max(namespaces, 1)))


def count_daily_calls(sums: Mapping[SumKey, Sums]) -> dict[int, int]:
    """The number of calls that were not refused by day."""
    days: dict[int, int] = {}
    for (hour, _, _), one in sums.items():
        day = hour // HOURS_PER_DAY
        days[day] = days.get(day, 0) + one.calls - one.refused
    return days
