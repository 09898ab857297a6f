"""Connections to a Redis or Valkey server: commands and scripts with timeouts, and errors in plain words.

This module must not know values. Its messages never contain text of the server or of its client library, because that
text may quote an address, a password or a command.
"""

import asyncio
import logging
import os
import re
import socket
import ssl
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import anyio
import msgspec
from redis import exceptions
from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import AbstractConnection, Connection, SSLConnection
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from mcp_mirror.errors import StoreError, walk_causes
from mcp_mirror.system.files import FileVersion, read_file_version
from mcp_mirror.system.limited_logs import OutageLog
from mcp_mirror.types import Buffer

_logger = logging.getLogger(__name__)

_TIMEOUT: Final = 1.5
"""Seconds for one exchange with the server."""
_LONGEST_TRANSFER: Final = 30.0
"""Seconds for one exchange of large data while the server answers other exchanges, which share the line with it."""
_HEAD_START: Final = 0.25
"""Seconds after which a connection also tries the next address of the server's host (RFC 8305)."""
_CONNECTIONS: Final = 30
"""Exchanges at once, each with a connection."""
_TRANSFERS: Final = 2
"""Exchanges of large data at once, in addition: more would share the line, and each would take longer than its time."""
_DISCONNECT_TIMEOUT: Final = 0.05

Command = tuple[str | bytes | int | float | memoryview, ...]
_FileVersions = tuple[FileVersion | None, ...]

_DOWN: Final = "The store's Redis server cannot be reached. Try again in a moment."
_SLOW: Final = f"The store's Redis server did not answer within {_TIMEOUT:g} s. Try again in a moment."
_READ_ONLY: Final = "The store's Redis server is read-only. Point `store.url` to the primary, or try again later."
_FULL: Final = "The store's Redis server is out of memory. Set its `maxmemory` well above `store.max_bytes`."
_DISK: Final = "The store's Redis server cannot write to its disk and refuses all writes. Read its log."
_LOGIN: Final = "The store's Redis server refuses the user or password in `store.url`. Correct them."
_ACL: Final = (
    "The store's Redis user may not run a command that the store needs. Extend its ACL as the Redis guide says."
)
_TLS: Final = (
    "The TLS certificate of the store's Redis server is not valid or not trusted. Check its dates and names, or add "
    "?ssl_ca_certs=FILE with the certificate of its authority to `store.url`."
)
_NO_TLS: Final = (
    "A TLS connection to the store's Redis server failed. Check that the port in `store.url` is its TLS port, or write "
    "`redis` in place of `rediss` for a server without TLS."
)
_CLIENTS: Final = "The store's Redis server has as many clients as its `maxclients` allows. Increase `maxclients`."
_DATABASE: Final = "The store's Redis server does not have the database in `store.url`. Correct its number."
_PROTECTED: Final = (
    "The store's Redis server is in protected mode and refuses clients of other machines. Set a password there, and "
    "write it in `store.url`."
)
_CLUSTER: Final = "The store's Redis server is in cluster mode, which the store does not support. Use another server."
_OPTIONS: Final = (
    "An option after `?` in `store.url` is unknown or has an invalid value, or its file cannot be read. Options of "
    "TLS, such as ?ssl_ca_certs=FILE, need rediss://. In a user or password write %3F for ?."
)
_REFUSED: Final = "The store's Redis server refused a command. Check that it is Redis 7 or Valkey."
_NO_REPLY: Final = (
    "The answer from `store.url` is not a reply of a Redis server. Check the address, and proxies before the server."
)
_UNKNOWN_COMMAND: Final = (
    "The store's Redis server does not know a command that the store needs. Use Redis 7 or Valkey, and "
    "remove its `rename-command` directives."
)
_FOREIGN_KEYS: Final = (
    "In the store's Redis server, another program uses keys that begin with `store.prefix`. Choose another prefix, or "
    "another database in `store.url`."
)
_BUSY: Final = "The store's Redis server is busy with a script or function of another program. Try again in a moment."
_NO_REPLICAS: Final = "The store's Redis server refuses writes while its replicas are missing. Try again later."
_NO_PRIMARY: Final = "The store's Redis server has lost its primary. Try again later."
_WRITE_REFUSALS: Final = frozenset({_READ_ONLY, _FULL, _DISK, _NO_REPLICAS})
_FAILOVER_ERRORS: Final = frozenset({_READ_ONLY, _NO_REPLICAS, _NO_PRIMARY})
"""After these, new connections may lead to another server: the new primary."""
_CONNECTION_REFUSALS: Final = frozenset({_LOGIN, _CLIENTS, _TLS})
"""Only new connections get these errors, such as after a change of the password. The present ones stay usable."""
_BY_TYPE: Final[tuple[tuple[tuple[type[BaseException], ...], str], ...]] = (
    ((ValueError, RecursionError, exceptions.InvalidResponse), _NO_REPLY),
    ((exceptions.BusyLoadingError,), "The store's Redis server is starting. Try again in a moment."),
    ((exceptions.AuthenticationError,), _LOGIN),
    ((exceptions.NoPermissionError,), _ACL),
    ((exceptions.ReadOnlyError,), _READ_ONLY),
    ((exceptions.OutOfMemoryError,), _FULL),
    ((exceptions.MasterDownError,), _NO_PRIMARY),
    ((exceptions.ClusterError, exceptions.AskError, exceptions.ClusterCrossSlotError), _CLUSTER),
    ((exceptions.TimeoutError, TimeoutError), _SLOW),
    ((exceptions.ConnectionError, OSError), _DOWN),
)
_BY_CODE: Final = (
    ("MISCONF", _DISK),
    ("unknown command", _UNKNOWN_COMMAND),
    ("WRONGTYPE", _FOREIGN_KEYS),
    ("not an integer", _FOREIGN_KEYS),
    ("attempt to ", _FOREIGN_KEYS),  # the script computes with a missing or foreign member
    ("READONLY", _READ_ONLY),
    ("WRONGPASS", _LOGIN),
    ("NOREPLICAS", _NO_REPLICAS),
    ("busy running a", _BUSY),
    ("command called from", _UNKNOWN_COMMAND),
    ("user executing the script", _ACL),  # Redis 7.0
    ("ACL failure in script", _ACL),
    ("stale replica", _NO_PRIMARY),
    ("in a cluster node", _CLUSTER),
    ("max number of clients", _CLIENTS),
    ("DB index", _DATABASE),
    ("protected mode", _PROTECTED),
)
"""What the errors of the server contain: most begin with a code, and the last ones are those within a script."""
_OUTAGES: Final = (exceptions.ConnectionError, exceptions.TimeoutError, OSError, TimeoutError)


class _FallbackConnection(Connection):
    """A connection that tries the next address of a host early: packets to an IPv6 address may be dropped.

    The Redis client has no option for it, and no public method.
    """

    def _connection_arguments(self) -> Mapping[str, Any]:
        return {**super()._connection_arguments(), "happy_eyeballs_delay": _HEAD_START}


class _FallbackTLSConnection(_FallbackConnection, SSLConnection):
    """The same with TLS. Connections share a context until a file of the options changes.

    The library creates one for each connection. To read the system's authorities for it takes 20 ms, in which the event
    loop does nothing else, and a megabyte of memory.
    """

    def __init__(self, contexts: dict[_FileVersions, ssl.SSLContext], **keys: Any) -> None:
        """Create a connection of a pool; `contexts` has the context of all its connections, or nothing yet."""
        super().__init__(**keys)
        self._contexts = contexts

    def _connection_arguments(self) -> Mapping[str, Any]:
        self.share_context()
        return super()._connection_arguments()

    def share_context(self) -> None:
        """Use the context of the pool, or create it. OSError: a file of the options cannot be read."""
        tls = self.ssl_context
        files = (tls.ca_certs, tls.certfile, tls.keyfile)
        versions = tuple(read_file_version(Path(file)) for file in files if file)
        tls.context = self._contexts.get(versions)
        if tls.context is None:
            self._contexts.clear()
            self._contexts[versions] = tls.get()


_CONNECTION_CLASSES: Final[Mapping[type[AbstractConnection], type[AbstractConnection]]] = {
    Connection: _FallbackConnection,
    SSLConnection: _FallbackTLSConnection,
}


class _ConnectedFirstPool(ConnectionPool):
    """A pool that gives a connection which is open, if there is one: the server may refuse further ones."""

    def get_available_connection(self) -> AbstractConnection:
        """Return an open connection, else a new one."""
        self._available_connections.sort(key=attrgetter("is_connected"))  # it takes the last one
        connection: AbstractConnection = super().get_available_connection()  # type: ignore[no-untyped-call]
        return connection


class RedisConnection:
    """A pool of connections. When the server fails, all waiting exchanges fail with the first one.

    Exchanges raise `StoreError`. One that failed may have been carried out.
    """

    def __init__(self, url: str, script: str, beginning: str) -> None:
        """Create the pool, which connects with the first command; the script gets the beginning of all keys.

        StoreError if the address is not valid.
        """
        self._pool = _create_pool(url)
        self._client = Redis(connection_pool=self._pool)
        self._script, self._beginning = self._client.register_script(script), beginning
        self._slots, self._transfers = anyio.Semaphore(_CONNECTIONS), anyio.Semaphore(_TRANSFERS)
        self.is_up: bool = True
        """Whether the server answered the last exchange, possibly with an error or a refused connection."""
        self._transfer_limits: dict[asyncio.Timeout, float] = {}
        """The time limits of the exchanges of large data, with the times until which they can be extended."""
        self._outages = 0
        self._last_error = _DOWN
        self._log = OutageLog(_logger)

    async def aclose(self) -> None:
        """Disconnect."""
        with anyio.CancelScope(shield=True):
            await self._disconnect(_TIMEOUT, inuse_connections=True)

    async def _disconnect(self, most: float, *, inuse_connections: bool) -> None:
        """Disconnect within `most` seconds.

        A cancel scope of anyio does not recognize its own cancellation in the error that `asyncio.gather` raises, which
        the library uses here, and the task would be cancelled.
        """
        with suppress(TimeoutError, exceptions.RedisError):
            async with asyncio.timeout(most):
                await self._pool.disconnect(inuse_connections)

    async def run(self, commands: Iterable[Command], *, is_large: bool = False) -> list[Any]:
        """Run commands in one exchange and return their replies. Commands of others may run between them.

        `is_large`: the commands or their replies may have megabytes.
        """
        slots = self._transfers if is_large else self._slots
        async with self._exchange(slots), self._client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            return list(await pipe.execute())

    async def call(self, operation: str, arguments: Mapping[str, Any], *blobs: Buffer, is_write: bool = False) -> Any:
        """Run an operation of the script, at once, and return its reply.

        `blobs` are the arguments that JSON cannot represent. `is_write`: the operation has written if its reply is not
        empty.
        """
        async with self._exchange(self._slots):
            texts = operation, msgspec.json.encode(arguments)
            reply = await self._script(keys=[self._beginning], args=[*texts, *blobs])
        if is_write and reply:
            self._report_recovery(was_write=True)
        return reply

    @asynccontextmanager
    async def _exchange(self, slots: anyio.Semaphore) -> AsyncIterator[None]:
        """One exchange, which cannot be cancelled: a cancelled one would leave its connection unusable."""
        outages = self._outages
        async with slots:
            if self._outages != outages:
                raise StoreError(self._last_error)
            with anyio.CancelScope(shield=True):
                try:
                    async with asyncio.timeout(_TIMEOUT) as limit:
                        if slots is self._transfers:
                            self._transfer_limits[limit] = asyncio.get_running_loop().time() + _LONGEST_TRANSFER
                        try:
                            yield
                        finally:
                            self._transfer_limits.pop(limit, None)
                except (exceptions.RedisError, OSError, ValueError, RecursionError) as error:  # the last two: no reply
                    raise await self._record_error(error, outages) from None
        self.is_up = True
        self._extend_transfers()
        self._report_recovery(was_write=False)

    def _extend_transfers(self) -> None:
        """Give transfers more time because the server has answered: they wait for their share of the line."""
        now = asyncio.get_running_loop().time()
        for limit, latest in self._transfer_limits.items():
            if not limit.expired():
                limit.reschedule(min(now + _TIMEOUT, latest))

    def _report_recovery(self, *, was_write: bool) -> None:
        """Log that the server is used again. A successful read does not end an error that concerns writes only."""
        if was_write or self._log.kind not in _WRITE_REFUSALS:
            # near the limit of its memory, a server refuses some writes and accepts others
            self._log.recover("The store's Redis server is used again.", after_calm=self._log.kind == _FULL)

    async def _record_error(self, error: Exception, outages: int) -> StoreError:
        """Log an error of an exchange unless the log has it, and return it as a `StoreError`.

        `outages` is the number of outages when the exchange began. If there has been one since, the exchange used a
        connection of that time, and its error says nothing about the present connections.
        """
        message = _describe_error(error)
        failure = StoreError(message)
        is_outage = isinstance(error, _OUTAGES) and message not in _CONNECTION_REFUSALS
        if is_outage and self._outages != outages:
            return failure
        self.is_up = not is_outage
        if not self.is_up:
            self._outages += 1
            self._last_error = message  # an error keeps the values of its call in memory
        if not self.is_up or message in _FAILOVER_ERRORS:
            await self._disconnect(_DISCONNECT_TIMEOUT, inuse_connections=False)  # idle connections may be dead too
        reason = _explain_system_error(error)
        self._log.fail(
            message, "%s (%s)", message, f"{type(error).__name__}: {reason}" if reason else type(error).__name__
        )
        return failure


@contextmanager
def decoding() -> Iterator[None]:
    """Decode replies in the context: StoreError for those of another form, of another program or a damaged server."""
    try:
        yield
    except (ValueError, TypeError, LookupError):
        raise StoreError(_FOREIGN_KEYS) from None


def _create_pool(url: str) -> ConnectionPool:
    try:
        parts = urlsplit(url)
        # The library ignores other parts, such as the rest of a password after a slash.
        is_valid = not parts.fragment and (parts.scheme == "unix" or bool(re.fullmatch("(/[0-9]*)?", parts.path)))
        pool = _ConnectedFirstPool.from_url(
            url,
            protocol=2,
            socket_timeout=None,  # each exchange has a time limit
            socket_connect_timeout=_TIMEOUT,
            retry=Retry(NoBackoff(), 1),
            health_check_interval=0,
            client_name="mcp-mirror",
        )
        if pool.connection_class is SSLConnection:
            pool.connection_kwargs["contexts"] = {}
        pool.connection_class = _CONNECTION_CLASSES.get(pool.connection_class, pool.connection_class)
        connection = pool.make_connection()  # type: ignore[no-untyped-call]
        if isinstance(connection, _FallbackTLSConnection):
            connection.share_context()  # reads the files of the options
    except ValueError:
        is_valid = False
    except (TypeError, AttributeError, exceptions.RedisError, OSError):
        raise StoreError(_OPTIONS) from None
    if not is_valid:
        raise StoreError(
            "`store.url` is not the address of a Redis server. Write redis://HOST:PORT/DB, rediss:// for TLS, or "
            "unix:///PATH, with user and password percent-encoded: %40 for @, %2F for /, %23 for #, %25 for %."
        )
    pool.connection_kwargs |= {"decode_responses": False}
    return pool


def _explain_system_error(error: Exception) -> str:
    """The reason of the operating system or of TLS for a failed connection; empty without one."""
    for cause in walk_causes(error):
        if isinstance(cause, ssl.SSLCertVerificationError):
            return cause.verify_message.partition(",")[0]  # the rest has the name of the host
        if isinstance(cause, socket.gaierror):
            return "the host name was not found"
        if isinstance(cause, OSError) and cause.errno and not isinstance(cause, ssl.SSLError):
            return os.strerror(cause.errno)
    return ""


def _describe_error(error: Exception) -> str:
    reason = error.__cause__ or error.__context__
    if isinstance(reason, ssl.SSLError):
        return _TLS if isinstance(reason, ssl.SSLCertVerificationError) else _NO_TLS
    text = str(error)
    by_code = (message for code, message in _BY_CODE if code in text)
    by_type = (message for kinds, message in _BY_TYPE if isinstance(error, kinds))
    return next(by_code, next(by_type, _REFUSED))
