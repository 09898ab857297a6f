"""Stores captured values with their descriptors."""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from mcp_mirror.core.results.capture import CaptureRules, capture
from mcp_mirror.core.results.captured import Captured
from mcp_mirror.core.results.processing import bound_index, bound_other_members
from mcp_mirror.core.value_sizes import Estimate
from mcp_mirror.errors import StoreError
from mcp_mirror.memory.recent_notices import RecentNotices
from mcp_mirror.paths import FixedBases, NewBases
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.stores.base import Store
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.types import Descriptor, Draft, Provenance

_MAX_INPUT_CHARACTERS: Final = 1 << 14
"""Characters of the paths of its inputs that are stored with a value. Quotas do not count them."""
_STORE_ALL: Final = CaptureRules("always", inline_budget=0, error_budget=0, is_wrapped=False)


class ValueWriter(msgspec.Struct, frozen=True):
    """Writes values to the store. Callers name a path only after its value is stored."""

    store: Store
    policy: StorePolicy
    clock: Callable[[], float]
    """Seconds since the epoch."""
    on_change: Callable[[str], None] = lambda _namespace: None
    """Called with a namespace whose values have changed."""
    notices: RecentNotices = msgspec.field(default_factory=RecentNotices)
    """The notices of the values that this process stored."""

    async def store_result(
        self,
        namespace: str,
        provenance: Provenance,
        bases: NewBases | FixedBases,
        captured: Captured,
        labels: Mapping[str, str],
    ) -> None:
        """Store the value of a result and, before it, its companion; without a value, do nothing.

        Values without labels count as most restricted.

        Raises:
            StoreError: The store failed; then neither is stored.
        """
        if captured.value is None:
            return
        companion = bases.companion if captured.companion else None
        if captured.companion:
            described = self._describe(bases.companion, captured.companion, provenance, labels)
            await self.store.put(namespace, described, (captured.companion.blob,), captured.companion.file)
        described = self._describe(bases.value, captured.value, provenance, labels)
        other_members = bound_other_members(captured.other_members)
        described = msgspec.structs.replace(described, companion=companion, other_members=other_members)
        try:
            await self.store.put(namespace, described, (captured.value.blob,), captured.value.file)
        except StoreError:
            if companion:  # only the descriptor of the value names its companion
                await self.store.delete(namespace, companion)
            raise
        self.on_change(namespace)

    async def store_values(
        self,
        namespace: str,
        provenance: Provenance,
        blobs: Mapping[str, bytes],
        estimate: Estimate,
        labels: Mapping[str, str],
    ) -> None:
        """Store JSON texts under bases that are digests of them, such as those of `prune_messages`.

        A value that is already stored is identical; its expiry is postponed. Values without labels count as most
        restricted.

        Raises:
            StoreError: A value could not be stored; the values before it are stored.
        """
        for base, blob in blobs.items():
            if isinstance(await self.store.describe(namespace, base), Descriptor):
                continue
            captured = await run_fairly(namespace, capture, {"structuredContent": blob}, _STORE_ALL, estimate)
            if captured.value is None:
                raise StoreError("null cannot be stored. Store another value.")
            captured = msgspec.structs.replace(captured, value=bound_index(captured.value))
            await self.store_result(namespace, provenance, FixedBases(base, ""), captured, labels)

    def _describe(self, base: str, draft: Draft, provenance: Provenance, labels: Mapping[str, str]) -> Descriptor:
        now = self.clock()
        if sum(map(len, provenance.inputs)) > _MAX_INPUT_CHARACTERS:  # the paths of whole values are enough
            bases = dict.fromkeys(path.partition("/")[0] for path in provenance.inputs)
            provenance = msgspec.structs.replace(provenance, inputs=tuple(bases))
        return Descriptor(
            base=base,
            kind=draft.kind,
            size=len(draft.blob),
            tokens=draft.tokens,
            members=draft.members,
            created=now,
            expires=now + self.policy.lifetime,
            provenance=provenance,
            media_type=draft.media_type,
            preview=draft.preview,
            labels=labels,
            array=draft.array,
            text_size=draft.text.size if draft.text else None,
        )
