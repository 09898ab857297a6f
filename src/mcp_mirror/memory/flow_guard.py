"""The values that a call names: held against the flow policy by their labels, and read only where they may go."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from mcp_mirror.core.resolve import EscapedPath, Pointer, Resolved
from mcp_mirror.errors import FlowError, RefusalReason
from mcp_mirror.memory.value_lookup import FoundValue, recall, unknown_path
from mcp_mirror.observability.audit import NO_AUDIT, Audit, AuditRecord, CallTrace, Event
from mcp_mirror.security.flows import Flows, Refusal, describe_place, labels_as_text
from mcp_mirror.settings.labels import FILES, MODEL, Labels
from mcp_mirror.stores.base import Store, Tombstone
from mcp_mirror.types import Descriptor
from mcp_mirror.workers.frames import FrameScanner

Named = Mapping[str, Descriptor | Tombstone]
"""What is known of values, by their bases."""

_ASKED: Final = 5
"""Values that one question names."""
_GOES: Final[Mapping[str, str]] = {MODEL: "be shown to the model", FILES: "be written to local files"}
_INSTEAD: Final[Mapping[str, str]] = {
    MODEL: "Give its path to a tool that may have it, or ask the user to change that rule."
}
_OTHERWISE: Final = "Nothing was read or sent. Use another value, or ask the user to change that rule."


@dataclass(frozen=True, slots=True)
class FlowGuard:
    """Where values are held for one call, on their way to a place."""

    flows: Flows
    namespace: str
    tool: str
    """As clients call it."""
    audit: Audit = NO_AUDIT
    trace: CallTrace = field(default_factory=CallTrace)
    """Receives the reason of a refusal."""
    consent: str | None = None
    """The one flow that the user lets pass this time."""

    def admit(self, named: Named, to: str) -> Labels:
        """Hold values against the policy.

        Args:
            named: By their bases. Of those that are gone nothing can be had.
            to: The place that they are to go to.

        Returns:
            What something is that is made of all of them.

        Raises:
            FlowError: One may not go there.
        """
        kept = {base: known for base, known in named.items() if isinstance(known, Descriptor)}
        labels = {base: self.flows.labels_of(known) for base, known in kept.items()}
        refused = {base: found for base, one in labels.items() if (found := self.flows.refusal(one, to))}
        flow = self._name(refused, to)
        for base, one in labels.items():
            if base in refused or not one.sources <= {to, MODEL}:
                outcome = "allowed" if base not in refused else "allowed once" if flow == self.consent else "refused"
                if outcome != "allowed" or to != MODEL:  # what the model reads has records of its own
                    self._write(base, kept[base], to, refused.get(base), outcome)
        if refused and flow != self.consent:
            raise _refuse(refused, labels, to, self.tool, flow)
        return self.flows.join(*labels.values())

    def _name(self, bases: Iterable[str], to: str) -> str:
        return hashlib.sha256(msgspec.json.encode([self.namespace, self.tool, to, sorted(bases)])).hexdigest()

    def _write(self, base: str, known: Descriptor, to: str, refusal: Refusal | None, outcome: str) -> None:
        detail = {"to": to} | ({"rule": refusal.rule} if refusal else {})
        labels = labels_as_text(self.flows.labels_of(known))
        event: Event = "refusal" if outcome == "refused" else "flow"
        self.audit.write(AuditRecord(event, self.namespace, self.tool, outcome, base, labels, known.size, detail))


def _refuse(refused: Mapping[str, Refusal], labels: Mapping[str, Labels], to: str, tool: str, flow: str) -> FlowError:
    base, first = next(iter(refused.items()))
    goes = _GOES.get(to, f"go to {describe_place(to)}")
    more = f" ({len(refused) - 1} more may not either.)" if len(refused) > 1 else ""
    listed = "\n".join(f'- "{one}" ({described(labels[one])}): {refused[one].why}' for one in [*refused][:_ASKED])
    rest = f"\n- and {len(refused) - _ASKED} more" if len(refused) > _ASKED else ""
    return FlowError(
        f'"{base}" may not {goes}: {first.why}.{more} {_INSTEAD.get(to, _OTHERWISE)}',
        flow,
        f"The tool {tool} would have this {goes}, and the gateway's rules refuse that:\n{listed}{rest}\n"
        "Let it pass this once?",
    )


def described(labels: Labels) -> str:
    """Labels for a reader: `from crm, mail; untrusted; private`."""
    return f"from {', '.join(sorted(labels.sources))}; {labels.integrity}; {labels.confidentiality}"


@dataclass(frozen=True, slots=True)
class ArgumentLoader:
    """Fetches the values that the arguments of a call name."""

    store: Store
    scanner: FrameScanner
    guard: FlowGuard

    async def look(self, found: tuple[Pointer | EscapedPath, ...]) -> Named:
        """What is known of the values, by their bases; none of them is read."""
        bases = dict.fromkeys(one.path.base for one in found if isinstance(one, Pointer) and one.path)
        known = {base: await self.store.describe(self.guard.namespace, base) for base in bases}
        return {base: one for base, one in known.items() if one is not None}

    async def fetch(self, found: tuple[Pointer | EscapedPath, ...], named: Named) -> dict[Pointer, Resolved]:
        """The value of each pointer; a text that only looks like one, of a tool we never served, stays a text.

        What was not there to be looked at is not there: nothing is read that was not admitted.

        Raises:
            ToolError: There is no such value (any more), or no such key in it.
        """
        values: dict[Pointer, Resolved] = {}
        for pointer in found:
            if isinstance(pointer, EscapedPath):
                continue
            if found_value := await self._recall(pointer, named):
                values[pointer] = Resolved(
                    str(found_value.path), found_value.blob, found_value.kind, found_value.preview
                )
            elif pointer.is_known:
                self.guard.trace.reason = RefusalReason.UNKNOWN_PATH
                raise await unknown_path(self.store, self.guard.namespace, pointer.text)
        return values

    async def _recall(self, pointer: Pointer, named: Named) -> FoundValue | None:
        if pointer.path is None or (known := named.get(pointer.path.base)) is None:
            return None
        flows = self.guard.flows
        tells = isinstance(known, Tombstone) or flows.may_show(flows.labels_of(known))
        return await recall(self.store, self.scanner, self.guard.namespace, pointer.path, known, tells=tells)
