"""The way to a Redis or Valkey server: commands and transactions, each bounded in time, and what is wrong in words.

Knows nothing of values. No message of ours holds what the server or its client library says: that may quote an
address, a password or a command.
"""

import asyncio
import logging
import random
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import anyio
from redis import exceptions as refusals
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.redis.commands import Command

_logger = logging.getLogger(__name__)

_PATIENCE: Final = 1.5
"""Seconds that one exchange with the server may take."""
_AT_ONCE: Final = 32
"""Connections."""
_ATTEMPTS: Final = 200
"""Times that a transaction is tried which others get in the way of."""
_PAUSE: Final = 0.005
"""Seconds at most until it is tried again: about as long as it takes others."""
_FAREWELL: Final = 0.05

Read = Callable[..., Awaitable[Any]]
"""Sends one command within a transaction that is being planned."""
Plan = Callable[[Read], Awaitable[Iterable[Command] | None]]
"""Reads, and gives the commands to be carried out together if nobody gets in the way; None: nothing is to be done."""

_DOWN: Final = "The store's Redis server cannot be reached. Try again in a moment."
_SLOW: Final = f"The store's Redis server did not answer within {_PATIENCE:g} s. Try again in a moment."
_READ_ONLY: Final = "The store's Redis server is read-only. Point `store.url` to the primary, or try again later."
_FULL: Final = "The store's Redis server is out of memory. Set its `maxmemory` well above `store.max_bytes`."
_STUCK: Final = "The store's Redis server cannot write to its disk and takes nothing. Its own log says why."
_TAKES_NOTHING: Final = frozenset({_READ_ONLY, _FULL, _STUCK})
_STRANGER: Final = "The store's Redis server refuses the user or password in `store.url`. Correct them."
_FORBIDDEN: Final = "The store's Redis user may not do what the store needs. Extend its ACL as the README says."
_UNTRUSTED: Final = (
    "There is no trusted TLS connection to the store's Redis server. Check its certificate, or add "
    "?ssl_ca_certs=FILE to `store.url`."
)
_REFUSED: Final = "The store's Redis server refused a command. Check that it is Redis 7 or Valkey."
_BY_KIND: Final[tuple[tuple[type[BaseException], str], ...]] = (
    (refusals.BusyLoadingError, "The store's Redis server is starting. Try again in a moment."),
    (refusals.AuthenticationError, _STRANGER),
    (refusals.NoPermissionError, _FORBIDDEN),
    (refusals.ReadOnlyError, _READ_ONLY),
    (refusals.OutOfMemoryError, _FULL),
    (refusals.TimeoutError, _SLOW),
    (TimeoutError, _SLOW),
    (refusals.ConnectionError, _DOWN),
    (OSError, _DOWN),
)
_BY_CODE: Final = (
    ("MISCONF", _STUCK),
    ("READONLY", _READ_ONLY),
    ("WRONGPASS", _STRANGER),
    ("NOREPLICAS", "The store's Redis server takes nothing while its replicas are missing. Try again later."),
    ("MASTERDOWN", "The store's Redis server has lost its primary. Try again later."),
)
"""What the server itself begins its errors with."""
_OUTAGES: Final = (refusals.ConnectionError, refusals.TimeoutError, OSError, TimeoutError)


class WriteRefusedError(StoreError):
    """The server is there and takes nothing: it is read-only, out of memory or cannot write to its disk."""


class RedisLink:
    """A pool of connections. Who waits for one while the server fails, fails with who uses it."""

    def __init__(self, url: str) -> None:
        """Connect later.

        Raises:
            StoreError: The address cannot be used.
        """
        self._pool = _pool_of(url)
        self._client = Redis(connection_pool=self._pool)
        self._slots = anyio.Semaphore(_AT_ONCE)
        self._turn = anyio.Semaphore(1)
        """Transactions of one process follow one another instead of getting in each other's way."""
        self.is_up = True
        """Whether the server answered when it was asked last, be it with an error."""
        self._outages = 0
        self._trouble = StoreError(_DOWN)
        self._reported = ""
        """What the log was told last: once, not with every call."""

    async def aclose(self) -> None:
        """Disconnect."""
        with anyio.move_on_after(_PATIENCE, shield=True):
            await self._pool.disconnect()

    async def run(self, commands: Iterable[Command]) -> list[Any]:
        """Carry commands out one after another, in one exchange; others may come between them.

        Raises:
            WriteRefusedError: The server takes nothing; those that only read would have been carried out.
            StoreError: They could not be.
        """
        async with self._channel(self._slots), self._client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return list(await pipe.execute())

    async def transact(self, watched: str, plan: Plan) -> Sequence[Any] | None:
        """Read, decide, and carry out, as one: again where `watched` has changed meanwhile.

        Raises:
            StoreError: It could not be done.
        """
        async with self._channel(self._turn):
            for _ in range(_ATTEMPTS):
                try:
                    return await self._attempt(watched, plan)
                except refusals.WatchError:
                    await asyncio.sleep(random.uniform(0, _PAUSE))  # noqa: S311  # no secret
        raise StoreError("Too many gateways write to the store's Redis server at this moment. Try again.")

    async def _attempt(self, watched: str, plan: Plan) -> Sequence[Any] | None:
        async with self._client.pipeline(transaction=True) as pipe:
            await pipe.watch(watched)
            commands = await plan(pipe.execute_command)
            if commands is None:
                return None
            pipe.multi()  # type: ignore[no-untyped-call]
            for command in commands:
                pipe.execute_command(*command)
            return list(await pipe.execute())

    @asynccontextmanager
    async def _channel(self, turn: anyio.Semaphore) -> AsyncIterator[None]:
        """One exchange: nobody cancels it half way, which would leave a connection in disorder; it is short enough."""
        seen = self._outages
        async with turn:
            if self._outages != seen:
                raise self._trouble
            with anyio.CancelScope(shield=True):
                try:
                    async with asyncio.timeout(_PATIENCE):
                        yield
                    self._is_well()
                except (refusals.RedisError, OSError) as error:
                    raise await self._told(error) from None

    async def _told(self, error: Exception) -> StoreError:
        words = _words(error)
        trouble = (WriteRefusedError if words in _TAKES_NOTHING else StoreError)(words)
        self.is_up = not isinstance(error, _OUTAGES)
        if not self.is_up:
            self._outages += 1
            self._trouble = trouble
            with anyio.move_on_after(_FAREWELL):  # those that nobody uses now may be dead as well
                await self._pool.disconnect(inuse_connections=False)
        if self._reported != str(trouble):
            self._reported = str(trouble)
            _logger.warning("%s (%s)", trouble, type(error).__name__)
        return trouble

    def _is_well(self) -> None:
        self.is_up = True
        if self._reported:
            self._reported = ""
            _logger.warning("The store's Redis server is used again.")


def _pool_of(url: str) -> ConnectionPool:
    try:
        pool = ConnectionPool.from_url(
            url,
            protocol=2,
            socket_timeout=_PATIENCE,
            socket_connect_timeout=_PATIENCE,
            retry=Retry(NoBackoff(), 1),
            health_check_interval=0,
            client_name="mcp-mirror",
        )
    except (ValueError, TypeError):
        raise StoreError(
            "`store.url` is not the address of a Redis server. Write redis://HOST:PORT/DB, rediss:// for TLS, or "
            "unix:///PATH."
        ) from None
    pool.connection_kwargs |= {"decode_responses": False}
    return pool


def _words(error: Exception) -> str:
    if isinstance(error.__cause__ or error.__context__, ssl.SSLError):
        return _UNTRUSTED
    said = str(error)
    by_code = (words for code, words in _BY_CODE if code in said)
    by_kind = (words for kind, words in _BY_KIND if isinstance(error, kind))
    return next(by_code, next(by_kind, _REFUSED))
