"""Encrypted values open only with the matching key and context."""

import base64
import secrets
from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from mcp_mirror.errors import StoreError
from mcp_mirror.settings.store import EncryptionPolicy
from mcp_mirror.stores.encryption import (
    CHUNK,
    HEAD,
    SEALED_CHUNK,
    TAG,
    Encryptor,
    Envelope,
    RangeReader,
    clamp_span,
    sealed_size,
    sealed_span,
)
from mcp_mirror.types import Buffer, Span

SECRET, OTHER = "an example of a secret of 32 characters", "another example of a secret of 32 characters"
SIZES = (0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, 3 * CHUNK + 7, 30 * CHUNK + 5)


def encryptor(*keys: str, **more: object) -> Encryptor:
    return Encryptor(EncryptionPolicy(keys or (SECRET,), **more))  # type: ignore[arg-type]  # as a test says


def sealing(namespace: str = "me", base: str = "t-1") -> Envelope:
    envelope = encryptor().new_envelope(namespace, base)
    assert envelope
    return envelope


def opened(envelope: Envelope, sealed: Buffer, size: int, span: Span | None = None) -> bytes:
    wanted = clamp_span(size, span)
    where, opening = sealed_span(size, wanted), RangeReader(envelope, size, wanted)
    opening.add(memoryview(sealed)[where.start : where.stop])
    return bytes(opening.take())


@pytest.mark.parametrize("size", SIZES)
def test_a_value_in_any_segments_comes_back_in_any_range(size: int) -> None:
    dice, envelope = Random(size), sealing()  # noqa: S311  # no secret
    blob = dice.randbytes(size)
    edges = sorted({0, size, *(dice.randrange(size + 1) for _ in range(9))})
    sealed = b"".join(envelope.seal(tuple(memoryview(blob)[a:b] for a, b in pairwise(edges)), size))
    assert len(sealed) == sealed_size(size)
    assert opened(envelope, sealed, size) == blob
    spans = [Span(0, 0), Span(size, 9), Span(0, 9 * size), Span(CHUNK - 1, 2), Span(CHUNK, CHUNK), Span(size + 5, 1)]
    spans += [Span(at := dice.randrange(size + 1), dice.randrange(size - at + 1)) for _ in range(20)]
    for span in spans:
        assert opened(envelope, sealed, size, span) == blob[span.start : span.stop]
        assert sealed_span(size, clamp_span(size, span)).length <= (span.length // CHUNK + 2) * SEALED_CHUNK


def test_nothing_is_sealed_alike_twice() -> None:
    blob = bytes(CHUNK)
    sealed = [b"".join(sealing().seal((blob, blob), 2 * CHUNK)) for _ in range(2)]
    chunks = {one[at : at + 64] for one in sealed for at in (0, SEALED_CHUNK)}
    assert len(chunks) == 4
    assert len({sealing().head for _ in range(100)}) == 100


BLOB = secrets.token_bytes(3 * CHUNK + 100)
SIZE = len(BLOB)
ENVELOPE = sealing()
SEALED = b"".join(ENVELOPE.seal((BLOB,), SIZE))
RECORD = ENVELOPE.seal_record(b"what is known")


def chunk(number: int) -> bytes:
    return SEALED[number * SEALED_CHUNK : (number + 1) * SEALED_CHUNK]


def flipped(data: bytes, at: int) -> bytes:
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


TAMPERED = {
    "a byte": flipped(SEALED, 5),
    "a tag": flipped(SEALED, CHUNK + 3),
    "the last byte": flipped(SEALED, len(SEALED) - 1),
    "two chunks exchanged": chunk(1) + chunk(0) + chunk(2) + chunk(3),
    "a chunk twice": chunk(0) + chunk(0) + chunk(2) + chunk(3),
    "a chunk left out": chunk(0) + chunk(2) + chunk(3),
    "the last chunk left out": chunk(0) + chunk(1) + chunk(2),
    "the end cut off": SEALED[:-1],
    "a tag cut off": SEALED[: 3 * SEALED_CHUNK + TAG - 1],
    "all cut off": b"",
    "a whole other value": b"".join(sealing().seal((BLOB,), SIZE)),
}


@pytest.mark.parametrize("sealed", TAMPERED.values(), ids=TAMPERED)
def test_changed_bytes_do_not_open(sealed: bytes) -> None:
    with pytest.raises(StoreError, match="was changed or moved outside the gateway"):
        opened(ENVELOPE, sealed, SIZE)


@pytest.mark.parametrize("size", [SIZE - 1, SIZE - 100, 3 * CHUNK, CHUNK, 1])
def test_a_value_does_not_open_as_a_shorter_one(size: int) -> None:
    with pytest.raises(StoreError, match="changed or moved"):
        opened(ENVELOPE, SEALED[: sealed_size(size)], size)


@pytest.mark.parametrize(
    ("namespace", "base"),
    [("you", "t-1"), ("me", "t-2"), ("m", "et-1"), ("met", "-1"), ("", "met-1"), ("me\0", "t-1"), ("ME", "t-1")],
)
def test_records_of_other_owners_or_values_do_not_open(namespace: str, base: str) -> None:
    stranger = encryptor().find_envelope(namespace, base, RECORD)
    assert stranger
    with pytest.raises(StoreError, match="changed or moved"):
        stranger.open_record(RECORD)
    with pytest.raises(StoreError, match="changed or moved"):
        opened(stranger, SEALED, SIZE)
    assert encryptor().open_record("me", "t-1", RECORD) == b"what is known"


@pytest.mark.parametrize("at", [1 + 8, HEAD - 1, HEAD, len(RECORD) - 1])
def test_a_record_that_was_changed_does_not_open(at: int) -> None:
    with pytest.raises(StoreError, match="changed or moved"):
        encryptor().open_record("me", "t-1", flipped(RECORD, at))


@pytest.mark.parametrize("length", [HEAD, HEAD - 1, 1, len(RECORD) - 1])
def test_a_record_that_was_cut_does_not_open(length: int) -> None:
    with pytest.raises(StoreError, match="changed or moved"):
        encryptor().open_record("me", "t-1", RECORD[:length])


def test_chunks_and_records_cannot_replace_each_other() -> None:
    with pytest.raises(StoreError, match="changed or moved"):
        ENVELOPE.open_record(ENVELOPE.head + chunk(0))
    with pytest.raises(StoreError, match="changed or moved"):
        opened(ENVELOPE, RECORD[HEAD:], len(b"what is known"))


def test_the_first_key_seals_and_all_open() -> None:
    after = encryptor(OTHER, SECRET)
    assert after.open_record("me", "t-1", RECORD) == b"what is known"
    envelope = after.new_envelope("me", "t-2")
    assert envelope
    record = envelope.seal_record(b"new")
    assert encryptor(OTHER).open_record("me", "t-2", record) == b"new"
    with pytest.raises(StoreError, match=r"not in `store.encryption.keys`"):
        encryptor().open_record("me", "t-2", record)
    with pytest.raises(StoreError, match=r"not in `store.encryption.keys`"):
        Encryptor().open_record("me", "t-2", record)


@pytest.mark.parametrize("written", [base64.b64encode, base64.urlsafe_b64encode])
def test_a_key_may_be_given_in_base64(written: Callable[[bytes], bytes]) -> None:
    key = b"\xfb\xff" * 16
    assert encryptor(written(key).decode()).key_ids == encryptor(base64.b64encode(key).decode()).key_ids
    others = [SECRET, key.hex(), base64.b64encode(key + b"x").decode(), base64.b64encode(key).decode()[:-1]]
    assert len({next(iter(encryptor(one).key_ids)) for one in (base64.b64encode(key).decode(), *others)}) == 5


def test_clear_records_are_accepted_or_refused() -> None:
    assert Encryptor().new_envelope("me", "t-1") is None
    assert encryptor(enabled=False).new_envelope("me", "t-1") is None
    assert encryptor(enabled=False).open_record("me", "t-1", RECORD) == b"what is known"
    for one in (Encryptor(), encryptor()):
        assert one.open_record("me", "t-1", b"\x8cclear") == b"\x8cclear"
    with pytest.raises(StoreError, match=r"is not encrypted, and `store.encryption.clear` is refuse"):
        encryptor(clear="refuse").open_record("me", "t-1", b"\x8cclear")


def test_a_key_may_have_bytes_that_are_not_utf8() -> None:
    key = "pass\udce9word" * 4
    envelope = encryptor(key).new_envelope("me", "t-1")
    assert envelope is not None
    assert encryptor(key).open_record("me", "t-1", envelope.seal_record(b"x")) == b"x"
