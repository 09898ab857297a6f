"""Keeps every reply within the tokens that are left in its conversation (`context.window`)."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import msgspec

from mcp_mirror.core.budgets import estimate_wanted_tokens
from mcp_mirror.core.replies import EMPTY_ERROR, Reply, build_error_reply
from mcp_mirror.errors import RefusalReason, RefusedError
from mcp_mirror.gateway.call import Call, Next
from mcp_mirror.gateway.context_budgets import ContextBudgets, Reservation
from mcp_mirror.gateway.reply_cost import count_reply_tokens
from mcp_mirror.gateway.tool_search import choose_listing
from mcp_mirror.memory.tools.table import RETRIEVE
from mcp_mirror.payload.floods import finish
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.content_filter import is_for_client


@dataclass(frozen=True, slots=True)
class ContextBudgetStage:
    """Reserves tokens before a call and settles them after it."""

    budgets: ContextBudgets
    estimate: Callable[[Buffer], int] = field(repr=False)
    """Returns the tokens of a text."""

    async def __call__(self, call: Call, call_next: Next) -> Reply:
        """Answer a call within its reservation; a reply that does not fit becomes an error that fits.

        Raises:
            RefusedError: The upstream's JSON-RPC error goes to the client, and there is room for it.
        """
        if call.conversation is None:
            return await call_next(call)
        wanted = _tokens_wanted(call)
        with self.budgets.reserve(
            call.namespace, call.conversation, wanted, lambda: self._count_definition_tokens(call)
        ) as held:
            if held.is_exhausted:
                call.trace.reason = RefusalReason.CONTEXT_FULL
                reply = build_error_reply(_explain_full_context(held))
            else:
                try:
                    reply = await call_next(replace(call, reservation=held))
                except RefusedError as error:
                    if is_for_client(error) or _settle(call, held, self.estimate(str(error).encode())):
                        raise
                    reply = build_error_reply(str(error))
            return await self._bound(call, held, reply)

    def _count_definition_tokens(self, call: Call) -> int:
        """Return the tokens of the listed definitions, with which every conversation begins."""
        listing = finish(choose_listing(call.config.mirror, call.catalog, call.own_tools))
        return self.estimate(msgspec.json.encode(listing.adverts))

    async def _bound(self, call: Call, held: Reservation, reply: Reply) -> Reply:
        """Return the reply if it fits, else an error that fits, at worst an empty one."""
        cost = await count_reply_tokens(reply, self.estimate)
        if _settle(call, held, cost):
            return reply
        error = build_error_reply(_explain_too_large(call.name, cost, held.left))
        if _settle(call, held, await count_reply_tokens(error, self.estimate)):
            return error
        _settle(call, held, 0)
        return EMPTY_ERROR


def _settle(call: Call, held: Reservation, cost: int) -> bool:
    """Count the tokens of a reply; False, without counting them, if the reply does not fit."""
    if not held.widen(cost):
        return False
    held.settle(cost)
    call.trace.sent = cost
    return True


def _tokens_wanted(call: Call) -> int:
    entry = call.catalog.entries.get(call.name)
    inline_budget = entry.rules.inline_budget if entry else 0
    return estimate_wanted_tokens(call.config.mirror, inline_budget, is_retrieval=call.name == RETRIEVE)


def _explain_full_context(held: Reservation) -> str:
    return (
        f"This conversation's context is full: {held.left:,} tokens are left for tool results. Nothing was called. "
        "Compact the conversation, or start a new one."
    )


def _explain_too_large(tool: str, cost: int, left: int) -> str:
    return (
        f"The answer of {tool} takes about {cost:,} tokens; {left:,} are left in this conversation's context. Ask for "
        "less, or compact the conversation."
    )
