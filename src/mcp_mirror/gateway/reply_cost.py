"""Counts the tokens of a reply without blocking the event loop."""

from collections.abc import Callable
from typing import Final

import anyio.to_thread

from mcp_mirror.core.budgets import count_result_tokens
from mcp_mirror.core.replies import Reply, count_reply_bytes
from mcp_mirror.types import Buffer

_INLINE_BYTES: Final = 1 << 17
"""Replies up to this size are counted on the event loop, larger ones in a thread."""


async def count_reply_tokens(reply: Reply, estimate: Callable[[Buffer], int]) -> int:
    """Return the tokens that a model reads of a reply.

    Args:
        reply: The reply.
        estimate: Returns the tokens of a text.
    """
    if count_reply_bytes(reply) > _INLINE_BYTES:
        return await anyio.to_thread.run_sync(count_result_tokens, reply, estimate)
    return count_result_tokens(reply, estimate)
