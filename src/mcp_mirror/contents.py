"""Resources and prompts that are too large to be shown, captured like a tool's results where the user wants that.

By default they pass: a person has asked for them. Each content of a resource, and each message of a prompt, is looked
at on its own.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final
from uuid import UUID

import anyio.to_thread
import msgspec

from mcp_mirror.capture import CaptureRules
from mcp_mirror.digest import Digest, Order, digest_result
from mcp_mirror.directory import Place
from mcp_mirror.errors import StoreError
from mcp_mirror.keeper import Keeper
from mcp_mirror.models import Buffer, Provenance, Segments
from mcp_mirror.paths import new_base
from mcp_mirror.policies import MirrorPolicy, WirePolicy
from mcp_mirror.tokens import estimate_tokens
from mcp_mirror.wire import array_of, join, object_of, open_array, open_object

_logger = logging.getLogger(__name__)

LABELS: Final = frozenset({"resource", "prompt"})
"""With what paths of captured resources and prompts begin."""

_AT_ONCE_BYTES: Final = 1 << 20

Members = Mapping[str, Buffer | Segments]


@dataclass(frozen=True, slots=True)
class ContentCapture:
    """Captures contents, if it is told to."""

    keeper: Keeper
    mirror: MirrorPolicy
    limits: WirePolicy
    new_id: Callable[[], UUID]

    async def resource(self, result: Members, namespace: str, place: Place) -> Members:
        """The result of a `resources/read`, large contents exchanged for notices."""
        listed = open_array(_text(result.get("contents", b"null"))) if self.mirror.capture_resources else None
        if listed is None:
            return result
        contents: list[Segments] = []
        for raw in listed:
            members = open_object(raw) or {}
            block = _block_of(raw, members)
            notice = await self._notice(block, "resource", namespace, place)
            told = {"mimeType": b'"text/plain"', "text": msgspec.json.encode(notice)}
            kept = {key: value for key, value in members.items() if key not in ("blob", "text")}
            contents.append((raw,) if notice is None else object_of({**kept, **told}))
        return {**result, "contents": array_of(contents)}

    async def prompt(self, result: Members, namespace: str, place: Place) -> Members:
        """The result of a `prompts/get`, large messages exchanged for notices."""
        listed = open_array(_text(result.get("messages", b"null"))) if self.mirror.capture_resources else None
        if listed is None:
            return result
        messages: list[Segments] = []
        for raw in listed:
            members = open_object(raw) or {}
            notice = await self._notice((members.get("content", b"{}"),), "prompt", namespace, place)
            told = msgspec.json.encode({"type": "text", "text": notice})
            messages.append((raw,) if notice is None else object_of({**members, "content": told}))
        return {**result, "messages": array_of(messages)}

    async def _notice(self, block: Segments, label: str, namespace: str, place: Place) -> str | None:
        """What to say instead of a content block; None where it is small, or cannot be stored."""
        rules = CaptureRules("auto", self.mirror.inline_budget, self.mirror.error_budget, wrapped=False)
        order = Order(
            rules=rules,
            style=self.mirror.notice,
            tool=label,
            arguments=msgspec.json.encode({"of": place.key}),
            base=new_base(label, self.new_id()),
            companion_base=new_base(label, self.new_id()),
            max_key_bytes=self.limits.max_key_bytes,
        )
        digest = await _digest({"content": join(array_of([block]))}, order)
        if digest.captured.value is None or digest.captured.shown is not None:
            return None
        try:
            await self.keeper.keep(namespace, Provenance(place.upstream, place.key, ""), order, digest.captured)
        except StoreError as error:
            _logger.warning("A %s is passed on, for it could not be stored. %s", label, error)
            return None
        return digest.notice


async def _digest(members: Mapping[str, Buffer], order: Order) -> Digest:
    if len(members["content"]) > _AT_ONCE_BYTES:
        return await anyio.to_thread.run_sync(digest_result, members, order, estimate_tokens)
    return digest_result(members, order, estimate_tokens)


def _block_of(raw: Buffer, members: Mapping[str, Buffer]) -> Segments:
    """A resource's content as a tool's result would have it."""
    if "text" in members:
        return object_of({"type": b'"text"', "text": members["text"]})
    return object_of({"type": b'"resource"', "resource": raw})


def _text(member: Buffer | Segments) -> Buffer:
    return join(member) if isinstance(member, tuple) else member
