"""What is sent is counted, and fits: each answer against what its call may send, and into the sums of its namespace."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

import anyio.to_thread

from mcp_mirror.core.budgets import count_result_tokens
from mcp_mirror.core.replies import EMPTY_ERROR, Reply, error_reply
from mcp_mirror.gateway.context_budgets import ContextBudgets, Conversation, Reservation
from mcp_mirror.memory.usage import UsageCounter
from mcp_mirror.types import Buffer

_AT_ONCE_BYTES = 1 << 17
"""Replies up to this size are weighed without leaving the event loop."""


@dataclass(frozen=True, slots=True)
class ReplyBudget:
    """Counts."""

    conversations: ContextBudgets
    usage_counter: UsageCounter
    estimate: Callable[[Buffer], int] = field(repr=False)
    """Tells tokens."""

    def hold(
        self, namespace: str, conversation: Conversation | None, wanted: int, definitions: Callable[[], Buffer]
    ) -> AbstractContextManager[Reservation]:
        """What a call may send; see `ContextBudgets.hold`. Here `definitions` gives what is listed, as JSON."""
        return self.conversations.hold(namespace, conversation, wanted, lambda: self.estimate(definitions()))

    async def send(self, namespace: str, tool: str, hold: Reservation, reply: Reply) -> Reply:
        """An answer as it is sent: exchanged for words where it does not fit, and these for none."""
        cost = await self.cost_of(reply)
        if self.charge(namespace, hold, cost):
            return reply
        words = error_reply(_too_much(tool, cost, hold.left))
        if self.charge(namespace, hold, await self.cost_of(words)):
            return words
        self.charge(namespace, hold, 0)
        return EMPTY_ERROR

    async def fits(self, hold: Reservation, reply: Reply) -> bool:
        """Whether an answer is within what its call holds."""
        return hold.tokens is None or hold.admits(await self.cost_of(reply))

    async def pass_on(self, tool: str, hold: Reservation, reply: Reply) -> Reply:
        """A result that is not stored, as it came, if there is any room for it; else that it was lost."""
        if hold.tokens is None or hold.widen(cost := await self.cost_of(reply)):
            return reply
        return error_reply(_lost(tool, cost, hold.left))

    def charge(self, namespace: str, hold: Reservation, cost: int) -> bool:
        """Count what is sent; False, and nothing counted, where it does not fit."""
        if not hold.widen(cost):
            return False
        hold.settle(cost)
        hold.sent = cost
        self.usage_counter.add(namespace, cost, max(hold.stands_for - cost, 0))
        return True

    def cost_of_text(self, text: str) -> int:
        """Tokens of an error's message."""
        return self.estimate(text.encode())

    async def cost_of(self, reply: Reply) -> int:
        """Tokens that a model reads of an answer; to weigh a large one takes a while."""
        size = sum(len(part) for one in reply.values() for part in (one if isinstance(one, tuple) else (one,)))
        if size > _AT_ONCE_BYTES:
            return await anyio.to_thread.run_sync(count_result_tokens, reply, self.estimate)
        return count_result_tokens(reply, self.estimate)


def full(hold: Reservation) -> Reply:
    """The answer to a call for which there is no room."""
    return error_reply(
        f"This conversation's context is full: {hold.left:,} tokens are left for tools' answers. Nothing was called. "
        "Compact the conversation, or begin another one."
    )


def _lost(tool: str, cost: int, left: int) -> str:
    return (
        f"Tool {tool!r} was called. Its result, about {cost:,} tokens, does not fit the {left:,} that are left in this "
        "conversation's context, and is not stored (`capture: never`). Compact the conversation, or ask for less."
    )


def _too_much(tool: str, cost: int, left: int) -> str:
    return (
        f"The answer of {tool} takes about {cost:,} tokens; {left:,} are left in this conversation's context. Ask for "
        "less, or compact the conversation."
    )
