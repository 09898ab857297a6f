"""Puts back what was pruned from a conversation.

A text that only looks like a stub, because a user, a tool or the model wrote or repeated one, is never taken for one:
a path is made of the part and of its owner, so what is kept under it says whether the stub stands where it was put.
"""

from collections.abc import Callable, Sequence
from typing import Any

from mcp_mirror.prune.formats import ChatFormat, Slot, check_messages, slots_of
from mcp_mirror.prune.placing import path_of, with_changes
from mcp_mirror.types import Buffer, Location


def restore_messages(messages: list[Any], read: Callable[[str], Buffer | None], provider: ChatFormat) -> list[Any]:
    """The conversation as it was before `prune_messages`, to the byte; what was added to its end since stays.

    Args:
        messages: As `prune_messages` gave them, in their places: texts of users and the model are known by them, tool
            results and inputs by the ids of their calls.
        read: Tells what is kept under a path, None for nothing: `memory.get`. A stub for which it tells None stays as
            it is; `pruned_paths` then tells its path.
        provider: Whose format it is.

    Raises:
        TypeError: A message is no dict.
        ValueError: The format is not known.
    """
    check_messages(messages, provider)
    changes: dict[int, dict[Location, Any]] = {}
    for slot in slots_of(messages, provider):
        for value in _originals(slot, read):
            changes.setdefault(slot.at, {})[slot.where] = value
    if not changes:
        return messages
    return [with_changes(changes[at], given) if at in changes else given for at, given in enumerate(messages)]


def pruned_paths(messages: Sequence[Any], provider: ChatFormat) -> tuple[str, ...]:
    """The paths in the stubs of a conversation, and in what looks like one: what `restore_messages` will read.

    Raises:
        TypeError: A message is no dict.
        ValueError: The format is not known.
    """
    check_messages(messages, provider)
    stubs = (slot.form.find(slot.value) for slot in slots_of(messages, provider))
    return tuple(dict.fromkeys(stub.path for stub in stubs if stub and stub.path))


def _originals(slot: Slot, read: Callable[[str], Buffer | None]) -> list[Any]:
    """What stood in a place; nothing where no stub of ours stands."""
    stub = slot.form.find(slot.value)
    blob = read(stub.path) if stub and stub.path else None
    if stub is None or blob is None:
        return []
    domains = [domain for domain in slot.form.domains if path_of(slot, domain, blob) == stub.path]
    return [slot.form.unpack(slot.value, domain, blob) for domain in domains]
