"""Checks the flow policy for the stored values of a call, and loads those that the policy admits."""

import hashlib
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Final, TypeVar

import anyio
import msgspec

from mcp_mirror.core.resolve import Pointer, Pointers
from mcp_mirror.errors import FlowError, MirrorError, unwrap_error_group
from mcp_mirror.memory.lookup_errors import ErrorContent, unknown_path_error
from mcp_mirror.memory.value_lookup import FoundValue, look_up_described
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.observability.audit import Audit, AuditRecord, CallTrace, Event
from mcp_mirror.paths import MemoryPath
from mcp_mirror.security.flows import Flows, Refusal, describe_place, format_labels
from mcp_mirror.settings.labels import FILES, MODEL, Labels
from mcp_mirror.stores.base import Tombstone
from mcp_mirror.types import Descriptor
from mcp_mirror.workers.frames import FrameScanner

Descriptions = Mapping[str, Descriptor | Tombstone]
"""Descriptors, or tombstones of deleted values, by base."""

_AT_ONCE: Final = 16
"""Values of a call that are described at the same time. Of more, the store does not read the small ones with their
descriptors, which keep the bytes."""
_READ_AT_ONCE: Final = 4
"""Values of a call that are read at the same time. Of a deep path a whole member is in memory while it is searched."""
_SCRIPT: Final = "values of the script"
"""The name of the values that a script has received, in errors."""
_MAX_LISTED: Final = 5
"""Values that one elicitation lists."""
_FLOWS: Final[Mapping[str, str]] = {MODEL: "be shown to the model", FILES: "be written to local files"}
_NEXT_STEP: Final[Mapping[str, str]] = {
    MODEL: "Give its path to a tool that may receive it, or ask the user to change that rule."
}
_DEFAULT_NEXT_STEP: Final = "Nothing was read or sent. Use another value, or ask the user to change that rule."


class FlowGuard(msgspec.Struct, frozen=True):
    """Applies the flow policy to the values of one call."""

    flows: Flows
    namespace: str
    tool: str
    """The tool's name, as clients know it."""
    audit: Audit
    trace: CallTrace = msgspec.field(default_factory=CallTrace)
    """Receives the values that the call uses."""
    consent: str | None = None
    """The one flow that the user allowed for this call."""

    def admit(self, described: Descriptions, to: str) -> Labels:
        """Check that values may flow to an upstream, `model` or `files`, and write the audit records of the flows.

        Returns:
            The labels of a value that is made of all of them.

        Raises:
            FlowError: The policy refuses a flow, and the user did not allow it for this call.
        """
        descriptors = {base: descriptor for base, descriptor in described.items() if isinstance(descriptor, Descriptor)}
        labels = {base: self.flows.read_labels(descriptor) for base, descriptor in descriptors.items()}
        self._admit(labels, to, descriptors)
        return self.flows.join(*labels.values())

    def admit_script(self, labels: Labels, to: str, digest: str) -> None:
        """Check as `admit` that the values that a script has received may flow to a destination of one of its calls.

        `labels` are those of all values. `digest` is that of the call's arguments, which a consent of the user names.
        """
        self._admit({_SCRIPT: labels}, to, {}, digest)

    def _admit(
        self, labels: Mapping[str, Labels], to: str, descriptors: Mapping[str, Descriptor], digest: str | None = None
    ) -> None:
        """Check that values may flow to a destination; a consent names the refused ones, or the digest."""
        refusals = {name: self.flows.refusal(value_labels, to) for name, value_labels in labels.items()}
        refused = {name: refusal for name, refusal in refusals.items() if refusal is not None}
        named = [self.namespace, self.tool, to, sorted(refused if digest is None else (digest,))]
        flow = hashlib.sha256(msgspec.json.encode(named)).hexdigest()
        is_allowed_once = flow == self.consent
        for name, value_labels in labels.items():
            if name in refused:
                outcome = "allowed once" if is_allowed_once else "refused"
                self._write_audit(outcome, value_labels, to, refused[name], descriptors.get(name))
            elif to != MODEL and not value_labels.sources <= {to, MODEL}:  # reads of the model have their own records
                self._write_audit("allowed", value_labels, to, None, descriptors.get(name))
        if refused and not is_allowed_once:
            raise _build_flow_error(refused, labels, to, self.tool, flow)

    def _write_audit(
        self, outcome: str, labels: Labels, to: str, refusal: Refusal | None, known: Descriptor | None
    ) -> None:
        detail = {"to": to} | ({"rule": refusal.rule} if refusal else {})
        event: Event = "refusal" if outcome == "refused" else "flow"
        base, size = (known.base, known.size) if known else (None, 0)
        named = format_labels(labels)
        self.audit.write(AuditRecord(event, self.namespace, self.tool, outcome, base, named, size, detail))


def _build_flow_error(
    refused: Mapping[str, Refusal], labels: Mapping[str, Labels], to: str, tool: str, flow: str
) -> FlowError:
    """The error of a refused flow, with the elicitation that a user can allow it with."""
    base, first = next(iter(refused.items()))
    action = _FLOWS.get(to, f"go to {describe_place(to)}")
    more = f" ({len(refused) - 1} more may not either.)" if len(refused) > 1 else ""
    listed = ""
    for name, refusal in [*refused.items()][:_MAX_LISTED]:
        known = labels[name]
        described = f"from {', '.join(sorted(known.sources))}; {known.integrity}; {known.confidentiality}"
        listed += f'\n- "{name}" ({described}): {refusal.why}'
    unlisted = f"\n- and {len(refused) - _MAX_LISTED} more" if len(refused) > _MAX_LISTED else ""
    return FlowError(
        f'"{base}" may not {action}: {first.why}.{more} {_NEXT_STEP.get(to, _DEFAULT_NEXT_STEP)}',
        flow,
        f"The tool {tool} would have this {action}, and the gateway's rules refuse that:{listed}{unlisted}\n"
        "Let it pass this once?",
    )


_Key = MemoryPath | str
"""The path of a pointer, or the text of one without a path."""
_Item = TypeVar("_Item")


async def _run_together(step: Callable[[_Item], Coroutine[None, None, None]], given: Sequence[_Item]) -> None:
    """Run a step for several items at the same time: a store may be on another machine."""
    if len(given) == 1:  # as in most calls; a task takes 20 us
        await step(given[0])
        return
    try:
        async with anyio.create_task_group() as tasks:
            for item in given:
                tasks.start_soon(step, item)
    except ExceptionGroup as errors:
        raise unwrap_error_group(errors) from None


class ArgumentLoader(msgspec.Struct, frozen=True):
    """Loads the stored values that pointers in the arguments of a call name."""

    writer: ValueWriter
    scanner: FrameScanner
    guard: FlowGuard
    can_query: bool
    """The client is served `memory_query`."""

    async def describe(self, pointers: Pointers) -> Descriptions:
        """Return the descriptors and tombstones of the values that pointers name, without reading the values."""
        paths = (self._path_of(pointer) for pointer in pointers if isinstance(pointer, Pointer))
        bases = tuple(dict.fromkeys(path.base for path in paths if path))
        described: dict[str, Descriptor | Tombstone] = {}

        async def describe(base: str) -> None:
            will_read = len(bases) <= _AT_ONCE
            if state := await self.writer.store.describe(self.guard.namespace, base, will_read=will_read):
                described[base] = state

        for start in range(0, len(bases), _AT_ONCE):
            await _run_together(describe, bases[start : start + _AT_ONCE])
        return {base: described[base] for base in bases if base in described}

    async def load(self, pointers: Pointers, described: Descriptions) -> dict[Pointer, FoundValue]:
        """Load the values of pointers that the flow policy admitted, and note each in the trace. Skip escaped paths.

        A path of a tool that this gateway never served stays a text.

        Raises:
            ToolError: A value does not exist (any more), or it has no such key.
        """
        loadable = [pointer for pointer in pointers if isinstance(pointer, Pointer)]
        wanted: dict[_Key, Pointer] = {pointer.path or pointer.text: pointer for pointer in loadable}
        loaded: dict[_Key, FoundValue | None] = {}  # each map of a large value takes a file handle
        failed: dict[_Key, MirrorError] = {}

        async def load(key: _Key) -> None:
            try:
                loaded[key] = await self._load_one(wanted[key], described)
            except MirrorError as error:
                failed[key] = error

        keys = [*wanted]
        for start in range(0, len(keys), _READ_AT_ONCE):
            await _run_together(load, batch := keys[start : start + _READ_AT_ONCE])
            for key in batch:
                if key in failed:
                    raise failed[key]
                if loaded[key] is None and wanted[key].is_known:
                    raise await unknown_path_error(self.writer.store, self.guard.namespace, wanted[key].text)
        values = {pointer: value for pointer in loadable if (value := loaded[pointer.path or pointer.text])}
        self.guard.trace.inputs |= {str(value.path): value.producer for value in values.values()}
        return values

    async def _load_one(self, pointer: Pointer, described: Descriptions) -> FoundValue | None:
        path = self._path_of(pointer)
        if path is None or (known := described.get(path.base)) is None:
            return None
        flows, namespace = self.guard.flows, self.guard.namespace
        include_keys = isinstance(known, Tombstone) or flows.may_show(flows.read_labels(known))
        content = ErrorContent(include_keys, self.can_query)
        found = await look_up_described(self.writer.store, self.scanner, namespace, path, known, content)
        return found.without_index()

    def _path_of(self, pointer: Pointer) -> MemoryPath | None:
        """The path of a pointer, also of a notice that was pasted without its path."""
        return pointer.path or self.writer.notices.find(self.guard.namespace, pointer.text)
