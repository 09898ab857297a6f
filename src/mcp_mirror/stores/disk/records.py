"""Descriptors as bytes, for stores that outlive their process. A later version may add members with defaults.

Who else may read them is `sealing`'s.
"""

from dataclasses import dataclass
from typing import Final

import msgspec

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.encryption import CHANGED, Encryptor, Envelope
from mcp_mirror.types import Descriptor

_DECODER: Final = msgspec.msgpack.Decoder(Descriptor)


@dataclass(frozen=True, slots=True)
class Records:
    """What is known about values, as it is kept: in clear or sealed."""

    encryptor: Encryptor

    def write(self, namespace: str, known: Descriptor) -> bytes:
        """A record whose value is not sealed with it, for it is gone."""
        return write_record(known, self.encryptor.new(namespace, known.base))

    def read(self, namespace: str, base: str, record: bytes) -> Descriptor:
        """What was written.

        Raises:
            StoreError: It cannot be opened.
        """
        return _DECODER.decode(self.encryptor.open_record(namespace, base, record))

    def check_empty(self, namespace: str, base: str, record: bytes) -> None:
        """Of an empty value nothing is sealed but its record, which must say that it is empty.

        Raises:
            StoreError: It does not.
        """
        if self.read(namespace, base, record).size:
            raise StoreError(CHANGED)

    def readable(self, namespace: str, base: str, record: bytes) -> Descriptor | None:
        """The same where one of many that cannot be opened is no reason to give up the others."""
        try:
            return self.read(namespace, base, record)
        except StoreError as error:
            self.encryptor.report(error)
            return None


def write_record(known: Descriptor, envelope: Envelope | None) -> bytes:
    """A record: sealed as its value is, else in clear."""
    record = msgspec.msgpack.encode(known, enc_hook=dict)
    return envelope.seal_record(record) if envelope else record
