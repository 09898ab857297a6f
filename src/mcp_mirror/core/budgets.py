"""How many tokens an answer costs, and how many it may, so that answers can never overflow a conversation's window.

Of a window of W tokens a share r is kept for what others write; C = W - ceil(W * r) is ours. An account knows what a
conversation holds (`sent`) and what the calls under way may yet send (`held`); its room is C - sent - held. Whatever
the calls, their sizes and their order, `sent + held <= C` holds once it does, for each step keeps it:

    a call begins:         held grows by a share of the room, at most the room
    its answer is larger:  held grows by what is wanting, if the room has it
    it ends:               sent grows by the answer's cost, which is at most what the call holds; that is no more held

Where the harness says that there is more than C in a conversation, or the definitions of the tools alone are, there is
no room, and nothing that costs anything is sent. Nothing is counted twice or forgotten: an answer that does not fit is
exchanged for one that does before it is sent, at worst for one without words, which costs nothing.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from mcp_mirror.payload.json_rpc import join, open_array, open_object
from mcp_mirror.settings.policies import ContextPolicy, MirrorPolicy
from mcp_mirror.tokens.messages import IMAGE_TOKENS
from mcp_mirror.types import Buffer, Segments

Estimate = Callable[[Buffer], int]

SHARE: Final = 4
"""One call may hold this part of the room: so budgets fall slowly, and calls made at once leave something to each."""
LEAST: Final = 128
"""With less room nothing is called: a path is up to 102 bytes, and no text costs more tokens than it has bytes."""
NOTICE: Final = 600
"""Tokens that leave room for a notice of any style in nearly every case; with less, a path alone is told."""

_MEDIA_BYTES: Final = 64
"""Bytes of base64 for each token of a recording: 32 tokens a second (Gemini) at 12 kbit/s, which is little."""
_DECODED: Final = 1 << 20
"""Bytes up to which a text is counted as it is read; a longer one as it is written, which costs no less."""
_TOLD: Final = frozenset({b'"image"', b'"audio"'})


@dataclass(frozen=True, slots=True)
class TokenAccount:
    """What is in one conversation, in estimated tokens."""

    capacity: int
    """What may be in it at most."""
    sent: int = 0
    held: int = 0

    @property
    def room(self) -> int:
        """What may yet be held."""
        return max(self.capacity - self.sent - self.held, 0)

    def share(self, wanted: int) -> int:
        """How much of the room a call gets that wants so much: less than `LEAST` where there is no room to call."""
        return min(wanted, max(self.room // SHARE, min(self.room, LEAST)))

    def hold(self, tokens: int) -> "TokenAccount":
        """With more held, out of the room."""
        return replace(self, held=self.held + tokens)

    def settle(self, held: int, cost: int) -> "TokenAccount":
        """With what a call held given back, and what it sent counted."""
        return replace(self, sent=self.sent + cost, held=self.held - held)


def capacity_of(policy: ContextPolicy) -> int | None:
    """Tokens of a window that are ours; None where no account is kept."""
    return None if policy.window is None else policy.window - math.ceil(policy.window * policy.reserve)


def wanted_by(mirror: MirrorPolicy, inline_budget: int, *, brings_back: bool) -> int:
    """Tokens that a call may need under these budgets.

    Args:
        mirror: The budgets.
        inline_budget: That of the tool itself.
        brings_back: It is the call that shows a stored value whole.
    """
    if brings_back:
        return max(mirror.answer_budget, LEAST)
    return max(mirror.inline_budget, inline_budget, mirror.error_budget, mirror.read_budget) + NOTICE


def lowered(mirror: MirrorPolicy, tokens: int) -> MirrorPolicy:
    """The same rules with no budget over what a call holds; a path alone where a notice might not fit."""
    return replace(
        mirror,
        inline_budget=min(mirror.inline_budget, tokens),
        error_budget=min(mirror.error_budget, tokens),
        read_budget=min(mirror.read_budget, tokens - min(tokens // 8, NOTICE)),  # what is said below a window
        answer_budget=min(mirror.answer_budget, tokens),
        notice=mirror.notice if tokens >= NOTICE else "opaque",
    )


def cost_of(members: Mapping[str, Buffer | Segments], estimate: Estimate) -> int:
    """Tokens that a model reads of a result: its content, or the structured content where that is more.

    Clients show the one or the other. A question to the user has neither, and costs nothing.
    """
    structured = _whole(members.get("structuredContent", b""))
    blocks = open_array(_whole(members.get("content", b"[]"))) or ()
    return max(estimate(structured) if structured else 0, sum(_block_cost(raw, estimate) for raw in blocks))


def media_cost(size: int) -> int:
    """Tokens that an image, a recording or a file of so many bytes of base64 costs at most."""
    return max(IMAGE_TOKENS, size // _MEDIA_BYTES)


def _block_cost(raw: Buffer, estimate: Estimate) -> int:
    block = open_object(raw) or {}
    text = block.get("text", b"")
    if bytes(text[:1]) == b'"' and bytes(block.get("type", b"")) == b'"text"':
        return _text_cost(text, estimate)
    is_file = "blob" in (open_object(block.get("resource", b"null")) or {})
    return media_cost(len(raw)) if is_file or bytes(block.get("type", b"")) in _TOLD else estimate(raw)


def _text_cost(literal: Buffer, estimate: Estimate) -> int:
    if len(literal) > _DECODED:
        return estimate(literal)
    text = msgspec.json.decode(literal, type=str).encode()
    return estimate(text) if text else 0


def _whole(member: Buffer | Segments) -> Buffer:
    return join(member) if isinstance(member, tuple) else member
