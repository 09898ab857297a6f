"""Puts what was captured into the store, with all that is known about it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from mcp_mirror.capture import Captured
from mcp_mirror.digest import Order
from mcp_mirror.errors import StoreError
from mcp_mirror.models import Descriptor, Draft, Provenance
from mcp_mirror.policies import StorePolicy
from mcp_mirror.stores.base import Store


@dataclass(frozen=True, slots=True)
class Keeper:
    """Stores values; no path is told before its value is kept."""

    store: Store
    lifetime: StorePolicy
    clock: Callable[[], float]
    """Seconds since the epoch."""
    on_kept: Callable[[], None] = lambda: None
    """Told that there is a new value."""

    async def keep(self, namespace: str, provenance: Provenance, order: Order, captured: Captured) -> None:
        """Store the value, and before it what the same result said beside it.

        Raises:
            StoreError: It could not be kept.
        """
        if captured.value is None:
            return
        companion = order.companion_base if captured.companion else None
        if captured.companion:
            described = self._describe(order.companion_base, captured.companion, provenance)
            await self.store.put(namespace, described, (captured.companion.blob,), captured.companion.file)
        described = self._describe(order.base, captured.value, provenance)
        described = replace(described, companion=companion, envelope=captured.envelope)
        try:
            await self.store.put(namespace, described, (captured.value.blob,), captured.value.file)
        except StoreError:
            if companion:  # nobody would know of it
                await self.store.delete(namespace, companion)
            raise
        self.on_kept()

    def _describe(self, base: str, draft: Draft, provenance: Provenance) -> Descriptor:
        now = self.clock()
        return Descriptor(
            base=base,
            kind=draft.kind,
            size=len(draft.blob),
            tokens=draft.tokens,
            members=draft.members,
            created=now,
            expires=now + self.lifetime.lifetime,
            provenance=provenance,
            media_type=draft.media_type,
        )
