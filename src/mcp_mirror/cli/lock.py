"""The command `mcp-mirror lock`: compare the tool definitions of all upstreams with the lock file."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Annotated, Final

import msgspec
import typer
from msgspec.structs import replace

from mcp_mirror.app import Application, open_application
from mcp_mirror.cli.console import open_console, print_problems
from mcp_mirror.cli.options import ConfigOption, VerboseOption
from mcp_mirror.cli.run import load, mute_upstream_warnings, print_note, run_until_signal
from mcp_mirror.config.lock_file import read_file, write_file
from mcp_mirror.security.pins import NO_LOCK, DefinitionChange, Finding, Lock, Pinned, compare_locks, pin_upstream
from mcp_mirror.settings.policies import LockPolicy

_EFFECT: Final = " Running gateways read the file at a reload (SIGHUP) or at their next start."
_KEPT: Final = "Its locked definitions stay as they are. Run `mcp-mirror lock` again when it is ready."
_NOT_LOCKED: Final = (
    "None of its definitions is locked, so gateways quarantine all its tools when it is ready (`lock.mode: block`). "
    "Then run `mcp-mirror lock` again, and reload the gateways."
)
_STYLES: Final = {"  -": "red", "  +": "green"}
"""By the beginning of a line, its colour."""
_SHOWN: Final = 40
"""Lines of a difference that `check` prints."""


def lock(
    config: ConfigOption = None,
    only_check: Annotated[
        bool, typer.Option("--check", help="Write nothing; the exit code is 1 if anything differs.")
    ] = False,
    verbose: VerboseOption = 0,
) -> None:
    """Compare all tools with the lock file, and update the file.

    The exit code is 1 if an upstream cannot be listed; its entries in the lock file stay as they are. `lock.file` in
    the configuration names the file.

    Example: mcp-mirror lock
    """
    loaded = load(config, verbose)
    mute_upstream_warnings()
    file = Path(loaded.lock.file or "")

    async def run() -> Comparison:
        before = read_file(file)
        async with open_application(replace(loaded, lock=LockPolicy("off"))) as application:
            found = await compare(application, before)
        if not only_check and (found.changes or before is None):
            write_file(file, found.after)
        return found

    found = run_until_signal(run())
    for line in found.lines(is_written=not only_check):
        open_console().print(line, style=_STYLES.get(line[:3]), highlight=False, markup=False)
    print_note(f"mcp-mirror: {found.summary(file, is_written=not only_check)}")
    print_problems(found.problems)
    raise typer.Exit(1 if found.problems or (only_check and found.changes) else 0)


class Comparison(msgspec.Struct, frozen=True):
    """The lock file before and after."""

    before: Lock | None
    after: Lock
    problems: tuple[str, ...]
    """A sentence for each definition that cannot be compared."""

    @property
    def changes(self) -> tuple[DefinitionChange, ...]:
        """The definitions that differ."""
        return compare_locks(self.before or NO_LOCK, self.after)

    def summary(self, file: Path, *, is_written: bool) -> str:
        """Return how many definitions are or are not in the lock file, and what makes a new file effective."""
        count = len(self.changes)
        if self.before is None:
            definitions = f"{count} {'definition is' if count == 1 else 'definitions are'}"
            if is_written:
                return f"{definitions} locked in {file}.{_EFFECT}"
            return f"The lock file {file} does not exist; {definitions} not locked."
        if not count:
            return f"all{' that could be compared' if self.problems else ''} is as locked in {file}."
        now, effect = ("now", _EFFECT) if is_written else ("not", "")
        return f"{count} {'difference is' if count == 1 else 'differences are'} {now} in {file}.{effect}"

    def lines(self, *, is_written: bool) -> Iterator[str]:
        """Yield the changes line by line; of a first lock only the names, since the file contains the definitions."""
        for change in self.changes:
            if self.before is None and is_written:
                yield f"Locked: {change.subject[0].lower()}{change.subject[1:]}."
            else:
                yield f"{change.subject} {change.predicate}{change.changed_members}."
            if self.before is not None:
                yield from (f"  {line}" for line in change.lines())


async def compare(application: Application, before: Lock | None) -> Comparison:
    """List every upstream and compare it with its lock; an upstream that is down keeps its lock."""
    problems: list[str] = []
    after: dict[str, Pinned] = {}
    for upstream in application.upstreams:
        await upstream.settled.wait()
        name = upstream.policy.name
        known = before.upstreams.get(name) if before else None
        if listing := upstream.listing:
            served = [one.raw for one in listing.inspected if not one.rejection] if listing.inspected else listing.tools
            after[name], unpinned = pin_upstream(upstream.policy, listing.instructions, served)
            problems += (*listing.problems, *unpinned)
            continue
        rest = _KEPT if known else _NOT_LOCKED
        problems.append(f"Upstream {name!r} cannot be listed: {upstream.status.detail or 'it is down.'} {rest}")
        if known:
            after[name] = known
    return Comparison(before, Lock(1, after), tuple(problems))


def describe_finding(finding: Finding) -> str:
    """Return a finding for `check`: its sentence and the beginning of the difference."""
    lines = list(islice(finding.change.lines(), _SHOWN + 1))
    more = ["  ..."] if len(lines) > _SHOWN else []
    return "\n".join((finding.sentence, *(f"  {line}" for line in lines[:_SHOWN]), *more))
