"""Records: what a store writes about a value beside its bytes, as MessagePack, in clear or encrypted.

Later versions may add members with defaults.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

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
        encoded = msgspec.msgpack.encode(record, enc_hook=dict)
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
