"""Counts the tokens that are sent and kept out, by namespace, and has the store keep the sums.

No call waits for it: what was counted goes to the store every few seconds and at the end. A gateway that is killed
takes the last seconds' with it; what a store does not take now is offered to it again.
"""

import logging
from dataclasses import dataclass, field, replace
from typing import Final

import anyio

from mcp_mirror.errors import StoreError
from mcp_mirror.stores.base import Store
from mcp_mirror.types import StoreStats, Traffic

_logger = logging.getLogger(__name__)

_PAUSE: Final = 5.0
"""Seconds between two deliveries to the store: what a gateway that is killed takes with it."""


@dataclass(slots=True)
class UsageCounter:
    """What was counted and is not in the store yet."""

    store: Store
    pause: float = _PAUSE
    _pending: dict[str, Traffic] = field(default_factory=dict)

    def add(self, namespace: str, sent: int, kept_out: int) -> None:
        """Count an answer."""
        self._pending[namespace] = self._pending.get(namespace, Traffic()).plus(sent, kept_out)

    async def stats(self, namespace: str) -> StoreStats:
        """How much is kept, and the tokens of all answers until now.

        Raises:
            StoreError: The store cannot tell.
        """
        stats = await self.store.stats(namespace)
        pending = self._pending.get(namespace, Traffic())
        return replace(stats, traffic=stats.traffic.plus(pending.sent, pending.kept_out))

    async def deliver(self) -> None:
        """Bring to the store what is not there yet; what it does not take stays here, with all that comes after it."""
        for namespace in tuple(self._pending):
            traffic = self._pending.pop(namespace)
            try:
                with anyio.CancelScope(shield=True):  # so that it is known whether it was counted
                    await self.store.count(namespace, traffic)
            except StoreError as error:
                _logger.info("Tokens are counted later. %s", error)
                self.add(namespace, traffic.sent, traffic.kept_out)
                return

    async def follow(self) -> None:
        """Deliver now and then, until cancelled."""
        while True:
            await anyio.sleep(self.pause)
            await self.deliver()
