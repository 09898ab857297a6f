"""An event log with encrypted entries. Namespaces, and the sums with their tools and upstreams, stay in clear."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final

import anyio.to_thread

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.encryption import Encryptor
from mcp_mirror.stores.event_log import EventLog, SumKey, Sums

_BASE: Final = "event log"
"""In place of a base, which has no spaces, in what the encryption authenticates."""


class EncryptedEventLog:
    """An `EventLog` that encrypts entries for another one. Without keys it passes them on in clear."""

    def __init__(self, log: EventLog, encryptor: Encryptor) -> None:
        self._log, self._encryptor = log, encryptor

    async def append(self, namespace: str, entries: Sequence[bytes], sums: Mapping[SumKey, Sums], *, keep: int) -> None:
        """Append entries and add to the sums."""
        if self._encryptor.seals and entries:
            entries = await anyio.to_thread.run_sync(self._seal, namespace, entries)
        await self._log.append(namespace, entries, sums, keep=keep)

    async def read(
        self, namespace: str, *, before: str | None = None, after: str | None = None, limit: int
    ) -> tuple[tuple[str, bytes], ...]:
        """The newest entries with their cursors, without those that cannot be decrypted."""
        found = await self._log.read(namespace, before=before, after=after, limit=limit)
        return await anyio.to_thread.run_sync(partial(self._open, namespace, found))

    async def sums(self, namespace: str, since: float) -> Mapping[SumKey, Sums]:
        """The sums of a namespace."""
        return await self._log.sums(namespace, since)

    async def daily_calls(self, namespace: str, since: float) -> Mapping[int, int]:
        """The number of calls by day."""
        return await self._log.daily_calls(namespace, since)

    async def namespaces(self) -> frozenset[str]:
        """The namespaces with entries or sums."""
        return await self._log.namespaces()

    def _seal(self, namespace: str, entries: Sequence[bytes]) -> tuple[bytes, ...]:
        envelopes = ((self._encryptor.new_envelope(namespace, _BASE), entry) for entry in entries)
        return tuple(envelope.seal_record(entry) if envelope else entry for envelope, entry in envelopes)

    def _open(self, namespace: str, found: Sequence[tuple[str, bytes]]) -> tuple[tuple[str, bytes], ...]:
        opened: list[tuple[str, bytes]] = []
        for cursor, entry in found:
            try:
                opened.append((cursor, self._encryptor.open_record(namespace, _BASE, entry)))
            except StoreError as error:
                self._encryptor.report(error)
        return tuple(opened)
