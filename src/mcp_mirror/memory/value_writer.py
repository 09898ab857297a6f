"""Puts what was captured into the store, with all that is known about it."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

import anyio.to_thread

from mcp_mirror.core.capture import Captured, CaptureRules, Estimate, capture
from mcp_mirror.core.result_processing import MAX_INDEXED_KEYS, ProcessingOptions
from mcp_mirror.errors import StoreError
from mcp_mirror.settings.policies import StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.types import Descriptor, Draft, Provenance

NONE: Final[Mapping[str, str]] = MappingProxyType({})

_ALL: Final = CaptureRules("always", inline_budget=0, error_budget=0, wrapped=False)


@dataclass(frozen=True, slots=True)
class ValueWriter:
    """Stores values; no path is told before its value is kept."""

    store: Store
    lifetime: StorePolicy
    clock: Callable[[], float]
    """Seconds since the epoch."""
    on_kept: Callable[[str], None] = lambda _namespace: None
    """Told whose new value there is."""

    async def keep(
        self,
        namespace: str,
        provenance: Provenance,
        order: ProcessingOptions,
        captured: Captured,
        labels: Mapping[str, str] = NONE,
    ) -> None:
        """Store the value, and before it what the same result said beside it.

        Args:
            namespace: Whose they are.
            provenance: Where they come from.
            order: Under which bases.
            captured: They themselves.
            labels: Of both; without any they are taken for the worst.

        Raises:
            StoreError: It could not be kept.
        """
        if captured.value is None:
            return
        companion = order.companion_base if captured.companion else None
        if captured.companion:
            described = self._describe(order.companion_base, captured.companion, provenance, labels)
            await self.store.put(namespace, described, (captured.companion.blob,), captured.companion.file)
        described = self._describe(order.base, captured.value, provenance, labels)
        described = replace(described, companion=companion, envelope=captured.envelope)
        try:
            await self.store.put(namespace, described, (captured.value.blob,), captured.value.file)
        except StoreError:
            if companion:  # nobody would know of it
                await self.store.delete(namespace, companion)
            raise
        self.on_kept(namespace)

    async def keep_values(
        self,
        namespace: str,
        provenance: Provenance,
        blobs: Mapping[str, bytes],
        estimate: Estimate,
        labels: Mapping[str, str] = NONE,
    ) -> None:
        """Store JSON texts under bases that are made of them, as those of `prune_messages` are.

        What is kept already is the same, and is put off its expiry.

        Raises:
            StoreError: One could not be kept; those before it are.
        """
        for base, blob in blobs.items():
            if isinstance(await self.store.describe(namespace, base), Descriptor):
                continue
            captured = await anyio.to_thread.run_sync(capture, {"structuredContent": blob}, _ALL, estimate)
            if captured.value is None:
                raise StoreError("null is no value that is stored. Store something else.")
            draft = replace(captured.value, members=captured.value.members[:MAX_INDEXED_KEYS])
            described = replace(self._describe(base, draft, provenance, labels), envelope=captured.envelope)
            await self.store.put(namespace, described, (blob,))
            self.on_kept(namespace)

    def _describe(self, base: str, draft: Draft, provenance: Provenance, labels: Mapping[str, str]) -> Descriptor:
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
            preview=draft.preview,
            labels=labels,
        )
