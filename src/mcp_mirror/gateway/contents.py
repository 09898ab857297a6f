"""Captures large contents of resources and large messages of prompts, as results of tools are captured.

By default (`mirror.capture_resources: false`) they are passed on unchanged, because a person requested them. Contents
that the model may not see are always captured. Each content and each message is captured separately.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from mcp_mirror.core.merged_lists import ResourceOrigin
from mcp_mirror.core.replies import encode_text_block
from mcp_mirror.core.results.capture import CaptureRules
from mcp_mirror.core.results.processing import ProcessedResult, ProcessingOptions, process_result, read_ifc
from mcp_mirror.errors import RefusalReason, StoreError, ToolError
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.paths import NewBases
from mcp_mirror.payload.json_rpc import array_of, contiguous, object_of, open_array, open_object
from mcp_mirror.security.flows import Flows, format_labels
from mcp_mirror.settings.labels import MODEL, Labels
from mcp_mirror.settings.policies import MirrorPolicy, WirePolicy
from mcp_mirror.system.limited_logs import RepeatedLog
from mcp_mirror.system.slices import Pacer, run_by_size, run_by_values
from mcp_mirror.types import Buffer, Provenance, Segments

_logger = logging.getLogger(__name__)

CONTENT_SLUGS: Final = frozenset({"resource", "prompt"})
"""The slugs with which paths of captured contents begin."""

Members = Mapping[str, Buffer | Segments]
"""A result, its members JSON text."""


class CapturedKind(NamedTuple):
    """How the items of a result are captured."""

    slug: str
    member: str
    """The member of the result with the items."""
    build_block: Callable[[Buffer, Mapping[str, Buffer]], Segments]
    """Returns an item, given as JSON text and as its members, as a content block of a tool result."""
    replace: Callable[[Mapping[str, Buffer], str, str | None], Segments]
    """Returns an item with a notice in place of its content. The last argument is the URI or name of a hidden item,
    of which nothing else remains."""


class ContentCapture(msgspec.Struct, frozen=True):
    """Captures the contents of resources and prompts if the configuration or the flow policy requires it."""

    writer: ValueWriter
    mirror: MirrorPolicy
    limits: WirePolicy
    new_id: Callable[[], UUID]
    """Returns a UUID of version 4."""
    may_show: Callable[[str], bool]
    """Returns whether the model may see an upstream's text. Contents of other upstreams are always stored."""
    flows: Flows
    _log: RepeatedLog = msgspec.field(default_factory=lambda: RepeatedLog(_logger))

    async def capture(self, kind: CapturedKind, result: Members, namespace: str, origin: ResourceOrigin) -> Members:
        """Return a result with notices in place of large items; `kind` is `RESOURCE` or `PROMPT`.

        Raises:
            ToolError: The flow policy hides the result from the model.
            StoreError: The model may not see an item, and the item could not be stored.
        """
        labels = self._read_labels(result, origin)
        is_shown = self.may_show(origin.upstream)
        if is_shown and not self.mirror.capture_resources:
            return result
        array = contiguous(result.get(kind.member, b"null"))
        items = await run_by_size(len(array), open_array, array, principal=namespace)
        captured: list[Segments] = []
        is_changed = False
        async for raw, members in _take_turns(items or (), namespace):
            notice = await self._capture_block(kind.build_block(raw, members), kind.slug, namespace, origin, labels)
            is_changed = is_changed or notice is not None
            hidden_uri = None if is_shown else origin.key
            captured.append((raw,) if notice is None else kind.replace(members, notice, hidden_uri))
        if is_shown and not is_changed:
            return result
        return {**(result if is_shown else {}), kind.member: array_of(captured)}

    def _read_labels(self, result: Members, origin: ResourceOrigin) -> Labels:
        """The flow labels of a result; an error if the flow policy hides it from the model."""
        ifc = read_ifc(contiguous(result.get("_meta", b"null")))
        labels = self.flows.labels_of_result(origin.upstream, self.flows.lowest, ifc)
        if refusal := self.flows.refusal(labels, MODEL):
            raise ToolError(
                f"{origin.key!r} may not be shown to the model: {refusal.why}. Ask the user to change that rule.",
                RefusalReason.FLOW,
            )
        return labels

    async def _capture_block(
        self, block: Segments, slug: str, namespace: str, origin: ResourceOrigin, labels: Labels
    ) -> str | None:
        """Store a content block if it is too large or hidden, and return its notice.

        Returns None if the block is passed on, because it is small or could not be stored.
        """
        preview, mirror = self.may_show(origin.upstream), self.mirror
        options = ProcessingOptions(
            rules=CaptureRules("large", mirror.inline_budget, mirror.error_budget, is_wrapped=False, preview=preview),
            style=mirror.notice,
            tool=slug,
            arguments=msgspec.json.encode({"of": origin.key}),
            bases=NewBases(slug, self.new_id),
            max_key_bytes=self.limits.max_key_bytes,
            provider=mirror.provider,
        )
        result = await run_by_values(block, _process, block, options, principal=namespace)
        if result.captured.value is None or result.captured.shown is not None:
            return None
        try:
            provenance = Provenance(origin.upstream, origin.key, "")
            await self.writer.store_result(namespace, provenance, options.bases, result.captured, format_labels(labels))
        except StoreError as error:
            if not preview:
                raise
            self._log.warning("A %s is passed on unchanged because it could not be stored. %s", slug, error)
            return None
        return result.notice


async def _take_turns(items: Iterable[Buffer], principal: str) -> AsyncIterator[tuple[Buffer, Mapping[str, Buffer]]]:
    """Yield each item and its members. One result may have very many: other tasks run after each slice of work."""
    pacer = Pacer()
    for item in items:
        pacer.begin()
        members = await run_by_size(len(item), open_object, item, principal=principal)
        yield item, members or {}
        await pacer.end()


def _process(block: Segments, options: ProcessingOptions) -> ProcessedResult:
    return process_result({"content": b"".join(array_of([block]))}, options)


def _build_resource_block(raw: Buffer, members: Mapping[str, Buffer]) -> Segments:
    if "text" in members:
        return object_of({"type": b'"text"', "text": members["text"]})
    return object_of({"type": b'"resource"', "resource": raw})


def _replace_content(members: Mapping[str, Buffer], notice: str, hidden: str | None) -> Segments:
    others = {key: value for key, value in members.items() if key not in ("blob", "text")}
    if hidden is not None:
        others = {"uri": msgspec.json.encode(hidden)}
    return object_of({**others, "mimeType": b'"text/plain"', "text": msgspec.json.encode(notice)})


def _replace_message(members: Mapping[str, Buffer], notice: str, hidden: str | None) -> Segments:
    """The role of a hidden message is one of MCP's two, else `user`: the upstream could write any text there."""
    if hidden is not None:
        is_assistant = bytes(members.get("role", b"")) == b'"assistant"'
        members = {"role": b'"assistant"' if is_assistant else b'"user"'}
    return object_of({**members, "content": encode_text_block(notice)})


RESOURCE: Final = CapturedKind("resource", "contents", _build_resource_block, _replace_content)
PROMPT: Final = CapturedKind(
    "prompt", "messages", lambda _raw, members: (members.get("content", b"{}"),), _replace_message
)
