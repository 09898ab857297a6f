"""Writes pruned conversations, one JSON line each, for `check_types.py` and `check_messages.mjs` to look at.

    python tests/chats/write_conversations.py COUNT [FORMAT...]

Of each conversation: as it is, with all pruned that can be, and with half of its tokens; with and without a memory.
"""

import json
import sys
from typing import Any

from conversations import CONVERSATIONS
from hypothesis import HealthCheck, Phase, given, seed, settings
from rules import RULES

from mcp_mirror.prune import ChatFormat, prune_messages, restore_messages


def write_line(provider: ChatFormat, messages: list[dict[str, Any]]) -> None:
    """One conversation and its format."""
    sys.stdout.write(json.dumps({"provider": provider, "messages": messages}) + "\n")


def write(provider: ChatFormat, count: int) -> None:
    """Write conversations of one format, all different, the same ones on each run."""

    @seed(20)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(CONVERSATIONS[provider])
    def each(messages: list[dict[str, Any]]) -> None:
        memory: dict[str, bytes] = {}
        half = prune_messages(messages, 0, provider).tokens_before // 2
        for budget, kept in ((0, memory), (half, memory), (0, None)):
            pruned = prune_messages(messages, budget, provider, kept).messages
            RULES[provider](pruned)
            write_line(provider, pruned)
            if kept is not None:
                restored = restore_messages(pruned, memory.get, provider)
                assert json.dumps(restored) == json.dumps(messages)
        write_line(provider, messages)

    each()


if __name__ == "__main__":
    for wanted in CONVERSATIONS:
        if wanted in (sys.argv[2:] or CONVERSATIONS):
            write(wanted, int(sys.argv[1]))
