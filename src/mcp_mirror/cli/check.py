"""What `mcp-mirror check` prints: its progress, every upstream and twin, what they cost, and what is wrong."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from fnmatch import fnmatchcase
from typing import Any, Final

import anyio
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcp_mirror.app import Application
from mcp_mirror.cli.lock import shown
from mcp_mirror.tokens import expecter
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.upstream import Upstream

_UNCUT: Final = 250
"""Columns of a table that is no terminal's."""
_REFRESH: Final = 0.25
"""Seconds between two updates of the progress on a terminal."""


def open_console(*, stderr: bool = False) -> Console:
    """A console that cuts nothing where its output goes into a file or a pipe."""
    console = Console(stderr=stderr, soft_wrap=True)
    return console if console.is_terminal else Console(stderr=stderr, soft_wrap=True, width=_UNCUT)


def _printable(name: str) -> Text:
    """A stranger's name as it is, but for what a terminal would obey or not show."""
    return Text("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name))


def _cost(tool: Mapping[str, Any], expect: Callable[[Buffer], int]) -> int:
    """Tokens of a definition as models get it: name, description and input schema."""
    shown = {member: tool[member] for member in ("name", "description", "inputSchema") if member in tool}
    return expect(json.dumps(shown, ensure_ascii=False).encode("utf-8", "surrogatepass"))


async def follow_start(application: Application) -> None:
    """Wait until every upstream has been tried, and print a line for each as soon as it has.

    On a terminal those that are not ready yet stand below, with the seconds that they have taken.
    """
    from rich.live import Live  # noqa: PLC0415  # for this command only

    console, began = open_console(), anyio.current_time()
    waiting = {upstream.policy.name for upstream in application.upstreams}
    sender, receiver = anyio.create_memory_object_stream[Upstream](len(waiting))

    async def follow(upstream: Upstream) -> None:
        await upstream.settled.wait()
        sender.send_nowait(upstream)

    live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
    async with anyio.create_task_group() as tasks:
        for upstream in application.upstreams:
            tasks.start_soon(follow, upstream)
        with sender, receiver, live or nullcontext():
            while waiting:
                seconds = anyio.current_time() - began
                if live:
                    rows = (f"{name}: starting, {seconds:.0f} s" for name in sorted(waiting))
                    live.update(Text("\n".join(rows)), refresh=True)
                with anyio.move_on_after(_REFRESH if live else None):
                    settled = await receiver.receive()
                    waiting.discard(settled.policy.name)
                    said = _state_of(settled, anyio.current_time() - began)
                    console.print(said, highlight=False, markup=False)


def _state_of(upstream: Upstream, seconds: float) -> str:
    listing, name = upstream.listing, upstream.policy.name
    if listing is None or upstream.status.state != "ready":
        return f"{name}: {upstream.status.state}, after {seconds:.1f} s"
    said = f"{listing.server}, protocol {listing.protocol_version}, {len(listing.tools):,} tools"
    return f"{name}: ready, {said}, after {seconds:.1f} s"


def report(application: Application) -> list[str]:
    """Print the table of upstreams and twins; return what is wrong."""
    catalog = application.gateway.catalog
    expect = expecter(application.gateway.mirror.provider)
    table = Table(box=box.SIMPLE)
    for name in ("upstream", "tool"):
        table.add_column(name, overflow="fold")  # a name is of use whole alone
    table.add_column("twin", no_wrap=True)
    for name in ("tokens", "alone"):
        table.add_column(name, justify="right", overflow="fold")
    if catalog.required:
        table.add_column("required scopes", overflow="fold")
    twins, alone, own_cost = 0, _direct_costs(application, expect), 0
    for entry in catalog.entries.values():
        scopes = [" ".join(sorted(catalog.required.get(entry.name, ())))] if catalog.required else []
        cost, direct = _cost(entry.advert, expect), alone[entry.upstream, entry.tool]
        twins += cost
        table.add_row(entry.upstream, _printable(entry.tool), entry.name, f"{cost:,}", f"{direct:,}", *scopes)
    for finding in catalog.quarantined.values():
        table.add_row(finding.change.upstream, _printable(str(finding.change.tool)), "(quarantined)", "", "")
    for own in application.gateway.own_tools.values():
        cost = _cost(own.advert, expect)
        own_cost += cost
        table.add_row("(mcp-mirror)", "", own.name, f"{cost:,}", "")
    console = open_console()
    console.print(table)
    console.print(f"twins cost {twins:,} tokens, the servers alone {sum(alone.values()):,}", highlight=False)
    console.print(f"mcp-mirror's own tools cost {own_cost:,} tokens", highlight=False)
    down = [_explain_down(one) for one in application.upstreams if one.status.state != "ready"]
    listed = [problem for one in application.upstreams if one.listing for problem in one.listing.problems]
    unused = [said for one in application.upstreams for said in _unused_names(one)]
    return [*down, *listed, *unused, *catalog.problems, *map(shown, catalog.findings)]


def _direct_costs(application: Application, expect: Callable[[Buffer], int]) -> Mapping[tuple[str, str], int]:
    """By upstream and tool that is served, the tokens of the definition as the server sends it."""
    served = {(entry.upstream, entry.tool) for entry in application.gateway.catalog.entries.values()}
    return {
        key: _cost(tool, expect)
        for upstream in application.upstreams
        if upstream.listing
        for tool in upstream.listing.tools
        if (key := (upstream.policy.name, str(tool.get("name")))) in served
    }


def _explain_down(upstream: Upstream) -> str:
    """Why an upstream is down, with what it printed before it failed."""
    return "\n    ".join((f"{upstream.policy.name}: {upstream.status.detail}", *upstream.status.output))


def _unused_names(upstream: Upstream) -> Iterator[str]:
    """Of names in the configuration that are to be tools of an upstream, those that are none.

    A glob that matches nothing may be meant for what is not there yet, unless it keeps tools from some principals.
    """
    if upstream.listing is None:
        return
    policy, tools = upstream.policy, [str(tool.get("name")) for tool in upstream.listing.tools]
    scoped = {glob for glob, each in policy.overrides if each.required_scopes}
    for glob in dict.fromkeys((*policy.allow, *policy.deny, *(glob for glob, _ in policy.overrides))):
        is_meant = glob in scoped or not set("*?[") & set(glob)
        if is_meant and not any(fnmatchcase(tool, glob) for tool in tools):
            yield f"{policy.name}: it has no tool {glob!r}, which the configuration names. Correct it or take it out."
