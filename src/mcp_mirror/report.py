"""What `mcp-mirror check` tells: every upstream and twin, what they cost, and what is wrong."""

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any, Final

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mcp_mirror.app import Application
from mcp_mirror.locking import shown
from mcp_mirror.tokens import TokenProvider, estimate_tokens
from mcp_mirror.upstreams.upstream import Upstream

_UNCUT: Final = 250
"""Columns of a table that is no terminal's."""


def open_console(*, stderr: bool = False) -> Console:
    """A console that cuts nothing where its output goes into a file or a pipe."""
    console = Console(stderr=stderr, soft_wrap=True)
    return console if console.is_terminal else Console(stderr=stderr, soft_wrap=True, width=_UNCUT)


def _printable(name: str) -> Text:
    """A stranger's name as it is, but for what a terminal would obey or not show."""
    return Text("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in name))


def _cost(advert: dict[str, Any], provider: TokenProvider) -> int:
    return estimate_tokens(json.dumps(advert, ensure_ascii=False), provider)


def report(application: Application) -> list[str]:
    """Print the table of upstreams and twins; give what is wrong."""
    catalog = application.gateway.catalog
    provider = application.gateway.mirror.provider
    table = Table(box=box.SIMPLE)
    for name in ("upstream", "tool"):
        table.add_column(name, overflow="fold")  # a name is of use whole alone
    table.add_column("twin", no_wrap=True)
    table.add_column("tokens", justify="right")
    if catalog.required:
        table.add_column("required scopes", overflow="fold")
    for entry in catalog.entries.values():
        scopes = [" ".join(sorted(catalog.required.get(entry.name, ())))] if catalog.required else []
        cost = f"{_cost(entry.advert, provider):,}"
        table.add_row(entry.upstream, _printable(entry.tool), entry.name, cost, *scopes)
    for finding in catalog.quarantined.values():
        table.add_row(finding.change.upstream, _printable(str(finding.change.tool)), "(quarantined)", "")
    own_tools = application.gateway.own_tools.values()
    for own in own_tools:
        table.add_row("(mcp-mirror)", "", own.name, f"{_cost(own.advert, provider):,}")
    console = open_console()
    console.print(table)
    adverts = [entry.advert for entry in catalog.entries.values()] + [own.advert for own in own_tools]
    total = sum(_cost(advert, provider) for advert in adverts)
    console.print(f"All definitions together: {total:,} tokens at most (estimated).", highlight=False)
    for upstream in application.upstreams:
        state = upstream.status.state
        said = f", {upstream.listing.server}, protocol {upstream.listing.protocol_version}" if upstream.listing else ""
        console.print(f"{upstream.policy.name}: {state}{said}", highlight=False, markup=False)
    down = [f"{one.policy.name}: {one.status.detail}" for one in application.upstreams if one.status.state != "ready"]
    listed = [problem for one in application.upstreams if one.listing for problem in one.listing.problems]
    unused = [said for one in application.upstreams for said in _unused_names(one)]
    return [*down, *listed, *unused, *catalog.problems, *map(shown, catalog.findings)]


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
