"""The interface of event logs: the newest calls of each namespace, and sums by hour, upstream and tool.

An entry is a record in bytes; this module does not know its content. The log in memory is here, too.
"""

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import count, islice
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
_CURSOR_DIGITS: Final = 16
"""Digits of the cursors of the log in memory."""


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


class _Share(msgspec.Struct):
    """The entries and sums of one namespace. The garbage collector would visit tuples, but not bytes."""

    first: int
    """The number of the first entry; those of the others follow it."""
    entries: deque[bytes] = msgspec.field(default_factory=deque)
    """The oldest first."""
    appended: deque[tuple[float, int]] = msgspec.field(default_factory=deque)
    """The time of each append, and the number after its last entry."""
    sums: dict[SumKey, Sums] = msgspec.field(default_factory=dict)

    @property
    def end(self) -> int:
        """The number after the last entry."""
        return self.first + len(self.entries)

    def remove_before(self, number: int) -> None:
        """Remove the entries before the one with this number."""
        for _ in range(number - self.first):
            self.entries.popleft()
        self.first = max(self.first, number)
        while self.appended and self.appended[0][1] <= self.first:
            self.appended.popleft()

    def remove_until(self, last: float) -> None:
        """Remove entries and sums until `last`, in seconds since the epoch."""
        while self.appended and self.appended[0][0] <= last:
            self.remove_before(self.appended[0][1])
        if self.sums and next(iter(self.sums))[0] * HOUR <= last:
            self.sums = {key: one for key, one in self.sums.items() if key[0] * HOUR > last}


class MemoryEventLog:
    """An `EventLog` in memory."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """Create an empty log; the clock returns seconds since the epoch."""
        self._clock = clock
        self._count = 0
        """Entries so far."""
        self._shares: dict[str, _Share] = {}
        self._swept_at = 0.0
        """When old entries were last removed, in seconds since the epoch."""

    async def append(self, namespace: str, entries: Sequence[bytes], sums: Mapping[SumKey, Sums], *, keep: int) -> None:
        now = self._clock()
        share = self._shares.setdefault(namespace, _Share(self._count))
        self._count += len(entries)
        share.entries.extend(entries)
        share.appended.append((now, share.end))
        share.remove_before(share.end - fair_share(keep, len(self._shares)))
        for key, added in sums.items():
            share.sums[key] = share.sums.get(key, Sums()).plus(added)
        if abs(self._swept_at - now) > HOUR:  # a sweep looks at the calls of all namespaces
            self._swept_at = now
            for owner, kept in [*self._shares.items()]:
                kept.remove_until(now - KEPT_SECONDS)
                if not kept.entries and not kept.sums:
                    del self._shares[owner]

    async def read(
        self, namespace: str, *, before: str | None = None, after: str | None = None, limit: int
    ) -> tuple[tuple[str, bytes], ...]:
        share = self._shares.get(namespace, _Share(0))
        end = share.end if before is None else min(int(before), share.end)
        first = max(share.first if after is None else int(after) + 1, end - limit)
        selected = islice(reversed(share.entries), share.end - end, share.end - min(first, end))
        return tuple(
            (f"{number:0{_CURSOR_DIGITS}}", entry) for number, entry in zip(count(end - 1, -1), selected, strict=False)
        )

    async def sums(self, namespace: str, since: float) -> Mapping[SumKey, Sums]:
        first = int(since) // HOUR
        share = self._shares.get(namespace, _Share(0))
        return {key: one for key, one in share.sums.items() if key[0] >= first}

    async def daily_calls(self, namespace: str, since: float) -> Mapping[int, int]:
        return count_daily_calls(await self.sums(namespace, since - since % DAY))

    async def namespaces(self) -> frozenset[str]:
        return frozenset(self._shares)
