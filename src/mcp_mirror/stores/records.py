"""Records: what a store writes about a value beside its bytes, as MessagePack, in clear or encrypted.

Later versions may add members with defaults.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.encryption import Encryptor, Envelope
from mcp_mirror.types import ArrayIndex, Descriptor, Kind, Member, Provenance, Span

_DIGEST_CHARACTERS: Final = 64
_NO_MEMBERS: Final = b"{}"
_KINDS: Final[tuple[Kind, ...]] = ("object", "array", "text", "number", "boolean", "null", "binary")
"""Records contain the places of kinds: add new kinds at the end."""
_UNREADABLE: Final = (
    "The record of a stored value cannot be read: it is damaged, or a later version of mcp-mirror wrote it. Call the "
    "tool that created it again."
)
_DEFAULTS: Final[tuple[Any, ...]] = (None, "", None, None, None, True, {}, _NO_MEMBERS, (), ())
"""The defaults at the end of a compact descriptor, the last first."""


class RecordCodec(msgspec.Struct, frozen=True):
    """Encodes and decodes descriptors, which may be encrypted."""

    encryptor: Encryptor

    def encode(self, known: Descriptor, envelope: Envelope | None) -> bytes:
        """Encode a descriptor, encrypted with an envelope, or in clear.

        Each record needs its own envelope: that of the value, or a new one for the record of a removed value.
        """
        encoded = pack_descriptor(known)
        return envelope.seal_record(encoded) if envelope else encoded

    def decode(self, namespace: str, base: str, encoded: bytes) -> Descriptor:
        """Decode a record; StoreError if it cannot be decrypted or decoded."""
        return self._decode(namespace, base, encoded, unpack_descriptor)

    def decode_brief(self, namespace: str, base: str, encoded: bytes) -> Descriptor | None:
        """Decode one of many records, without its members. If that is not possible, log it, and return None."""
        try:
            return self._decode(namespace, base, encoded, unpack_brief)
        except StoreError as error:
            self.encryptor.report(error)
            return None

    def _decode(
        self, namespace: str, base: str, encoded: bytes, unpack: Callable[[str, bytes], Descriptor]
    ) -> Descriptor:
        try:
            return unpack(base, self.encryptor.open_record(namespace, base, encoded))
        except (msgspec.MsgspecError, LookupError):  # such as a kind that this version does not know
            raise StoreError(_UNREADABLE) from None


class _CompactDescriptor(msgspec.Struct, array_like=True):
    """A descriptor without its base, which a store has beside the record, and without the names of its members."""

    kind: int
    """The place of the kind in `_KINDS`."""
    size: int
    tokens: int
    created: float
    expires: float
    upstream: str
    tool: str
    arguments_digest: Any
    """The bytes of 64 hexadecimal digits, else the text; msgspec has no type for both."""
    members: tuple[Member, ...] = ()
    inputs: tuple[str, ...] = ()
    other_members: bytes = _NO_MEMBERS
    labels: Mapping[str, str] = msgspec.field(default_factory=dict)
    preview: bool = True
    media_type: str | None = None
    companion: str | None = None
    array: tuple[int, int, int, tuple[int, ...], tuple[int, ...]] | None = None
    """Start, bytes and items of the large array, and the indices and offsets of some of its items."""
    traceparent: str = ""
    text_size: int | None = None


class _BriefDescriptor(_CompactDescriptor):
    """A descriptor whose members are not decoded: a page of values may have a million of them."""

    members: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]
    array: msgspec.Raw = msgspec.Raw()  # type: ignore[assignment]


_compact_decoder: Final = msgspec.msgpack.Decoder(_CompactDescriptor)
_brief_decoder: Final = msgspec.msgpack.Decoder(_BriefDescriptor)


def pack_descriptor(known: Descriptor) -> bytes:
    """Encode a descriptor without its base and without the defaults at its end."""
    origin = known.provenance
    compact = [
        _KINDS.index(known.kind),
        known.size,
        known.tokens,
        known.created,
        known.expires,
        origin.upstream,
        origin.tool,
        _pack_digest(origin.arguments_digest),
        known.members,
        origin.inputs,
        known.other_members,
        dict(known.labels),
        known.preview,
        known.media_type,
        known.companion,
        known.array and (*known.array.span, known.array.length, known.array.indices, known.array.offsets),
        origin.traceparent,
        known.text_size,
    ]
    for default in _DEFAULTS:
        if compact[-1] != default:
            break
        compact.pop()
    return msgspec.msgpack.encode(compact)


def unpack_descriptor(base: str, encoded: bytes) -> Descriptor:
    """Decode the descriptor of a base."""
    compact = _compact_decoder.decode(encoded)
    array = compact.array and ArrayIndex(Span(*compact.array[:2]), *compact.array[2:])
    return _build_descriptor(base, compact, members=compact.members, other_members=compact.other_members, array=array)


def unpack_brief(base: str, encoded: bytes) -> Descriptor:
    """Decode the descriptor of a base without members, other members and array; see `keep_origin`."""
    return _build_descriptor(base, _brief_decoder.decode(encoded), members=())


def _build_descriptor(base: str, compact: _CompactDescriptor, **parts: Any) -> Descriptor:
    digest = compact.arguments_digest
    return Descriptor(
        base=base,
        kind=_KINDS[compact.kind],
        size=compact.size,
        tokens=compact.tokens,
        created=compact.created,
        expires=compact.expires,
        provenance=Provenance(
            compact.upstream,
            compact.tool,
            digest.hex() if isinstance(digest, bytes) else digest,
            compact.inputs,
            compact.traceparent,
        ),
        media_type=compact.media_type,
        labels=compact.labels,
        companion=compact.companion,
        preview=compact.preview,
        text_size=compact.text_size,
        **parts,
    )


def _pack_digest(digest: str) -> bytes | str:
    """A digest in half its characters; any other text as it is."""
    try:
        packed = bytes.fromhex(digest)
    except ValueError:
        return digest
    return packed if len(digest) == _DIGEST_CHARACTERS and packed.hex() == digest else digest
