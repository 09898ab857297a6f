"""The command `mcp-mirror check`: connect to every upstream and print tools, twins, costs and problems."""

import json
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
import typer
from msgspec.structs import replace

from mcp_mirror.app import Application, open_application
from mcp_mirror.callers import LOCAL, Caller
from mcp_mirror.cli.console import (
    IS_GATEWAY,
    VALUES_IN_MEMORY,
    new_table,
    open_console,
    print_problems,
    print_table,
    show_progress,
)
from mcp_mirror.cli.lock import describe_finding
from mcp_mirror.cli.options import ConfigOption, VerboseOption
from mcp_mirror.cli.run import load, mute_upstream_warnings, run_until_signal
from mcp_mirror.core.amounts import format_count
from mcp_mirror.memory.tools.table import RETRIEVE
from mcp_mirror.security.sanitize import sanitize, strip_invisible
from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.upstreams import UpstreamPolicy
from mcp_mirror.stores.opening import explain_unusable_default
from mcp_mirror.system.slices import finish
from mcp_mirror.tokens import expected_estimator
from mcp_mirror.types import Buffer
from mcp_mirror.upstreams.listing import Listing
from mcp_mirror.upstreams.registry import Upstream


def check(config: ConfigOption = None, verbose: VerboseOption = 0) -> None:
    """Connect to every upstream; print tools, costs and problems.

    It also checks the store, its bucket, and the keys of `auth.issuers`. The exit code is 0 without problems, 1 with
    problems, 2 if the configuration or the store cannot be used. Settings with which the gateway works, such as one
    that has no effect, are warnings, not problems; a secret that other users can read is a problem.

    Example: mcp-mirror check
    """
    loaded = load(config, verbose, is_quiet=True)
    store = loaded.store
    if not store.kind and not loaded.is_transparent and (store.path or store.encryption):
        # The configuration has keys of the store that a gateway on stdio opens.
        loaded = replace(loaded, store=replace(store, kind="disk"))
    if not verbose:
        mute_upstream_warnings()

    async def run() -> list[str]:
        async with open_application(loaded) as application:
            await _follow_start(application)
            for name in loaded.disabled:
                print(f"{name}: disabled in the configuration")
            if not loaded.upstreams:
                print("no upstreams: clients see only the tools of mcp-mirror itself")
            _print_tools(application)
            _print_client_headers(loaded)
            return [*loaded.exposures, *find_problems(application), *await application.find_unavailable()]

    problems = run_until_signal(run())
    print_problems((one for one in loaded.warnings if one not in loaded.exposures), "warning")
    if reason := run_until_signal(explain_unusable_default(loaded)):
        print_problems([f"{VALUES_IN_MEMORY} {reason}"], "warning")
    print_problems(problems)
    raise typer.Exit(1 if problems else 0)


def connect_once(config: Path) -> list[str]:
    """Connect to every upstream of a configuration, as `check` does; return why upstreams are down, an item for each.

    It prints each upstream when it has connected or failed, and fills the cache of listings. It raises typer.Exit after
    Ctrl-C, and if the gateway cannot start.
    """
    loaded = load(config, is_quiet=True)
    mute_upstream_warnings()

    async def run() -> list[str]:
        async with open_application(loaded) as application:
            await _follow_start(application)
            return explain_all_down(application)

    return run_until_signal(run())


def _count_definition_tokens(tool: Mapping[str, Any], expect: Callable[[Buffer], int]) -> int:
    """Tokens of what a model receives of a definition: name, description and input schema."""
    shown = {member: tool[member] for member in ("name", "description", "inputSchema") if member in tool}
    return expect(json.dumps(shown, ensure_ascii=False).encode("utf-8", "surrogatepass"))


async def _follow_start(application: Application) -> None:
    """Wait until every upstream has connected or failed, and print a line for each at that moment.

    A terminal also shows the upstreams that are still starting, with their seconds so far.
    """
    console, began = open_console(), perf_counter()
    waiting = [upstream.policy.name for upstream in application.upstreams]

    async def follow(upstream: Upstream) -> None:
        await upstream.settled.wait()
        name, state, listing = upstream.policy.name, str(upstream.status.state), upstream.listing
        waiting.remove(name)
        if listing and state == "ready":
            server = strip_invisible(listing.server, 200)
            state = f"ready, {server}, protocol {listing.protocol_version}, {format_count(len(listing.tools), 'tool')}"
        console.print(f"{name}: {state}, after {perf_counter() - began:.1f} s", highlight=False, markup=False)

    def describe() -> str:
        seconds = perf_counter() - began
        return "\n".join(f"{name}: starting, {seconds:.0f} s" for name in sorted(waiting))

    with show_progress(console, describe):
        async with anyio.create_task_group() as tasks:
            for upstream in application.upstreams:
                tasks.start_soon(follow, upstream)


def _print_tools(application: Application) -> None:
    """Print the table of upstreams and twins, and what the definitions of the tools cost."""
    catalog = application.gateway.state.catalog
    listing = finish(application.gateway.listing_for(Caller(LOCAL)))
    expect = expected_estimator(application.gateway.state.config.mirror.provider)
    originals = _count_original_tokens(application, expect)
    twins = {one.name: _count_definition_tokens(one.advert, expect) for one in catalog.entries.values()}
    own_tools = {one.name: _count_definition_tokens(one.advert, expect) for one in listing.own_tools.values()}
    table = new_table(("upstream", "tool", "twin"), ("tokens", "original"))
    if catalog.required:
        table.add_column("required scopes")
    for entry in catalog.entries.values():
        costs = f"{twins[entry.name]:,}", f"{originals[entry.upstream, entry.tool]:,}"
        scopes = [" ".join(sorted(catalog.required.get(entry.name, ())))] if catalog.required else []
        table.add_row(entry.upstream, sanitize(entry.tool), entry.name, *costs, *scopes)
    for finding in catalog.quarantined.values():
        table.add_row(finding.change.upstream, sanitize(str(finding.change.tool)), "(quarantined)", "", "")
    for name, cost in own_tools.items():
        table.add_row("(mcp-mirror)", "", name, f"{cost:,}", "")
    print_table(table, title=2)  # the column of the twins
    console = open_console()
    original = sum(originals.values())
    console.print(f"twins cost {sum(twins.values()):,} tokens, the original tools {original:,}", highlight=False)
    console.print(f"mcp-mirror's own tools cost {sum(own_tools.values()):,} tokens", highlight=False)
    if listing.is_search:
        cost = sum(_count_definition_tokens(advert, expect) for advert in listing.adverts)
        seen = f"clients see {format_count(len(listing.adverts), 'tool')}, {cost:,} tokens, and search the others"
        console.print(seen, highlight=False)


def _print_client_headers(config: Config) -> None:
    """Print which headers the requests of clients need."""
    for upstream in config.upstreams:
        if headers := ", ".join(upstream.client_values.values()):
            needed = f"over HTTP each request needs the header {headers}; on stdio configured values apply"
            print(f"{upstream.name}: {needed}")


def find_problems(application: Application) -> list[str]:
    """Return a sentence for each problem of the upstreams and of their tools."""
    catalog = application.gateway.state.catalog
    listings = [(one.policy, one.listing) for one in application.upstreams if one.listing]
    listed = [problem for _, listing in listings for problem in listing.problems]
    unused = [problem for policy, listing in listings for problem in _find_unused_names(policy, listing)]
    gateways = [
        f"{policy.name}: {IS_GATEWAY}"
        for policy, listing in listings
        if any(tool.name == RETRIEVE for tool in listing.inspected)
    ]
    findings = map(describe_finding, catalog.findings)
    return [*explain_all_down(application), *listed, *unused, *gateways, *catalog.problems, *findings]


def _count_original_tokens(application: Application, expect: Callable[[Buffer], int]) -> Mapping[tuple[str, str], int]:
    """By upstream and tool, the tokens of each served definition as its server sends it."""
    served = {(entry.upstream, entry.tool) for entry in application.gateway.state.catalog.entries.values()}
    return {
        key: _count_definition_tokens(tool, expect)
        for upstream in application.upstreams
        if upstream.listing
        for tool in upstream.listing.tools
        if (key := (upstream.policy.name, str(tool.get("name")))) in served
    }


def explain_all_down(application: Application) -> list[str]:
    """Return why upstreams are down, each with the lines that it printed before it failed."""
    explained: list[str] = []
    for upstream in application.upstreams:
        status = upstream.status
        if status.state != "ready":
            is_quoted = len(status.output) == 1 and status.detail.endswith(status.output[0])
            output = () if is_quoted else status.output
            explained.append("\n    ".join((f"{upstream.policy.name}: {status.detail}", *output)))
    return explained


def _find_unused_names(policy: UpstreamPolicy, listing: Listing) -> Iterator[str]:
    """Yield a problem for each tool name in the configuration that the upstream does not have.

    A glob without a match may anticipate future tools, unless it restricts tools to some principals.
    """
    tools = [str(tool.get("name")) for tool in listing.tools]
    scoped = {glob for glob, each in policy.overrides if each.required_scopes}
    for glob in dict.fromkeys((*policy.allow, *policy.deny, *(glob for glob, _ in policy.overrides))):
        is_meant = glob in scoped or not set("*?[") & set(glob)
        if is_meant and not any(fnmatchcase(tool, glob) for tool in tools):
            yield f"{policy.name}: it has no tool {glob!r}, which the configuration names. Correct or remove the name."
