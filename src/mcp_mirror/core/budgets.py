"""Context budgets: the tokens that a result costs and the tokens that a call may send.

Of a context window of W tokens, the share r is reserved for everything that the gateway does not send; the gateway's
capacity is C = W - ceil(W * r). An account records the tokens that a conversation contains (`sent`) and the tokens
that running calls may still send (`reserved`); its room is C - sent - reserved. The invariant
`sent + reserved <= C` is kept by every step, for all calls, sizes and orders:

    a call begins:         reserved grows by a share of the room, at most by the room
    its result is larger:  reserved grows by the difference if the room is large enough
    the call ends:         sent grows by the result's cost, at most the call's reservation; the reservation is released

If the harness reports more than C tokens, or the tool definitions need more than C tokens, the room is 0 and the
gateway sends only results that cost nothing. A result that does not fit is replaced by a smaller one before the
gateway sends it, in the last resort by an error without text, which costs nothing.
"""

import math
from typing import Final

import msgspec
from msgspec.structs import replace

from mcp_mirror.settings.policies import ContextPolicy, MirrorPolicy

ROOM_DIVISOR: Final = 4
"""One call may reserve this part of the room: budgets shrink slowly, and concurrent calls all get a part."""
MIN_CALL_TOKENS: Final = 128
"""With less room the gateway calls no tool: a path has up to 102 bytes, and a text costs at most a token per byte."""
NOTICE_TOKENS: Final = 600
"""Tokens that are enough for nearly every notice of any style; with fewer, only the path is returned."""


class TokenAccount(msgspec.Struct, frozen=True):
    """The contents of one conversation in estimated tokens."""

    capacity: int
    """Tokens that the gateway may send to the conversation."""
    sent: int = 0
    reserved: int = 0

    @property
    def room(self) -> int:
        """Tokens that calls may still reserve."""
        return max(self.capacity - self.sent - self.reserved, 0)

    def share(self, wanted: int) -> int:
        """The tokens that a call gets; less than `MIN_CALL_TOKENS` if the account has no room for a call."""
        return min(wanted, max(self.room // ROOM_DIVISOR, min(self.room, MIN_CALL_TOKENS)))

    def reserve(self, tokens: int) -> "TokenAccount":
        """The account with this many more tokens reserved."""
        return replace(self, reserved=self.reserved + tokens)

    def settle(self, reserved: int, cost: int) -> "TokenAccount":
        """The account after a call: its reservation is released, and the tokens that it sent are counted."""
        return replace(self, sent=self.sent + cost, reserved=self.reserved - reserved)


def compute_capacity(policy: ContextPolicy) -> int | None:
    """Tokens of a context window that the gateway may fill; None if no window is configured."""
    return None if policy.window is None else policy.window - math.ceil(policy.window * policy.reserve)


def estimate_wanted_tokens(mirror: MirrorPolicy, inline_budget: int, *, is_retrieval: bool) -> int:
    """Tokens that a call may need under these budgets; `is_retrieval`: it returns a whole stored value."""
    if is_retrieval:
        return max(mirror.answer_budget, MIN_CALL_TOKENS)
    return max(mirror.inline_budget, inline_budget, mirror.error_budget, mirror.read_budget) + NOTICE_TOKENS


def lower_budgets(mirror: MirrorPolicy, tokens: int) -> MirrorPolicy:
    """The policy with each budget at most a call's reservation; only paths are returned if a notice might not fit."""
    return replace(
        mirror,
        inline_budget=min(mirror.inline_budget, tokens),
        error_budget=min(mirror.error_budget, tokens),
        read_budget=min(mirror.read_budget, tokens - min(tokens // 8, NOTICE_TOKENS)),  # the lines below a window
        answer_budget=min(mirror.answer_budget, tokens),
        notice=mirror.notice if tokens >= NOTICE_TOKENS else "opaque",
    )
