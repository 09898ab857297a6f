"""Descriptors as bytes, for stores that outlive their process. A later version may add members with defaults."""

from typing import Final

import msgspec

from mcp_mirror.models import Descriptor

_DECODER: Final = msgspec.msgpack.Decoder(Descriptor)


def pack(descriptor: Descriptor) -> bytes:
    """A descriptor as MessagePack."""
    return msgspec.msgpack.encode(descriptor, enc_hook=dict)


def unpack(packed: bytes) -> Descriptor:
    """The descriptor that was packed."""
    return _DECODER.decode(packed)
