"""Under which name each tool is served: one name is one tool's alone, whatever upstreams call theirs.

Two names that differ in case alone are one, since models and some clients take them for one. Pure.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from mcp_mirror.core.schema import fit_name

Origin = tuple[str, str]
"""A tool: its upstream's name, and its own."""

NO_NAMES: Final[Mapping[str, Origin]] = MappingProxyType({})


@dataclass(slots=True)
class NameAllocator:
    """Names that are given out, each once."""

    reserved: Collection[str] = ()
    """Names of our own tools."""
    held: Mapping[str, Origin] = field(default_factory=lambda: NO_NAMES)
    """Names that are, or were a while ago, one tool's: nobody else gets them, or a client would call another tool."""
    _given: set[str] = field(default_factory=set)
    _taken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._taken |= {name.casefold() for name in self.reserved}

    def keep_original_names(self, tools: Collection[Origin]) -> dict[Origin, str]:
        """Let tools keep the very names that they have, where no two have the same one and it is not another's."""
        times = Counter(name for _, name in tools)
        free = [one for one in tools if times[one[1]] == 1 and self._is_for(one[1], one) and one[1] not in self._given]
        for _, name in free:
            self._give(name)
        return {one: one[1] for one in free}

    def allocate(
        self, tools: Iterable[Origin], suffix: str, others: Iterable[Origin] = ()
    ) -> Iterator[tuple[Origin, str]]:
        """Names for tools, one by one: with the upstream's before it where two have one name, else with a number.

        Args:
            tools: Those that get one, in the order in which they choose.
            suffix: What each name ends with.
            others: Those that have theirs.
        """
        chosen = dict.fromkeys(tools)
        times = Counter(name.casefold() for _, name in {*chosen, *others})
        for one in chosen:
            yield one, self._name(one, suffix, is_shared=times[one[1].casefold()] > 1)

    def _name(self, one: Origin, suffix: str, *, is_shared: bool) -> str:
        upstream, tool = one
        name, salt = fit_name(tool, suffix, upstream if is_shared else ""), 0
        while name.casefold() in self._taken or not self._is_for(name, one):
            salt += 1
            name = fit_name(tool if salt == 1 else f"{tool}{salt}", suffix, upstream)
        self._give(name)
        return name

    def _give(self, name: str) -> None:
        self._given.add(name)
        self._taken.add(name.casefold())

    def _is_for(self, name: str, one: Origin) -> bool:
        return self.held.get(name, one) == one
