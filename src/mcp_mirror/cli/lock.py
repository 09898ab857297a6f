"""What `mcp-mirror lock` finds: how upstreams define their tools now, and what of that is not as locked."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final

from mcp_mirror.app import Application
from mcp_mirror.security.pins import NO_LOCK, DefinitionChange, Finding, Lock, Pinned, differences, pin_upstream
from mcp_mirror.upstreams.upstream import Upstream

DIFFERENCES: Final = {"  -": "red", "  +": "green"}
"""How lines look that begin so."""
_SHOWN: Final = 40
"""Lines of a difference that `check` shows."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The lock file, and what would be in it now."""

    was: Lock | None
    now: Lock
    problems: tuple[str, ...]
    """What could not be looked at, a sentence each."""

    @property
    def changes(self) -> tuple[DefinitionChange, ...]:
        """What differs."""
        return differences(self.was or NO_LOCK, self.now)

    def outcome(self, *, is_written: bool) -> str:
        """The end of it: how many differences are or are not in the lock file."""
        count = len(self.changes)
        if self.was is None and is_written:
            return f"{count} {'definition is' if count == 1 else 'definitions are'} locked"
        become = "now" if is_written else "not"
        return (
            f"{count} {'difference is' if count == 1 else 'differences are'} {become}" if count else "all is as locked"
        )

    def told(self, *, is_written: bool) -> Iterator[str]:
        """The changes, line by line; what the first lock holds is in its file to be read."""
        for change in self.changes:
            is_first = self.was is None and is_written
            yield change.what if is_first else f"{change.what} {change.how}{change.where}."
            if self.was is not None:
                yield from (f"  {line}" for line in change.lines())


async def compare(application: Application, was: Lock | None) -> Comparison:
    """List every upstream and hold what it says against what is locked; of one that is away that stays locked."""
    problems: list[str] = []
    now: dict[str, Pinned] = {}
    for upstream in application.upstreams:
        await upstream.settled.wait()
        name = upstream.policy.name
        if found := _pinned(upstream, problems):
            now[name] = found
        elif was and name in was.upstreams:
            now[name] = was.upstreams[name]
    return Comparison(was, Lock(1, now), tuple(problems))


def _pinned(upstream: Upstream, problems: list[str]) -> Pinned | None:
    policy, listing = upstream.policy, upstream.listing
    if listing is None:
        problems.append(f"Upstream {policy.name!r} cannot be listed: {upstream.status.detail or 'it is down.'}")
        return None
    problems.extend(listing.problems)
    served = [one.raw for one in listing.examined if not one.excess] if listing.examined else listing.tools
    return pin_upstream(policy, listing.instructions, served, problems)


def shown(finding: Finding) -> str:
    """A finding for `check`: what is the matter, and the beginning of the difference."""
    lines = list(islice(finding.change.lines(), _SHOWN + 1))
    more = ["  ..."] if len(lines) > _SHOWN else []
    return "\n".join((finding.sentence, *(f"  {line}" for line in lines[:_SHOWN]), *more))
