"""Encryption of values and descriptors at rest: AES-256-GCM, bound to the namespace and the base.

Each value has its own key. HKDF-SHA256 (RFC 5869) derives it from a configured key and 32 random bytes, so that a nonce
is never used twice with one key. The record of a value begins with a head in clear:

    magic (1)   id of the configured key (8)   random bytes (32)   | encrypted record, its tag (16)

The bytes of the value are encrypted in chunks of 64 KiB, each with its own tag, so that reading a range costs only its
chunks. The nonce of a chunk is its number; the nonce of the record is the largest one. The namespace, the base and, for
chunks, the size of the value are authenticated too, so that moved, truncated, reordered or foreign chunks fail.
Replacing a value by an older copy of the same value, and removing a value, are not detected.
"""

import base64
import logging
import secrets
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import anyio.to_thread
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from mcp_mirror.errors import StoreError
from mcp_mirror.security.redaction import encode_secret
from mcp_mirror.settings.store import EncryptionPolicy
from mcp_mirror.stores.base import cut_into_pieces
from mcp_mirror.stores.event_log import EventLog, SumKey, Sums
from mcp_mirror.types import Buffer, Segments, Span

_logger = logging.getLogger(__name__)

CHUNK: Final = 64 << 10
"""Bytes of a value that are encrypted together."""
TAG: Final = 16
SEALED_CHUNK: Final = CHUNK + TAG

MAGIC: Final = b"\xc1"
"""The first byte of an encrypted record. MessagePack does not use it, so no record in clear begins with it."""
_KEY: Final = 32
_ID: Final = 8
_SALT: Final = 32
HEAD: Final = len(MAGIC) + _ID + _SALT
"""Bytes of a record with the parameters for decryption."""
_NONCE: Final = 12
_OF_RECORD: Final = b"\xff" * _NONCE
_CONTEXT: Final = struct.Struct(">QQ")
_SIZE: Final = struct.Struct(">Q")

_UNKNOWN: Final = (
    "A stored value is encrypted with a key that is not in `store.encryption.keys`. Ask the operator to add that key "
    "at the end of the list."
)
CHANGED: Final = (
    "A stored value was changed or moved outside the gateway and cannot be decrypted. Call the tool that created it "
    "again."
)
_CLEAR: Final = (
    "A stored value is not encrypted, and `store.encryption.clear` is refuse. Call the tool that created it again."
)
_BASE: Final = "event log"
"""In place of a base, which has no spaces, in what the encryption authenticates."""


@dataclass(frozen=True, slots=True)
class Envelope:
    """Encrypts and decrypts one value and its record.

    Decryption raises `StoreError` for data that was changed, or belongs to another value or place.
    """

    head: bytes
    _aead: AESGCM = field(repr=False)
    _identity: bytes
    """Namespace and base, in an unambiguous encoding."""

    def seal_record(self, record: bytes) -> bytes:
        """Encrypt the record. Call it only once."""
        return self.head + self._aead.encrypt(_OF_RECORD, record, self.head + self._identity)

    def open_record(self, sealed: bytes) -> bytes:
        """Decrypt the record."""
        return self._decrypt(_OF_RECORD, memoryview(sealed)[HEAD:], self.head + self._identity)

    def seal(self, blob: Segments, size: int, first: int = 0) -> Iterator[bytes]:
        """Encrypt chunks of a value of `size` bytes; `blob` begins at chunk `first`. Call it once for each chunk."""
        whole = self._build_chunk_context(size)
        for number, chunk in enumerate(cut_into_pieces(blob, CHUNK), first):
            yield self._aead.encrypt(_encode_nonce(number), chunk, whole)

    def open_chunk(self, number: int, sealed: memoryview, size: int) -> bytes:
        """Decrypt one chunk of a value of `size` bytes."""
        return self._decrypt(_encode_nonce(number), sealed, self._build_chunk_context(size))

    def _decrypt(self, nonce: bytes, sealed: memoryview, context: bytes) -> bytes:
        try:
            return self._aead.decrypt(nonce, sealed, context)
        except InvalidTag:
            raise StoreError(CHANGED) from None

    def _build_chunk_context(self, size: int) -> bytes:
        return self._identity + _SIZE.pack(size)


class RangeReader:
    """Assembles a range of a value from its encrypted chunks; StoreError if they were changed, or some are missing."""

    def __init__(self, envelope: Envelope, size: int, span: Span) -> None:
        """Begin with the first chunk of a range of a value of `size` bytes."""
        first, last = find_chunks(span)
        self._envelope, self._size, self._number, self._at = envelope, size, first, 0
        self._wanted = Span(span.start - first * CHUNK, span.length)
        self._room = bytearray(min(last * CHUNK, size) - first * CHUNK)

    def add(self, sealed: Buffer) -> None:
        """Decrypt and append the next complete chunks."""
        view = memoryview(sealed)
        for begin in range(0, len(view), SEALED_CHUNK):
            chunk = self._envelope.open_chunk(self._number, view[begin : begin + SEALED_CHUNK], self._size)
            self._room[self._at : self._at + len(chunk)] = chunk
            self._number, self._at = self._number + 1, self._at + len(chunk)

    def take(self) -> Buffer:
        """Return the range."""
        if self._at != len(self._room):
            raise StoreError(CHANGED)
        return memoryview(self._room)[self._wanted.start : self._wanted.stop].toreadonly()


class Encryptor:
    """Creates envelopes with the configured keys. Without keys, only values in clear can be read."""

    def __init__(self, policy: EncryptionPolicy | None = None) -> None:
        self._masters = {key_id(key): key for key in map(_derive_master_key, policy.keys)} if policy else {}
        self.seals: Final = bool(policy and policy.enabled)
        """Whether new values are encrypted."""
        self._admits_clear = not policy or policy.clear == "read"
        self._reported: set[str] = set()

    @property
    def key_ids(self) -> frozenset[bytes]:
        """The ids of the configured keys."""
        return frozenset(self._masters)

    def new_envelope(self, namespace: str, base: str) -> Envelope | None:
        """The envelope for a new value; None if new values stay in clear."""
        if not self.seals:
            return None
        head = MAGIC + next(iter(self._masters)) + secrets.token_bytes(_SALT)
        return self._build_envelope(head, namespace, base)

    def find_envelope(self, namespace: str, base: str, record: bytes) -> Envelope | None:
        """The envelope of a stored value, from its record or the record's head; None if the value is in clear.

        StoreError if its key is not configured, the record is malformed, or it is in clear and that is refused.
        """
        if not record.startswith(MAGIC):
            if not self._admits_clear:
                raise StoreError(_CLEAR)
            return None
        if len(record) < HEAD:
            raise StoreError(CHANGED)
        return self._build_envelope(bytes(record[:HEAD]), namespace, base)

    def open_record(self, namespace: str, base: str, record: bytes) -> bytes:
        """Decrypt a record, or return a record in clear."""
        envelope = self.find_envelope(namespace, base, record)
        return envelope.open_record(record) if envelope else record

    def report(self, error: StoreError) -> None:
        """Log that unreadable values are skipped, once for each reason."""
        if str(error) not in self._reported:
            self._reported.add(str(error))
            _logger.warning("Unreadable values are skipped. %s", error)

    def _build_envelope(self, head: bytes, namespace: str, base: str) -> Envelope:
        master = self._masters.get(head[len(MAGIC) : len(MAGIC) + _ID])
        if master is None:
            raise StoreError(_UNKNOWN)
        key = _derive_key(master, b"mcp-mirror value", head[-_SALT:])
        names = namespace.encode("utf-8", "surrogatepass"), base.encode("utf-8", "surrogatepass")
        return Envelope(head, AESGCM(key), _CONTEXT.pack(*map(len, names)) + b"".join(names))


def find_chunks(span: Span) -> tuple[int, int]:
    """The first number of a range's chunks and the number after the last; (0, 0) for an empty range."""
    return (span.start // CHUNK, -(-span.stop // CHUNK)) if span.length else (0, 0)


def clamp_span(size: int, span: Span | None) -> Span:
    """The part of a range within a value of `size` bytes; the whole value for None."""
    if span is None:
        return Span(0, size)
    start = min(span.start, size)
    return Span(start, min(span.stop, size) - start)


def sealed_span(size: int, span: Span) -> Span:
    """The span of a range's chunks in the encrypted bytes of a value of `size` bytes."""
    first, last = find_chunks(span)
    return Span(first * SEALED_CHUNK, min(last * SEALED_CHUNK, sealed_size(size)) - first * SEALED_CHUNK)


def sealed_size(size: int) -> int:
    """The encrypted size of a value."""
    return size + -(-size // CHUNK) * TAG


def key_id(key: bytes) -> bytes:
    """The id of a key in records. It reveals nothing about the key."""
    return _derive_key(key, b"mcp-mirror key id", None)[:_ID]


def _derive_master_key(secret: str) -> bytes:
    """A master key: 32 bytes from base64, or derived by HKDF from any other text. A weak text stays weak."""
    try:
        key = base64.b64decode(secret.strip().translate(_FROM_URL), validate=True)
    except ValueError:
        key = b""
    return key if len(key) == _KEY else _derive_key(encode_secret(secret), b"mcp-mirror master key", None)


_FROM_URL: Final = str.maketrans("-_", "+/")


def _derive_key(secret: bytes, purpose: bytes, salt: bytes | None) -> bytes:
    return HKDF(SHA256(), _KEY, salt, purpose).derive(secret)


def _encode_nonce(number: int) -> bytes:
    return number.to_bytes(_NONCE, "big")


class EncryptedEventLog:
    """An `EventLog` that encrypts the entries of another one, and not its sums. Without keys, entries stay in clear."""

    def __init__(self, log: EventLog, encryptor: Encryptor) -> None:
        self._log, self._encryptor = log, encryptor
        self.sums, self.daily_calls, self.namespaces = log.sums, log.daily_calls, log.namespaces

    async def append(self, namespace: str, entries: Sequence[bytes], sums: Mapping[SumKey, Sums], *, keep: int) -> None:
        if self._encryptor.seals and entries:
            entries = await anyio.to_thread.run_sync(self._seal, namespace, entries)
        await self._log.append(namespace, entries, sums, keep=keep)

    async def read(
        self, namespace: str, *, before: str | None = None, after: str | None = None, limit: int
    ) -> tuple[tuple[str, bytes], ...]:
        """The newest entries with their cursors, without those that cannot be decrypted."""
        opened: list[tuple[str, bytes]] = []
        is_complete = False
        while len(opened) < limit and not is_complete:
            found = await self._log.read(namespace, before=before, after=after, limit=limit)
            opened += await anyio.to_thread.run_sync(self._open, namespace, found)
            is_complete, before = len(found) < limit, found[-1][0] if found else before
        return tuple(opened[:limit])

    def _seal(self, namespace: str, entries: Sequence[bytes]) -> tuple[bytes, ...]:
        envelopes = ((self._encryptor.new_envelope(namespace, _BASE), entry) for entry in entries)
        return tuple(envelope.seal_record(entry) if envelope else entry for envelope, entry in envelopes)

    def _open(self, namespace: str, found: Sequence[tuple[str, bytes]]) -> list[tuple[str, bytes]]:
        opened: list[tuple[str, bytes]] = []
        for cursor, entry in found:
            try:
                opened.append((cursor, self._encryptor.open_record(namespace, _BASE, entry)))
            except StoreError as error:
                self._encryptor.report(error)
        return opened
