"""Descriptors as bytes, in clear or encrypted. Later versions may add members with defaults."""

from dataclasses import dataclass
from typing import Final

import msgspec

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.encryption import CHANGED, Encryptor, Envelope
from mcp_mirror.types import Descriptor

_DECODER: Final = msgspec.msgpack.Decoder(Descriptor)


@dataclass(frozen=True, slots=True)
class Records:
    """Writes and reads descriptor records."""

    encryptor: Encryptor

    def write(self, namespace: str, known: Descriptor) -> bytes:
        """The record of a tombstone, which has its own envelope."""
        return write_record(known, self.encryptor.new_envelope(namespace, known.base))

    def read(self, namespace: str, base: str, record: bytes) -> Descriptor:
        """Decode a record.

        Raises:
            StoreError: The record cannot be decrypted.
        """
        return _DECODER.decode(self.encryptor.open_record(namespace, base, record))

    def check_empty(self, namespace: str, base: str, record: bytes) -> None:
        """Check that the authenticated record of an empty value has size 0, since there is no chunk to check.

        Raises:
            StoreError: The record has another size or cannot be decrypted.
        """
        if self.read(namespace, base, record).size:
            raise StoreError(CHANGED)

    def readable(self, namespace: str, base: str, record: bytes) -> Descriptor | None:
        """As `read`, but report a record that cannot be decrypted in the log, and return None."""
        try:
            return self.read(namespace, base, record)
        except StoreError as error:
            self.encryptor.report(error)
            return None


def write_record(known: Descriptor, envelope: Envelope | None) -> bytes:
    """Encode a record, encrypted with the envelope of its value, or in clear."""
    record = msgspec.msgpack.encode(known, enc_hook=dict)
    return envelope.seal_record(record) if envelope else record
