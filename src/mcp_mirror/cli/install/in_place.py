"""The plans of an installation in place: each server is wrapped where it is.

The backup beside a file is the file as it is without mcp-mirror. If nothing else in the file changed since, `uninstall`
writes the backup; otherwise it restores the text of each wrapped entry from the backup, or unwraps an entry that the
backup does not have.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, Final

from msgspec.structs import replace

from mcp_mirror.cli.install.entries import Entry, describe_missing_programs
from mcp_mirror.cli.install.files import has_file, read_bytes
from mcp_mirror.cli.install.formats import parse_document
from mcp_mirror.cli.install.formats.document import Add, Document, Edit, Location, Remove, Restore, apply_edits
from mcp_mirror.cli.install.plans import Plan
from mcp_mirror.cli.install.targets import Target
from mcp_mirror.errors import ConfigError

_MEMORY_NAME: Final = "mcp-mirror"
"""The name of the memory tools among a client's servers."""


def plan_wrapping(
    target: Target, program: Sequence[str], chosen: Collection[str] = (), *, with_memory: bool = False
) -> Plan:
    """Plan to wrap the servers of a file that are not wrapped yet.

    `chosen` has the names of the servers to wrap; empty: all. `with_memory` adds the memory tools as one more server.

    Raises:
        ConfigError: The file cannot be read, was installed with `--merge`, or has no server of a name in `chosen`.
    """
    document = target.read()
    entries = target.list_entries(document)
    _check_choice(target, entries, chosen)
    restored = _restore(target, document).data
    reasons = {entry.at: entry.find_reason(is_chosen=entry.name in chosen) for entry in entries}
    if chosen:
        others = (entry for entry in entries if entry.name not in chosen and not entry.is_wrapped)
        reasons |= {entry.at: "it was not chosen" for entry in others}
    edits = {entry.at: entry.wrap(program) for entry in entries if reasons[entry.at] is None}
    after, failures = _edit_each(document, edits)
    reasons |= failures
    changed = [entry.label for entry in entries if reasons[entry.at] is None]
    left = [entry.describe_state(reason) for entry in entries if (reason := reasons[entry.at]) is not None]
    left += describe_missing_programs(entries)
    wrapped = after
    if with_memory and (changed or any(entry.is_wrapped for entry in entries)):
        try:
            after = _add_memory(after, target, program)
        except ConfigError as error:
            left.append(f"not added: the memory tools, because {error}")
    adds_memory = after.data != wrapped.data
    return Plan(target, document.data, after.data, restored, tuple(changed), tuple(left), adds_memory=adds_memory)


def _check_choice(target: Target, entries: Sequence[Entry], chosen: Collection[str]) -> None:
    if is_merged(target, entries):
        raise ConfigError(f"{target.file} was installed with --merge. Uninstall it first, then install again.")
    if unknown := sorted(set(chosen) - {entry.name for entry in entries}):
        raise ConfigError(f"{target.file} has no server {unknown[0]!r}. It has: {', '.join(e.name for e in entries)}.")


def is_merged(target: Target, entries: Iterable[Entry]) -> bool:
    """Return whether `install --merge` made the file: its backup is of another kind."""
    has_gateway = any(entry.is_gateway for entry in entries)
    return has_gateway and has_file(target.backup) and not any(entry.is_wrapped for entry in entries)


def plan_unwrapping(target: Target) -> Plan:
    """Plan to restore a file; ConfigError if it cannot be read, or has no wrapped servers."""
    document = target.read()
    entries = target.list_entries(document)
    wrapped = [entry.label for entry in entries if entry.is_wrapped]
    if not wrapped and not any(entry.is_memory for entry in entries):
        if any(entry.is_gateway for entry in entries):
            raise ConfigError(
                f"The backup {target.backup} of `mcp-mirror install` does not exist. Restore {target.file} by hand."
            )
        raise ConfigError(f"There is nothing to uninstall: {target.file} does not start mcp-mirror.")
    restored = _restore(target, document).data
    return Plan(target, document.data, restored, restored, tuple(wrapped))


def find_changed(target: Target) -> list[str]:
    """Return the wrapped servers whose entries changed since the installation; none without its backup."""
    document, backup = target.read(), _read_backup(target)
    if backup is None:
        return []
    old = _by_key(target.list_entries(backup))
    wrapped = {key: entry for key, entry in _by_key(target.list_entries(document)).items() if entry.is_wrapped}
    return [entry.label for key, entry in wrapped.items() if not _is_wrap_of(old.get(key), entry)]


def _edit_each(document: Document, edits: Mapping[Location, Sequence[Edit]]) -> tuple[Document, dict[Location, str]]:
    """Return the document with the edits of entries, if possible all at once, and why some could not be edited."""
    failures: dict[Location, str] = {}
    try:
        return document.edit(chain(*edits.values())), failures
    except ConfigError:
        for at, each in edits.items():
            try:
                document = document.edit(each)
            except ConfigError as error:
                failures[at] = str(error)
    return document, failures


def _add_memory(document: Document, target: Target, program: Sequence[str]) -> Document:
    """Return the document with the memory tools: once for the whole client, else in each of its projects."""
    entries = target.list_entries(document)
    blocks = [entry.server_at[:-1] for entry in entries if entry.is_wrapped]
    blocks = [at for at in blocks if at[0] != "projects"] or blocks
    present = {entry.server_at[:-1] for entry in entries if entry.is_memory}
    shape, is_list = target.client.shape, isinstance(entries[0].at[-1], int)
    added: dict[str, Any] = {}
    if is_list or shape.has_enabled_entries:
        added["name"] = _MEMORY_NAME
    if shape.has_enabled_entries:
        added["enabled"] = True
    if shape.is_type_required:
        added["type"] = shape.local_type
    added |= shape.write_command([*program, "memory"])
    return document.edit([Add(block, _MEMORY_NAME, added) for block in dict.fromkeys(blocks) if block not in present])


def _restore(target: Target, document: Document) -> Document:
    """Return the document without mcp-mirror."""
    entries = target.list_entries(document)
    if not any(entry.is_wrapped or entry.is_memory for entry in entries):
        return document
    backup = _read_backup(target)
    if backup is not None and _wrap_like(backup, document, target) == document.data:
        return backup
    old = _by_key(target.list_entries(backup)) if backup else {}
    memory = {entry.at: [Remove(entry.server_at)] for entry in reversed(entries) if entry.is_memory}
    document, failures = _edit_each(document, memory)
    if failures:
        raise ConfigError(next(iter(failures.values())))
    found = _by_key(target.list_entries(document))
    wrapped = {key: entry for key, entry in found.items() if entry.is_wrapped}
    edits: dict[Location, list[Edit]] = {}
    for key, entry in wrapped.items():
        if backup is not None and _is_wrap_of(old.get(key), entry):
            edits[entry.at] = [Restore(entry.at, backup, old[key].at)]
        else:
            edits[entry.at] = entry.unwrap()
    document, failures = _edit_each(document, edits)
    for entry in wrapped.values():
        if entry.at in failures:
            document = document.edit(entry.unwrap())
    return document


def _is_wrap_of(old: Entry | None, entry: Entry) -> bool:
    """Return whether an entry is exactly what `install` makes of an entry of the backup."""
    if old is None or old.find_reason(is_chosen=True) is not None:
        return False
    edits = replace(old, at=("it",)).wrap(entry.own.program)
    return bool(apply_edits({"it": old.value}, edits) == {"it": entry.value})


def _wrap_like(backup: Document, document: Document, target: Target) -> bytes | None:
    """Return the backup with the same servers wrapped as in the document; None if they cannot be."""
    entries = target.list_entries(document)
    wrapped = {key: entry for key, entry in _by_key(entries).items() if entry.is_wrapped}
    own = [entry for entry in entries if entry.is_memory]
    edits: list[Edit] = []
    for key, entry in _by_key(target.list_entries(backup)).items():
        like = wrapped.get(key)
        if like is not None and entry.find_reason(is_chosen=True) is None:
            edits += entry.wrap(like.own.program)
    try:
        after = backup.edit(edits)
        return (_add_memory(after, target, own[0].own.program) if own else after).data
    except ConfigError:
        return None


def _by_key(entries: Iterable[Entry]) -> dict[tuple[Location, str, int], Entry]:
    """Return entries by their block, name, and number among those of the same name: indices of a list change."""
    found: dict[tuple[Location, str, int], Entry] = {}
    numbers: Counter[tuple[Location, str]] = Counter()
    for entry in entries:
        named = (entry.server_at[:-1], entry.name)
        found[*named, numbers[named]] = entry
        numbers[named] += 1
    return found


def _read_backup(target: Target) -> Document | None:
    if not has_file(target.backup):
        return None
    try:
        return parse_document(read_bytes(target.backup), target.file)
    except ConfigError:
        return None
