"""Prunes a conversation to a token budget, without loss if a memory is given. Pure: no I/O, clock or randomness."""

from mcp_mirror.prune.formats import ChatFormat
from mcp_mirror.prune.ledger import Estimate
from mcp_mirror.prune.pruning import Cut, Memory, Phase, Pruned, prune_messages, pruned_paths, restore_messages

__all__ = [
    "ChatFormat",
    "Cut",
    "Estimate",
    "Memory",
    "Phase",
    "Pruned",
    "prune_messages",
    "pruned_paths",
    "restore_messages",
]
