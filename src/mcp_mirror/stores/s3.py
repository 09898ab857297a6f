"""Blobs as objects in a bucket of an S3-compatible server. This module must not know values.

Credentials, region and endpoint come from the environment, by the rules of the library: `AWS_*` variables, web
identity, container and instance roles. Messages never contain text of the server: it may quote addresses or names.
"""

import errno
import logging
import os
from collections.abc import AsyncIterable, AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from datetime import timedelta
from typing import Final

import anyio
import obstore
from obstore import exceptions
from obstore.store import S3Store

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.base import ObjectMissingError
from mcp_mirror.system.limited_logs import OutageLog
from mcp_mirror.system.resources import explain_shortage
from mcp_mirror.types import Buffer, Span

_logger = logging.getLogger(__name__)

_CONNECT_SECONDS: Final = 2
_REQUEST_SECONDS: Final = 10
_RETRIES: Final = 3
"""Retries of a request, after 0.1 s and more: S3 answers 503 for a moment while a bucket has many requests."""
_PART: Final = 5 << 20
"""Bytes of a part of an upload: the minimum of S3, so that a part fits into one request's time on a slow line."""
_PARTS_AT_ONCE: Final = 4
_UPLOADS: Final = 2
"""Uploads at once: more would share the line, and their parts would take longer than the time of a request."""
_DOWNLOADS: Final = 4
"""Large reads at once, for the same reason."""
_LARGE: Final = 1 << 20
"""Bytes above which a read is large."""
_PAGE: Final = 1000

_DOWN: Final = "The object store of `store.blobs` cannot be reached. Try again in a moment."
_SLOW: Final = f"The object store of `store.blobs` did not answer within {_REQUEST_SECONDS} s. Try again in a moment."
_ACCESS: Final = (
    "The object store refuses access to `store.blobs`. Check the credentials in the gateway's environment, and that "
    "they may read, write, list and delete objects there."
)
_NO_BUCKET: Final = "The bucket of `store.blobs` does not exist. Create it, or correct `store.blobs`."
_BUSY: Final = "The object store of `store.blobs` is busy and refuses requests. Try again in a moment."
_FAILED: Final = "The object store of `store.blobs` failed. Try again in a moment, or read its log."
_INSECURE: Final = (
    "The endpoint of the object store of `store.blobs` is http://. Use https://, or set AWS_ALLOW_HTTP=true in the "
    "gateway's environment."
)
_TRUNCATED: Final = (
    "The object of a stored value is shorter than the value: another program changed it. Call the tool that created "
    "the value again."
)
_REGION: Final = (
    "The bucket of `store.blobs` is in another region. Set AWS_REGION in the gateway's environment to the region of "
    "the bucket."
)
_NO_CREDENTIALS: Final = (
    "The gateway has no credentials for the object store of `store.blobs`. Set AWS_ACCESS_KEY_ID and "
    "AWS_SECRET_ACCESS_KEY in its environment."
)
_CLOCK: Final = (
    "The object store of `store.blobs` refuses requests because the clock of the gateway's machine differs from its "
    "own. Synchronize the clocks."
)
_FULL: Final = "The object store of `store.blobs` is full, or the bucket has reached its quota. Make room there."
_TLS: Final = (
    "The TLS certificate of the object store of `store.blobs` is not valid or not trusted. Check the certificate, or "
    "set SSL_CERT_FILE in the gateway's environment to a file with the certificate of its authority."
)
_NO_HANDLE: Final = (
    f"The object store of `store.blobs` cannot be reached: {explain_shortage(OSError(errno.EMFILE, ''))}."
)
_BY_MARK: Final = (
    ("BadScheme", _INSECURE),
    ("InvalidCertificate(", _TLS),
    ("/latest/api/token", _NO_CREDENTIALS),  # addresses at which an instance gives credentials
    ("/latest/meta-data/", _NO_CREDENTIALS),
    ("<Code>NoSuchBucket</Code>", _NO_BUCKET),  # of a list; other requests have a type for it
    ("<Code>RequestTimeTooSkewed</Code>", _CLOCK),
    ("<Code>ExpiredToken</Code>", _ACCESS),
    ("<Code>InvalidToken</Code>", _ACCESS),
    ("<Code>AuthorizationHeaderMalformed</Code>", _REGION),
    ("incorrectly configured region", _REGION),  # a redirect without an address
    ("QuotaExceeded</Code>", _FULL),  # Ceph and MinIO
    ("StorageFull</Code>", _FULL),  # MinIO
    ("status code: 403 ", _ACCESS),
    ("status code: 429 ", _BUSY),
    ("status code: 503 ", _BUSY),
    ("status code: 416 ", _TRUNCATED),
    ('message: "Too many open files"', _NO_HANDLE),
    ("kind: Timeout", _SLOW),
    ("kind: Connect", _DOWN),
    ("kind: Request", _DOWN),
    ("kind: Interrupted", _DOWN),
)
"""What the library's errors contain: its kinds of errors are not types."""
_PANIC: Final = "RustPanic"
"""The class of the library's errors for answers that it does not expect, such as that about an object which it did not
name; no module has the class."""
_START_PANIC: Final = "PanicException"
"""The class of the library's errors if it cannot start its threads; no module has the class."""
_ADDRESS: Final = "`store.blobs` is not the address of a bucket. Write s3://BUCKET or s3://BUCKET/PREFIX."
_ENDPOINT: Final = (
    "%s in the gateway's environment is not the address of an object store. Write https://HOST or https://HOST:PORT."
)
_VARIABLE: Final = (
    "A variable for the object store in the gateway's environment has no valid value. Correct the variables that begin "
    "with AWS_."
)
_BY_MARK_OF_SETUP: Final = (
    ("Missing AccessKeyId", _NO_CREDENTIALS),
    ("Missing SecretAccessKey", _NO_CREDENTIALS),
    ("Config error", _VARIABLE),
)
_ENDPOINT_VARIABLES: Final = ("AWS_ENDPOINT", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")


class S3Blobs:
    """The objects under one prefix of a bucket. Methods raise `StoreError` if the object store fails."""

    def __init__(self, url: str) -> None:
        """Configure the client for s3://BUCKET or s3://BUCKET/PREFIX. It connects with the first request.

        StoreError if the address or the environment is not valid.
        """
        if not url.startswith("s3://") or not url.removeprefix("s3://").partition("/")[0]:
            raise StoreError(_ADDRESS)
        for name in _ENDPOINT_VARIABLES:  # the library panics with each request if the scheme is missing
            if not os.environ.get(name, "https://").lower().startswith(("http://", "https://")):
                raise StoreError(_ENDPOINT % name)
        try:
            self._store = S3Store.from_url(
                url.rstrip("/"),
                client_options={
                    "connect_timeout": timedelta(seconds=_CONNECT_SECONDS),
                    "timeout": timedelta(seconds=_REQUEST_SECONDS),
                    # With options, the library does not read this variable.
                    "allow_http": os.environ.get("AWS_ALLOW_HTTP", "").lower() in ("true", "1"),
                },
                retry_config={"max_retries": _RETRIES, "retry_timeout": timedelta(seconds=_CONNECT_SECONDS)},
            )
        except (exceptions.BaseError, ValueError, OSError) as error:
            message = next((message for mark, message in _BY_MARK_OF_SETUP if mark in str(error)), _ADDRESS)
            raise StoreError(message) from None
        self._uploads, self._downloads = anyio.Semaphore(_UPLOADS), anyio.Semaphore(_DOWNLOADS)
        self._failures = 0
        """How often the object store could not be reached."""
        self._last_failure = _DOWN
        self._outages = OutageLog(_logger)

    async def start(self) -> None:
        """Start the library's threads. StoreError without free file handles for them.

        Otherwise the first request starts them. If it finds no free handle, all later ones fail too, with an error
        that is not an `Exception`.
        """
        try:
            await obstore.delete_async(self._store, [])  # sends nothing
        except BaseException as error:
            if type(error).__name__ != _START_PANIC:
                raise
            raise StoreError(_NO_HANDLE) from None

    async def write(self, name: str, chunks: AsyncIterable[Buffer]) -> None:
        """Write an immutable object in parts. It exists when this returns, and not before.

        After an error it exists if only the confirmation was lost.
        """
        async with self._in_turn(self._uploads):
            with self._report_errors(missing=_NO_BUCKET):
                await obstore.put_async(
                    self._store, name, chunks, use_multipart=True, chunk_size=_PART, max_concurrency=_PARTS_AT_ONCE
                )

    async def read(self, name: str, span: Span) -> Buffer:
        """Read a range of an object; ObjectMissingError without the object, StoreError if it ends before the range."""
        if not span.length:
            return b""
        async with self._in_turn(self._downloads) if span.length > _LARGE else nullcontext():
            with self._report_errors(missing=None):
                read = await obstore.get_range_async(self._store, name, start=span.start, length=span.length)
        part = memoryview(read)
        if len(part) != span.length:
            raise StoreError(_TRUNCATED)
        return part

    async def remove(self, names: Sequence[str]) -> None:
        """Remove objects. Objects that do not exist are not an error."""
        with self._report_errors(missing=_NO_BUCKET):
            await obstore.delete_async(self._store, list(names))

    async def list(self, folder: str) -> AsyncIterator[Sequence[tuple[str, float]]]:
        """Pages of the names in a folder, each with its time of creation in seconds since the epoch."""
        pages = obstore.list(self._store, prefix=folder, chunk_size=_PAGE).__aiter__()
        while True:
            with self._report_errors(missing=_NO_BUCKET):
                try:
                    page = await anext(pages)
                except StopAsyncIteration:
                    return
            yield [(entry["path"], entry["last_modified"].timestamp()) for entry in page]

    @asynccontextmanager
    async def _in_turn(self, turns: anyio.Semaphore) -> AsyncIterator[None]:
        """Wait for a turn to transfer a large object.

        StoreError if the object store could not be reached since the wait began.
        """
        failures = self._failures
        async with turns:
            if self._failures != failures:
                raise StoreError(self._last_failure)
            yield

    @contextmanager
    def _report_errors(self, *, missing: str | None) -> Iterator[None]:
        """Turn errors of the library into `StoreError`; `missing` is the message if something does not exist."""
        try:
            yield
        except FileNotFoundError as error:
            if missing is None:
                raise ObjectMissingError("The object of a stored value does not exist.") from None
            raise self._log(missing, error) from None
        except Exception as error:
            is_panic = type(error).__name__ == _PANIC
            if not (is_panic or isinstance(error, exceptions.BaseError | OSError)):
                raise
            is_refused = isinstance(error, exceptions.PermissionDeniedError | exceptions.UnauthenticatedError)
            known = (message for mark, message in _BY_MARK if mark in str(error))
            raise self._log(next(known, _ACCESS if is_refused else _FAILED), error) from None
        self._outages.recover("The object store is used again.")

    def _log(self, message: str, error: Exception) -> StoreError:
        self._outages.fail(message, "%s (%s)", message, type(error).__name__)
        if message in (_DOWN, _SLOW):
            self._failures, self._last_failure = self._failures + 1, message
        return StoreError(message)
