"""Resources and prompts that are too large to be shown, captured like a tool's results where the user wants that.

By default they pass: a person has asked for them. Each content of a resource, and each message of a prompt, is looked
at on its own.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from uuid import UUID

import anyio.to_thread
import msgspec

from mcp_mirror.core.capture import CaptureRules
from mcp_mirror.core.merged_lists import ResourceOrigin
from mcp_mirror.core.result_processing import ProcessedResult, ProcessingOptions, process_result, read_ifc
from mcp_mirror.errors import StoreError, ToolError
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.paths import new_base
from mcp_mirror.payload.json_rpc import array_of, join, object_of, open_array, open_object
from mcp_mirror.security.flows import Flows, labels_as_text
from mcp_mirror.settings.labels import MODEL, Labels
from mcp_mirror.settings.policies import MirrorPolicy, WirePolicy
from mcp_mirror.types import Buffer, Provenance, Segments

_logger = logging.getLogger(__name__)

LABELS: Final = frozenset({"resource", "prompt"})
"""With what paths of captured resources and prompts begin."""

_AT_ONCE_BYTES: Final = 1 << 20

Members = Mapping[str, Buffer | Segments]


@dataclass(frozen=True, slots=True)
class ContentCapture:
    """Captures contents, if it is told to."""

    writer: ValueWriter
    mirror: MirrorPolicy
    limits: WirePolicy
    new_id: Callable[[], UUID]
    may_show: Callable[[str], bool] = lambda _upstream: True
    """Whether models are shown what an upstream says; of another, everything is stored."""
    flows: Flows = field(default_factory=Flows)

    async def resource(self, result: Members, namespace: str, place: ResourceOrigin) -> Members:
        """The result of a `resources/read`, large contents exchanged for notices.

        Raises:
            ToolError: The model may not see it.
        """
        labels = self._labels(result, place)
        listed = open_array(_text(result.get("contents", b"null"))) if self._captures(place) else None
        if listed is None and self.may_show(place.upstream):
            return result
        contents: list[Segments] = []
        for raw in listed or ():
            members = open_object(raw) or {}
            block = _block_of(raw, members)
            notice = await self._notice(block, _Origin("resource", namespace, place, labels))
            told = {"mimeType": b'"text/plain"', "text": msgspec.json.encode(notice)}
            kept = {key: value for key, value in members.items() if key not in ("blob", "text")}
            kept = kept if self.may_show(place.upstream) else {"uri": msgspec.json.encode(place.key)}
            contents.append((raw,) if notice is None else object_of({**kept, **told}))
        return self._rest(result, place) | {"contents": array_of(contents)}

    async def prompt(self, result: Members, namespace: str, place: ResourceOrigin) -> Members:
        """The result of a `prompts/get`, large messages exchanged for notices.

        Raises:
            ToolError: The model may not see it.
        """
        labels = self._labels(result, place)
        listed = open_array(_text(result.get("messages", b"null"))) if self._captures(place) else None
        if listed is None and self.may_show(place.upstream):
            return result
        messages: list[Segments] = []
        for raw in listed or ():
            members = open_object(raw) or {}
            origin = _Origin("prompt", namespace, place, labels)
            notice = await self._notice((members.get("content", b"{}"),), origin)
            told = msgspec.json.encode({"type": "text", "text": notice})
            kept = members if self.may_show(place.upstream) else {"role": _role(members)}
            messages.append((raw,) if notice is None else object_of({**kept, "content": told}))
        return self._rest(result, place) | {"messages": array_of(messages)}

    def _rest(self, result: Members, place: ResourceOrigin) -> dict[str, Buffer | Segments]:
        """What else there is in a result, as far as that may be shown."""
        return dict(result) if self.may_show(place.upstream) else {}

    def _captures(self, place: ResourceOrigin) -> bool:
        return self.mirror.capture_resources or not self.may_show(place.upstream)

    def _labels(self, result: Members, place: ResourceOrigin) -> Labels:
        given, ifc = self.flows.lowest, read_ifc(_text(result.get("_meta", b"null")))
        labels = self.flows.labels_of_result(place.upstream, given, ifc)
        if refusal := self.flows.refusal(labels, MODEL):
            raise ToolError(f"{place.key!r} may not be shown to the model: {refusal.why}. Ask the user to change that.")
        return labels

    async def _notice(self, block: Segments, origin: "_Origin") -> str | None:
        """What to say instead of a content block; None where it is small, or cannot be stored."""
        label, namespace, place, labels = origin
        preview = self.may_show(place.upstream)
        rules = CaptureRules(
            "large", self.mirror.inline_budget, self.mirror.error_budget, wrapped=False, preview=preview
        )
        order = ProcessingOptions(
            rules=rules,
            style=self.mirror.notice,
            tool=label,
            arguments=msgspec.json.encode({"of": place.key}),
            base=new_base(label, self.new_id()),
            companion_base=new_base(label, self.new_id()),
            max_key_bytes=self.limits.max_key_bytes,
            provider=self.mirror.provider,
        )
        digest = await _digest({"content": join(array_of([block]))}, order)
        if digest.captured.value is None or digest.captured.shown is not None:
            return None
        try:
            made = Provenance(place.upstream, place.key, "")
            await self.writer.keep(namespace, made, order, digest.captured, labels_as_text(labels))
        except StoreError as error:
            if not preview:
                raise
            _logger.warning("A %s is passed on, for it could not be stored. %s", label, error)
            return None
        return digest.notice


class _Origin(NamedTuple):
    """Where a content comes from, and whose it is."""

    label: str
    namespace: str
    place: ResourceOrigin
    labels: Labels


async def _digest(members: Mapping[str, Buffer], order: ProcessingOptions) -> ProcessedResult:
    if len(members["content"]) > _AT_ONCE_BYTES:
        return await anyio.to_thread.run_sync(process_result, members, order, order.estimate)
    return process_result(members, order, order.estimate)


def _role(message: Mapping[str, Buffer]) -> bytes:
    """One of the protocol's two: else it could be any text."""
    return b'"assistant"' if bytes(message.get("role", b"")) == b'"assistant"' else b'"user"'


def _block_of(raw: Buffer, members: Mapping[str, Buffer]) -> Segments:
    """A resource's content as a tool's result would have it."""
    if "text" in members:
        return object_of({"type": b'"text"', "text": members["text"]})
    return object_of({"type": b'"resource"', "resource": raw})


def _text(member: Buffer | Segments) -> Buffer:
    return join(member) if isinstance(member, tuple) else member
