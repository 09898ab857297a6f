"""Records: what a store writes about a value beside its bytes, as MessagePack, in clear or encrypted.

Later versions may add members with defaults.
"""

from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Any, Generic, TypeVar

import msgspec

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.encryption import Encryptor, Envelope

T = TypeVar("T")


@dataclass(frozen=True)
class RecordCodec(Generic[T]):
    """Encodes and decodes records of one type."""

    type: type[T]
    encryptor: Encryptor

    def encode(self, record: T, envelope: Envelope | None) -> bytes:
        """Encode a record, encrypted with an envelope, or in clear.

        Args:
            record: The record.
            envelope: The envelope of the record's value. The record of a removed value needs a new one.
        """
        encoded = msgspec.msgpack.encode(_omit_defaults(record) if is_dataclass(record) else record, enc_hook=dict)
        return envelope.seal_record(encoded) if envelope else encoded

    def decode(self, namespace: str, base: str, encoded: bytes) -> T:
        """Decode a record.

        Raises:
            StoreError: The record cannot be decrypted.
        """
        return msgspec.msgpack.decode(self.encryptor.open_record(namespace, base, encoded), type=self.type)

    def decode_or_report(self, namespace: str, base: str, encoded: bytes) -> T | None:
        """Decode one of many records. If it cannot be decrypted, log that, and return None."""
        try:
            return self.decode(namespace, base, encoded)
        except StoreError as error:
            self.encryptor.report(error)
            return None


def _omit_defaults(record: Any) -> dict[str, Any]:
    """The members of a dataclass that differ from their defaults; decoding adds the others."""
    members: dict[str, Any] = {}
    for one in fields(record):
        value = getattr(record, one.name)
        default = one.default_factory() if one.default_factory is not MISSING else one.default
        if default is MISSING or value != default:
            members[one.name] = value
    return members
