"""Counts the tokens that are sent or kept out of a context, by namespace, and adds the sums to the store.

Calls do not wait for the store: the counts go there every few seconds and at shutdown. A killed gateway loses the
counts of the last seconds. If the store fails, the gateway tries again later.
"""

import logging
from typing import Final

import anyio
import msgspec

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.base import Store
from mcp_mirror.types import StoreStats, Traffic

_logger = logging.getLogger(__name__)

_PAUSE: Final = 5.0
"""Seconds between two writes to the store."""
_NO_TRAFFIC: Final = Traffic()


class UsageCounter(msgspec.Struct):
    """Counts tokens; keeps the counts that are not in the store yet."""

    store: Store
    _pending: dict[str, Traffic] = msgspec.field(default_factory=dict)

    def add(self, namespace: str, sent: int, kept_out: int) -> None:
        """Count the tokens of a reply."""
        pending = self._pending.get(namespace, _NO_TRAFFIC)
        self._pending[namespace] = Traffic(pending.sent + sent, pending.kept_out + kept_out)

    async def stats(self, namespace: str) -> StoreStats:
        """Return the statistics of a namespace, with all tokens that were counted until now."""
        stats = await self.store.stats(namespace)
        return msgspec.structs.replace(stats, traffic=stats.traffic.plus(self._pending.get(namespace, _NO_TRAFFIC)))

    async def flush(self) -> None:
        """Add the counts to the store; if it fails, keep them for the next time."""
        for namespace in tuple(self._pending):
            traffic = self._pending.pop(namespace)
            try:
                with anyio.CancelScope(shield=True):  # a cancelled write could count the tokens twice
                    await self.store.count(namespace, traffic)
            except StoreError as error:
                _logger.info("Token counts could not be stored and are stored later. %s", error)
                self.add(namespace, traffic.sent, traffic.kept_out)
                return

    async def close(self) -> None:
        """Add the counts to the store at the end of the gateway, and report those that it does not accept."""
        await self.flush()
        if self._pending:
            _logger.warning("Token counts are lost: the store still failed when the gateway ended.")

    async def run(self) -> None:
        """Flush every few seconds, until cancelled."""
        while True:
            await anyio.sleep(_PAUSE)
            await self.flush()
