"""The event log of the Redis store: a stream of entries, and hashes of sums by day, for each namespace.

    <prefix>2:calls:<namespace>         stream: the newest entries
    <prefix>2:sums:<namespace>:<day>    hash: the sums, by hour, upstream, tool and the place of the sum in `Sums`
    <prefix>2:days:<namespace>          hash: the number of calls by day
    <prefix>2:callers                   sorted set: the namespaces by the time of their last call

Names are percent-encoded. Every key has an expiry. An append is one exchange but not a transaction: if the connection
breaks in between, the gateway repeats it, and calls may be counted twice.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import anyio.to_thread
import msgspec

from mcp_mirror.stores.event_log import (
    DAY,
    HOUR,
    HOURS_PER_DAY,
    KEPT_SECONDS,
    SumKey,
    Sums,
    count_daily_calls,
    fair_share,
)
from mcp_mirror.stores.redis.connection import Command, RedisConnection, decoding
from mcp_mirror.stores.redis.records import KeyNames, decode_name, encode_name

_FIELD: Final = b"e"
"""The field of a stream entry that contains it."""
_AT_ONCE: Final = 200
"""Commands, entries or sums of one exchange, which the event loop handles in a few milliseconds."""
_PLACES: Final = len(msgspec.structs.astuple(Sums()))
_TIME_DIGITS: Final = 15
_NUMBER_DIGITS: Final = 10


class RedisEventLog:
    """An `EventLog` in Redis."""

    def __init__(self, redis: RedisConnection, keys: KeyNames, clock: Callable[[], float]) -> None:
        """Use the connection of a store; the clock returns seconds since the epoch."""
        self._redis, self._keys, self._clock = redis, keys, clock
        self._callers = 1
        """The number of namespaces, as of the last append."""

    async def append(self, namespace: str, entries: Sequence[bytes], sums: Mapping[SumKey, Sums], *, keep: int) -> None:
        owner, now = encode_name(namespace), self._clock()
        room = fair_share(keep, self._callers)
        calls, callers = self._keys.of("calls", owner), self._keys.of("callers")
        commands: list[Command] = [
            *(("XADD", calls, "MAXLEN", room, "*", _FIELD, entry) for entry in entries[-room:]),
            ("XTRIM", calls, "MINID", max(int((now - KEPT_SECONDS) * 1000), 0)),
            ("EXPIRE", calls, KEPT_SECONDS),
            *self._add_sums(owner, sums),
            ("ZADD", callers, now, owner),
            ("ZREMRANGEBYSCORE", callers, "-inf", now - KEPT_SECONDS),
            ("EXPIRE", callers, KEPT_SECONDS),
            ("ZCARD", callers),
        ]
        for start in range(0, len(commands), _AT_ONCE):
            replies = await self._redis.run(commands[start : start + _AT_ONCE])
        self._callers = replies[-1]

    def _add_sums(self, owner: str, sums: Mapping[SumKey, Sums]) -> Iterator[Command]:
        for (hour, upstream, tool), one in sums.items():
            key = self._keys.of("sums", owner, str(hour // HOURS_PER_DAY))
            name = f"{hour}:{encode_name(upstream)}:{encode_name(tool)}"
            for place, number in enumerate(msgspec.structs.astuple(one)):
                if number:
                    yield "HINCRBY", key, f"{name}:{place}", number
            yield "EXPIRE", key, KEPT_SECONDS + DAY
        days = self._keys.of("days", owner)
        for day, calls in count_daily_calls(sums).items():
            yield "HINCRBY", days, str(day), calls
        yield "EXPIRE", days, KEPT_SECONDS + DAY

    async def read(
        self, namespace: str, *, before: str | None = None, after: str | None = None, limit: int
    ) -> tuple[tuple[str, bytes], ...]:
        key = self._keys.of("calls", encode_name(namespace))
        end = f"({_parse_cursor(before)}" if before else "+"
        start = f"({_parse_cursor(after)}" if after else "-"
        found: list[tuple[str, bytes]] = []
        while len(found) < limit:
            wanted = min(limit - len(found), _AT_ONCE)
            [replies] = await self._redis.run([("XREVRANGE", key, end, start, "COUNT", wanted)])
            with decoding():
                found += [(_build_cursor(identity), fields.get(_FIELD, b"")) for identity, fields in replies]
            if len(replies) < wanted:
                break
            end = f"({_parse_cursor(found[-1][0])}"
        return tuple(found)

    async def sums(self, namespace: str, since: float) -> Mapping[SumKey, Sums]:
        owner, now = encode_name(namespace), self._clock()
        first = int(max(since, now - KEPT_SECONDS)) // HOUR
        days = range(first // HOURS_PER_DAY, int(now) // DAY + 2)  # another gateway's clock may be ahead
        fields: dict[bytes, bytes] = {}
        for day in days:
            key, cursor = self._keys.of("sums", owner, str(day)), b"0"
            while True:  # the hash may be large
                [(cursor, part)] = await self._redis.run([("HSCAN", key, cursor, "COUNT", _AT_ONCE)])
                fields.update(part)
                if int(cursor) == 0:
                    break
        with decoding():
            found = await anyio.to_thread.run_sync(_decode_sums, fields)
        return {key: one for key, one in found.items() if key[0] >= first}

    async def daily_calls(self, namespace: str, since: float) -> Mapping[int, int]:
        [reply] = await self._redis.run([("HGETALL", self._keys.of("days", encode_name(namespace)))])
        first = int(max(since, self._clock() - KEPT_SECONDS)) // DAY
        with decoding():
            return {int(day): int(calls) for day, calls in reply.items() if int(day) >= first}

    async def namespaces(self) -> frozenset[str]:
        [names] = await self._redis.run([("ZRANGE", self._keys.of("callers"), 0, -1)])
        with decoding():
            return frozenset(map(decode_name, names))


def _decode_sums(fields: Mapping[bytes, bytes]) -> dict[SumKey, Sums]:
    numbers: dict[SumKey, list[int]] = {}
    for field, number in fields.items():
        hour, upstream, tool, place = field.split(b":")
        key = (int(hour), decode_name(upstream), decode_name(tool))
        if int(place) < _PLACES:  # a later version may have more sums
            numbers.setdefault(key, [0] * _PLACES)[int(place)] = int(number)
    return {key: Sums(*sums) for key, sums in numbers.items()}


def _build_cursor(identity: bytes) -> str:
    """A stream id in a form that sorts like it."""
    time, _, number = identity.decode().partition("-")
    return f"{int(time):0{_TIME_DIGITS}}-{int(number):0{_NUMBER_DIGITS}}"


def _parse_cursor(cursor: str) -> str:
    time, _, number = cursor.partition("-")
    return f"{int(time)}-{int(number)}"
