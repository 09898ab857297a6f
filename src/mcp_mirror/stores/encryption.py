"""Values and what is known about them, encrypted at rest: AES-256-GCM, bound to whose they are and to their base.

Each value has a key of its own, which HKDF-SHA256 (RFC 5869) makes of one of the user's and of 32 random bytes, so that
no nonce is ever used twice under one key. Its record begins with a head that is in clear:

    magic (1)   which of the user's keys (8)   random bytes (32)   | the record, its tag (16)

and its bytes are sealed in chunks of 64 KiB, each with a tag of its own, so that a range costs the chunks that it is
in. A nonce is the number of the chunk, and the largest there is for the record. Authenticated with each are the
namespace, the base, and for a chunk the size of the whole: what was moved, cut, put in another order, or is another's
does not open. That an older copy of the very same value is put back, or that one is removed, is not noticed.
"""

import base64
import binascii
import logging
import secrets
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mcp_mirror.errors import StoreError
from mcp_mirror.settings.policies import EncryptionPolicy
from mcp_mirror.stores.pieces import cut
from mcp_mirror.types import Buffer, Segments, Span

_logger = logging.getLogger(__name__)

CHUNK: Final = 64 << 10
"""Bytes of a value that are sealed together."""
TAG: Final = 16
SEALED_CHUNK: Final = CHUNK + TAG

MAGIC: Final = b"\xc1"
"""With what no record in clear begins: MessagePack leaves this byte unused."""
_KEY: Final = 32
_ID: Final = 8
_SALT: Final = 32
HEAD: Final = len(MAGIC) + _ID + _SALT
"""Bytes of a record that tell how it and its value are opened."""
_NONCE: Final = 12
_OF_RECORD: Final = b"\xff" * _NONCE
_CONTEXT: Final = struct.Struct(">QQ")
_SIZE: Final = struct.Struct(">Q")

_UNKNOWN: Final = (
    "A stored value is encrypted with a key that is not in `store.encryption.keys`. The operator adds that key again, "
    "last in the list."
)
CHANGED: Final = (
    "A stored value is not what was stored under its path: it was changed or moved, and is not given out. Call the "
    "tool that made it again."
)
_CLEAR: Final = (
    "A stored value is not encrypted, and `store.encryption.clear` is refuse. Call the tool that made it again."
)


class UnknownKeyError(StoreError):
    """What is sealed with a key that we do not have: it is there, and could be read with that key."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Seals and opens one value and the record of it."""

    head: bytes
    _aead: AESGCM = field(repr=False)
    _whose: bytes
    """Namespace and base, so that no two read alike."""

    def seal_record(self, record: bytes) -> bytes:
        """What is known about the value; once alone."""
        return self.head + self._aead.encrypt(_OF_RECORD, record, self.head + self._whose)

    def open_record(self, sealed: bytes) -> bytes:
        """The record.

        Raises:
            StoreError: It was changed, or is another value's.
        """
        return self._opened(_OF_RECORD, memoryview(sealed)[HEAD:], self.head + self._whose)

    def seal(self, blob: Segments, size: int, first: int = 0) -> Iterator[bytes]:
        """A value chunk by chunk; once alone.

        Args:
            blob: Its bytes, or some of them that begin with a chunk.
            size: Bytes of all of it.
            first: The number of the first chunk.
        """
        whole = self._of_chunks(size)
        for number, chunk in enumerate(cut(blob, CHUNK), first):
            yield self._aead.encrypt(_nonce(number), chunk, whole)

    def opening(self, size: int, span: Span) -> "RangeReader":
        """For the chunks that a range is in, of a value of `size` bytes."""
        return RangeReader(self, size, span)

    def open_chunk(self, number: int, sealed: memoryview, size: int) -> bytes:
        """One chunk of a value of `size` bytes.

        Raises:
            StoreError: It was changed, or is not this one.
        """
        return self._opened(_nonce(number), sealed, self._of_chunks(size))

    def _opened(self, nonce: bytes, sealed: memoryview, bound: bytes) -> bytes:
        try:
            return self._aead.decrypt(nonce, sealed, bound)
        except InvalidTag:
            raise StoreError(CHANGED) from None

    def _of_chunks(self, size: int) -> bytes:
        return self._whose + _SIZE.pack(size)


class RangeReader:
    """A range of a value, put together of its chunks in their order."""

    def __init__(self, envelope: Envelope, size: int, span: Span) -> None:
        """Nothing is there yet.

        Args:
            envelope: The value's.
            size: Bytes of all of it.
            span: Which; within the value.
        """
        first, last = chunks_of(span)
        self._envelope, self._size, self._number, self._at = envelope, size, first, 0
        self._wanted = Span(span.start - first * CHUNK, span.length)
        self._room = bytearray(min(last * CHUNK, size) - first * CHUNK)

    def add(self, sealed: Buffer) -> None:
        """The next chunks, whole ones.

        Raises:
            StoreError: They were changed, or are not of this value or not the next.
        """
        view = memoryview(sealed)
        for begin in range(0, len(view), SEALED_CHUNK):
            chunk = self._envelope.open_chunk(self._number, view[begin : begin + SEALED_CHUNK], self._size)
            self._room[self._at : self._at + len(chunk)] = chunk
            self._number, self._at = self._number + 1, self._at + len(chunk)

    def take(self) -> Buffer:
        """The range.

        Raises:
            StoreError: Chunks are missing.
        """
        if self._at != len(self._room):
            raise StoreError(CHANGED)
        return memoryview(self._room)[self._wanted.start : self._wanted.stop].toreadonly()


class Encryptor:
    """The user's keys. Without any, what is in clear passes, and what is sealed is refused."""

    def __init__(self, policy: EncryptionPolicy | None = None) -> None:
        self._masters = {key_id(key): key for key in map(_master, policy.keys)} if policy else {}
        self.seals: Final = bool(policy and policy.enabled)
        """Whether what is new is sealed."""
        self._admits_clear = not policy or policy.clear == "read"
        self._reported: set[str] = set()

    @property
    def key_ids(self) -> frozenset[bytes]:
        """The keys that there are."""
        return frozenset(self._masters)

    def new(self, namespace: str, base: str) -> Envelope | None:
        """For a value that is to be kept; None where it stays in clear."""
        if not self.seals:
            return None
        head = MAGIC + next(iter(self._masters)) + secrets.token_bytes(_SALT)
        return self._envelope(head, namespace, base)

    def of(self, namespace: str, base: str, record: bytes) -> Envelope | None:
        """For a value that was kept, by its record or the head of that; None where it is in clear.

        Raises:
            UnknownKeyError: It is sealed with a key that there is not.
            StoreError: It is in clear, and that is refused; or is no record.
        """
        if not record.startswith(MAGIC):
            if not self._admits_clear:
                raise StoreError(_CLEAR)
            return None
        if len(record) < HEAD:
            raise StoreError(CHANGED)
        return self._envelope(bytes(record[:HEAD]), namespace, base)

    def open_record(self, namespace: str, base: str, record: bytes) -> bytes:
        """A record, sealed or in clear.

        Raises:
            StoreError: It cannot be opened.
        """
        envelope = self.of(namespace, base, record)
        return envelope.open_record(record) if envelope else record

    def report(self, error: StoreError) -> None:
        """Tell the log that values are passed over which cannot be opened: once for each reason."""
        if str(error) not in self._reported:
            self._reported.add(str(error))
            _logger.warning("Values are passed over. %s", error)

    def _envelope(self, head: bytes, namespace: str, base: str) -> Envelope:
        master = self._masters.get(head[len(MAGIC) : len(MAGIC) + _ID])
        if master is None:
            raise UnknownKeyError(_UNKNOWN)
        key = _derived(master, b"mcp-mirror value", head[-_SALT:])
        names = namespace.encode("utf-8", "surrogatepass"), base.encode("utf-8", "surrogatepass")
        return Envelope(head, AESGCM(key), _CONTEXT.pack(*map(len, names)) + b"".join(names))


def chunks_of(span: Span) -> tuple[int, int]:
    """The numbers of the chunks that a range is in, the last one excluded; none of an empty one."""
    return (span.start // CHUNK, -(-span.stop // CHUNK)) if span.length else (0, 0)


def within(size: int, span: Span | None) -> Span:
    """The part of a range that a value of `size` bytes has; all of the value for None."""
    if span is None:
        return Span(0, size)
    start = min(span.start, size)
    return Span(start, min(span.stop, size) - start)


def sealed_span(size: int, span: Span) -> Span:
    """Where the chunks of a range are in all that is sealed of a value of `size` bytes."""
    first, last = chunks_of(span)
    return Span(first * SEALED_CHUNK, min(last * SEALED_CHUNK, sealed_size(size)) - first * SEALED_CHUNK)


def sealed_size(size: int) -> int:
    """Bytes that a value takes when it is sealed."""
    return size + -(-size // CHUNK) * TAG


def key_id(key: bytes) -> bytes:
    """By what a record names its key; it tells nothing of it."""
    return _derived(key, b"mcp-mirror key id", None)[:_ID]


def _master(secret: str) -> bytes:
    """A key: 32 bytes in base64 themselves, any other text by HKDF. That makes no good key of a weak one."""
    try:
        key = base64.b64decode(secret.strip().translate(_FROM_URL), validate=True)
    except (binascii.Error, ValueError):
        key = b""
    return key if len(key) == _KEY else _derived(secret.encode(), b"mcp-mirror master key", None)


_FROM_URL: Final = str.maketrans("-_", "+/")


def _derived(secret: bytes, purpose: bytes, salt: bytes | None) -> bytes:
    return HKDF(SHA256(), _KEY, salt, purpose).derive(secret)


def _nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE, "big")
