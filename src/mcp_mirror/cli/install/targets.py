"""The files of clients on this machine, and the servers in them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from mcp_mirror.cli.install.clients import ANY_CLIENT, CLIENTS, Block, Client, Machine, Place, each_file
from mcp_mirror.cli.install.entries import TRANSPORT, Entry
from mcp_mirror.cli.install.files import BACKUP_SUFFIX, has_file, is_file, read_bytes, resolve_path
from mcp_mirror.cli.install.formats import parse_document
from mcp_mirror.cli.install.formats.document import Document, Location, look_up
from mcp_mirror.errors import ConfigError


class Target(msgspec.Struct, frozen=True):
    """A file of a client."""

    client: Client
    place: Place
    file: Path

    @property
    def title(self) -> str:
        """The client and its file, for messages."""
        return f"{self.client.title} ({self.file})"

    @property
    def word(self) -> str:
        """The name of this file on the command line."""
        is_only = self.place.scope == "user" and self.client is not ANY_CLIENT
        return self.client.name if is_only else str(self.file)

    @property
    def backup(self) -> Path:
        """The file as it is without mcp-mirror."""
        return self.file.with_name(self.file.name + BACKUP_SUFFIX)

    def read(self) -> Document:
        """Return the parsed file; ConfigError if it cannot be read or parsed."""
        return parse_document(read_bytes(self.file), self.file)

    def list_entries(self, document: Document | None = None) -> list[Entry]:
        """Return the servers of the file, or of another version of it; ConfigError if it is unusable."""
        known = document or self.read()
        entries: list[Entry] = []
        for at in _find_blocks(known.value, self.place):
            block = look_up(known.value, at)
            if isinstance(block, dict):
                named = [(str(name), name, value) for name, value in block.items()]
            elif isinstance(block, list):
                named = [(_name_of(value, index), index, value) for index, value in enumerate(block)]
            else:
                raise ConfigError(f"{'.'.join(map(str, at))!r} contains no servers but {block!r}. Fix it first.")
            for name, key, value in named:
                # OpenCode has settings of its own beside the servers.
                is_setting = at == ("mcp",) and not isinstance(value, dict)
                if not is_setting and (*at, key) != ("mcp", "servers"):
                    entries.append(self._read_entry(known, name, (*at, key), value))
        return entries

    def _read_entry(self, document: Document, name: str, at: Location, value: Any) -> Entry:
        settings = value if isinstance(value, dict) and isinstance(value.get(TRANSPORT), dict) else None
        if settings:
            at, value = (*at, TRANSPORT), settings[TRANSPORT]
        return Entry(name, at, value, self.client.shape, document.find_problem(at), settings)


def find_targets(machine: Machine) -> list[Target]:
    """Return the files on a machine that have servers or a backup, the user's and those of the current folder."""
    found: dict[Path, Target] = {}
    for client, place, file in each_file(machine):
        if is_file(file) and resolve_path(file) not in found:
            target = Target(client, place, file)
            try:
                has_servers = bool(target.list_entries())
            except ConfigError:  # a later error reports it
                has_servers = True
            if has_servers or has_file(target.backup):
                found[resolve_path(file)] = target
    return list(found.values())


def find_chosen(word: str | None, machine: Machine) -> list[Target]:
    """Return the files that a client's name or a path means, as `find_named`; without a word, those of every client."""
    return find_targets(machine) if word is None else find_named(word, machine)


def find_named(word: str, machine: Machine) -> list[Target]:
    """Return the files that a client's name or a path means, of a client those of the user; ConfigError without any."""
    client = next((client for client in CLIENTS if client.name == word), None)
    if client is None:
        return [_find_file(word, machine)]
    targets = [target for target in find_targets(machine) if target.client is client]
    if chosen := [target for target in targets if target.place.scope == "user"] or targets:
        return chosen
    files = [place.files(machine) for place in client.places]
    first = next(file for some in files for file in some)
    raise ConfigError(f"{client.title} has no servers here: {first} does not exist or names none. Add a server first.")


def _find_file(word: str, machine: Machine) -> Target:
    path = resolve_path(word)
    if not is_file(path):
        names = ", ".join(client.name for client in CLIENTS)
        raise ConfigError(f"{word!r} is neither a client ({names}) nor a file. Name one of these or a client's file.")
    known = [Target(client, place, file) for client, place, file in each_file(machine)]
    if exact := next((target for target in known if resolve_path(target.file) == path), None):
        return exact
    for client in CLIENTS:
        for place in client.places:
            if place.is_like(path):
                return Target(client, Place("project", place.path, place.blocks), path)
    return Target(ANY_CLIENT, ANY_CLIENT.places[0], path)


def _find_blocks(value: Any, place: Place) -> Iterator[Location]:
    """Yield the locations of blocks; of alternatives without `*`, the first that has servers."""
    found = [at for block in place.blocks for at in _expand(value, block)]
    plain = [at for at in found if len(at) <= 2]  # noqa: PLR2004  # longer ones are of `*`
    yield from plain[:1]
    yield from (at for at in found if at not in plain)


def _expand(value: Any, block: Block) -> Iterator[Location]:
    if "*" in block:
        place = block.index("*")
        inner = look_up(value, block[:place])
        for key in inner if isinstance(inner, dict) else ():
            yield from _expand(value, (*block[:place], key, *block[place + 1 :]))
    elif look_up(value, block):
        yield block


def _name_of(value: Any, index: int) -> str:
    name = value.get("name") if isinstance(value, dict) else None
    return str(name or f"number {index + 1}")
