"""Restores the pruned parts of a conversation.

A text that only resembles a stub, because a user, a tool or the model wrote or repeated one, is never restored: a path
is derived from the part and its owner, so the stored part shows whether the stub is at its original place.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mcp_mirror.prune.formats import ChatFormat, Slot, check_messages, find_slots
from mcp_mirror.prune.replacements import compute_path, replace_values
from mcp_mirror.types import Buffer, Location


def restore_messages(messages: list[Any], read: Callable[[str], Buffer | None], provider: ChatFormat) -> list[Any]:
    """Restore a conversation exactly as it was before `prune_messages`; messages added since remain unchanged.

    Args:
        messages: The result of `prune_messages` in the original order: texts of users and the model are identified by
            their positions, tool results and inputs by the ids of their calls.
        read: Returns the part stored under a path, or None if it does not exist: `memory.get`. A stub without a stored
            part remains; `pruned_paths` lists its path.
        provider: The format of the messages.

    Raises:
        TypeError: A message is not a dict.
        ValueError: The format is unknown.
    """
    check_messages(messages, provider)
    changes: dict[int, dict[Location, Any]] = {}
    for slot in find_slots(messages, provider):
        for value in _find_original(slot, read):
            changes.setdefault(slot.at, {})[slot.where] = value
    if not changes:
        return messages
    return [replace_values(changes[at], given) if at in changes else given for at, given in enumerate(messages)]


def pruned_paths(messages: Sequence[Any], provider: ChatFormat) -> tuple[str, ...]:
    """The paths in the stubs of a conversation and in texts that resemble stubs: those that `restore_messages` reads.

    Raises:
        TypeError: A message is not a dict.
        ValueError: The format is unknown.
    """
    check_messages(messages, provider)
    stubs = (slot.form.find(slot.value) for slot in find_slots(messages, provider))
    return tuple(dict.fromkeys(stub.path for stub in stubs if stub and stub.path))


def _find_original(slot: Slot, read: Callable[[str], Buffer | None]) -> list[Any]:
    """The original value of a part; empty if the part is not a stub of `prune_messages`."""
    stub = slot.form.find(slot.value)
    blob = read(stub.path) if stub and stub.path else None
    if stub is None or blob is None:
        return []
    domains = [domain for domain in slot.form.domains if compute_path(slot, domain, blob) == stub.path]
    return [slot.form.unpack(slot.value, domain, blob) for domain in domains]
