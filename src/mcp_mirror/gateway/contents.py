"""Captures large contents of resources and large messages of prompts, as results of tools are captured.

By default (`mirror.capture_resources: false`) they are passed on unchanged, because a person requested them. Contents
that the model may not see are always captured. Each content and each message is captured separately.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from mcp_mirror.core.capture import CaptureRules
from mcp_mirror.core.merged_lists import ResourceOrigin
from mcp_mirror.core.replies import encode_text_block
from mcp_mirror.core.result_processing import ProcessedResult, ProcessingOptions, process_result, read_ifc
from mcp_mirror.errors import RefusalReason, StoreError, ToolError
from mcp_mirror.memory.value_writer import ValueWriter
from mcp_mirror.paths import NewBases
from mcp_mirror.payload.json_rpc import array_of, contiguous, object_of, open_array, open_object
from mcp_mirror.security.flows import Flows, format_labels
from mcp_mirror.settings.labels import MODEL, Labels
from mcp_mirror.settings.policies import MirrorPolicy, WirePolicy
from mcp_mirror.system.slices import Pacer, run_by_size, run_by_values
from mcp_mirror.types import Buffer, Provenance, Segments

_logger = logging.getLogger(__name__)

LABELS: Final = frozenset({"resource", "prompt"})
"""The labels with which paths of captured contents begin."""

Members = Mapping[str, Buffer | Segments]
"""A result, its members JSON text."""


class _Source(NamedTuple):
    """The origin and the owner of a content."""

    label: str
    namespace: str
    origin: ResourceOrigin
    labels: Labels
    """The flow labels."""


class ContentCapture(msgspec.Struct, frozen=True):
    """Captures the contents of resources and prompts if the configuration or the flow policy requires it."""

    writer: ValueWriter
    mirror: MirrorPolicy
    limits: WirePolicy
    new_id: Callable[[], UUID]
    """Returns a UUID of version 4."""
    may_show: Callable[[str], bool] = lambda _upstream: True
    """Returns whether the model may see an upstream's text. Contents of other upstreams are always stored."""
    flows: Flows = msgspec.field(default_factory=Flows)

    async def capture_resource(self, result: Members, namespace: str, origin: ResourceOrigin) -> Members:
        """Return the result of a `resources/read` with notices in place of large contents.

        Raises:
            ToolError: The flow policy hides the resource from the model.
            StoreError: The model may not see a content, and the content could not be stored.
        """
        source = _Source("resource", namespace, origin, self._read_labels(result, origin))
        is_shown = self.may_show(origin.upstream)
        items = await self._select_items(result, "contents", origin)
        if items is None and is_shown:
            return result
        contents: list[Segments] = []
        is_changed = False
        async for raw, members in _take_turns(items or ()):
            notice = await self._capture(_build_block(raw, members), source)
            if notice is None:
                contents.append((raw,))
                continue
            is_changed = True
            rest: Members = {"uri": msgspec.json.encode(origin.key)}
            if is_shown:
                rest = {key: value for key, value in members.items() if key not in ("blob", "text")}
            contents.append(object_of({**rest, "mimeType": b'"text/plain"', "text": msgspec.json.encode(notice)}))
        if is_shown and not is_changed:
            return result
        return {**(result if is_shown else {}), "contents": array_of(contents)}

    async def capture_prompt(self, result: Members, namespace: str, origin: ResourceOrigin) -> Members:
        """Return the result of a `prompts/get` with notices in place of large messages.

        Raises:
            ToolError: The flow policy hides the prompt from the model.
            StoreError: The model may not see a message, and the message could not be stored.
        """
        source = _Source("prompt", namespace, origin, self._read_labels(result, origin))
        is_shown = self.may_show(origin.upstream)
        items = await self._select_items(result, "messages", origin)
        if items is None and is_shown:
            return result
        messages: list[Segments] = []
        is_changed = False
        async for raw, members in _take_turns(items or ()):
            notice = await self._capture((members.get("content", b"{}"),), source)
            if notice is None:
                messages.append((raw,))
                continue
            is_changed = True
            rest: Members = members if is_shown else {"role": _read_role(members)}
            messages.append(object_of({**rest, "content": encode_text_block(notice)}))
        if is_shown and not is_changed:
            return result
        return {**(result if is_shown else {}), "messages": array_of(messages)}

    async def _select_items(self, result: Members, member: str, origin: ResourceOrigin) -> list[Buffer] | None:
        """The contents or messages of a result; None if they are not captured or not an array."""
        if self.may_show(origin.upstream) and not self.mirror.capture_resources:
            return None
        array = contiguous(result.get(member, b"null"))
        return await run_by_size(len(array), open_array, array)

    def _read_labels(self, result: Members, origin: ResourceOrigin) -> Labels:
        """The flow labels of a result.

        Raises:
            ToolError: The flow policy hides it from the model.
        """
        ifc = read_ifc(contiguous(result.get("_meta", b"null")))
        labels = self.flows.labels_of_result(origin.upstream, self.flows.lowest, ifc)
        if refusal := self.flows.refusal(labels, MODEL):
            raise ToolError(
                f"{origin.key!r} may not be shown to the model: {refusal.why}. Ask the user to change that rule.",
                RefusalReason.FLOW,
            )
        return labels

    async def _capture(self, block: Segments, source: _Source) -> str | None:
        """Store a content block if it is too large or hidden; return its notice.

        Returns:
            None if the block is passed on, because it is small or could not be stored.

        Raises:
            StoreError: The model may not see the block, and the block could not be stored.
        """
        label, namespace, origin, labels = source
        preview = self.may_show(origin.upstream)
        rules = CaptureRules(
            "large", self.mirror.inline_budget, self.mirror.error_budget, is_wrapped=False, preview=preview
        )
        options = ProcessingOptions(
            rules=rules,
            style=self.mirror.notice,
            tool=label,
            arguments=msgspec.json.encode({"of": origin.key}),
            bases=NewBases(label, self.new_id),
            max_key_bytes=self.limits.max_key_bytes,
            provider=self.mirror.provider,
        )
        result = await run_by_values(block, _process, block, options)
        if result.captured.value is None or result.captured.shown is not None:
            return None
        try:
            provenance = Provenance(origin.upstream, origin.key, "")
            await self.writer.store_result(namespace, provenance, options, result.captured, format_labels(labels))
        except StoreError as error:
            if not preview:
                raise
            _logger.warning("A %s is passed on unchanged because it could not be stored. %s", label, error)
            return None
        return result.notice


async def _take_turns(items: Iterable[Buffer]) -> AsyncIterator[tuple[Buffer, Mapping[str, Buffer]]]:
    """Yield each item and its members. One result may have very many: other tasks run after each slice of work."""
    pacer = Pacer()
    for item in items:
        pacer.begin()
        members = await run_by_size(len(item), open_object, item)
        yield item, members or {}
        await pacer.end()


def _process(block: Segments, options: ProcessingOptions) -> ProcessedResult:
    return process_result({"content": b"".join(array_of([block]))}, options)


def _read_role(message: Mapping[str, Buffer]) -> bytes:
    """The role if it is one of MCP's two, else `user`: a hidden upstream could write any text there."""
    return b'"assistant"' if bytes(message.get("role", b"")) == b'"assistant"' else b'"user"'


def _build_block(raw: Buffer, members: Mapping[str, Buffer]) -> Segments:
    """A resource's content as a content block of a tool result."""
    if "text" in members:
        return object_of({"type": b'"text"', "text": members["text"]})
    return object_of({"type": b'"resource"', "resource": raw})
