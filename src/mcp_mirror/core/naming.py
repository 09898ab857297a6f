"""Assigns a unique name to each tool, whatever names its upstreams use.

New names differ in more than case, since models and some clients confuse names that do not. A tool that keeps its own
name may differ from another tool of its server only in case.
"""

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from mcp_mirror.system.patterns import lazy_pattern

Origin = tuple[str, str]
"""A tool: its upstream's name and its own name."""

MAX_NAME: Final = 64
"""Characters that OpenAI accepts, out of `[A-Za-z0-9_-]`."""
SHORT_NAME: Final = 45
"""Characters that leave room for the prefixes of clients (Cursor: 60 with the server's name)."""
_UNSAFE: Final = lazy_pattern(r"[^A-Za-z0-9_-]")
_SAFE: Final = lazy_pattern(rf"[A-Za-z0-9_-]{{1,{MAX_NAME}}}")
_STARTS: Final = lazy_pattern(r"[A-Za-z_]")
"""First characters that Gemini accepts."""
_HASH_LENGTH: Final = 6
_MAX_SUFFIX: Final = MAX_NAME - _HASH_LENGTH - 2

NO_NAMES: Final[Mapping[str, Origin]] = MappingProxyType({})


def fit_name(name: str, suffix: str = "", prefix: str = "") -> str:
    """Build a tool name that every client accepts, the same on every call.

    A name that is shortened or that loses letters of another script gets a hash of the whole name. A name without
    prefix and suffix is unchanged if providers accept it.
    """
    if not suffix and not prefix and _SAFE.fullmatch(name):
        return name
    whole = f"{'' if _STARTS.match(prefix) else '_'}{prefix}_{name}" if prefix else name
    safe, suffix = _UNSAFE.sub("_", whole), _UNSAFE.sub("_", suffix)[:_MAX_SUFFIX]
    room = max(SHORT_NAME - len(suffix), _HASH_LENGTH + 2)
    if 0 < len(safe) <= room and whole.isascii():
        return safe + suffix
    digest = hashlib.sha256(f"{prefix}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:_HASH_LENGTH]
    return f"{safe[: room - _HASH_LENGTH - 1]}_{digest}{suffix}"


class NameAllocator(msgspec.Struct):
    """Names that are assigned, each once."""

    reserved: Collection[str] = ()
    """Names of the gateway's own tools."""
    owned_names: Mapping[str, Origin] = msgspec.field(default_factory=lambda: NO_NAMES)
    """Names that belong or recently belonged to a tool. No other tool gets them, or clients would call another tool."""
    _assigned: set[str] = msgspec.field(default_factory=set)
    _taken: set[str] = msgspec.field(default_factory=set)
    _first_numbers: dict[str, int] = msgspec.field(default_factory=dict)
    """By the name without a number, the first number that may be free. Many names of a server may differ only in
    characters that no client accepts."""

    def __post_init__(self) -> None:
        self._taken |= {name.casefold() for name in self.reserved}

    def keep_original_names(self, tools: Collection[Origin]) -> dict[Origin, str]:
        """Assign tools their own names if these are unique and neither reserved nor those of another tool."""
        times = Counter(name for _, name in tools)
        reserved = {name.casefold() for name in self.reserved}
        free = [
            origin
            for origin in tools
            if times[origin[1]] == 1
            and self._may_have(origin[1], origin)
            and origin[1] not in self._assigned
            and origin[1].casefold() not in reserved
        ]
        for _, name in free:
            self._assign(name)
        return {origin: origin[1] for origin in free}

    def allocate(
        self, tools: Iterable[Origin], suffix: str, others: Iterable[Origin] = ()
    ) -> Iterator[tuple[Origin, str]]:
        """Assign names one by one: with the upstream's name as a prefix if two tools share a name, then with a number.

        The tools choose in their order; `others` have their names already.
        """
        chosen = dict.fromkeys(tools)
        times = Counter([name.casefold() for _, name in {**chosen, **dict.fromkeys(others)}])
        for origin in chosen:
            yield origin, self._choose_name(origin, suffix, is_shared=times[origin[1].casefold()] > 1)

    def _choose_name(self, origin: Origin, suffix: str, *, is_shared: bool) -> str:
        upstream, tool = origin
        name = fit_name(tool, suffix, upstream if is_shared else "")
        if not self._is_free_for(name, origin):
            name = fit_name(tool, suffix, upstream)
        if not self._is_free_for(name, origin):
            name = self._add_number(origin, suffix, name)
        self._assign(name)
        return name

    def _add_number(self, origin: Origin, suffix: str, unnumbered: str) -> str:
        """The first free name with a number, from 2 on; it is not searched below numbers that are known to be taken."""
        upstream, tool = origin
        number = self._first_numbers.get(unnumbered, 2)
        while (name := fit_name(f"{tool}{number}", suffix, upstream)).casefold() in self._taken:
            number += 1
        self._first_numbers[unnumbered] = number
        while not self._is_free_for(name, origin):
            number += 1
            name = fit_name(f"{tool}{number}", suffix, upstream)
        return name

    def _assign(self, name: str) -> None:
        self._assigned.add(name)
        self._taken.add(name.casefold())

    def _is_free_for(self, name: str, origin: Origin) -> bool:
        return name.casefold() not in self._taken and self._may_have(name, origin)

    def _may_have(self, name: str, origin: Origin) -> bool:
        return self.owned_names.get(name, origin) == origin
