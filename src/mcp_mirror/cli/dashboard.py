"""The command `mcp-mirror dashboard`: the page over the configured store, in a process of its own.

It works whether or not a gateway runs, and without a configuration for users of `wrap` and `install`. Flow policies do
not apply, as in `mcp-mirror values`: a user who can run the command can read the store.
"""

import webbrowser
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Annotated

import anyio
import anyio.to_thread
import typer
from msgspec.structs import replace

from mcp_mirror.cli.options import ConfigOption, StoreOption, VerboseOption
from mcp_mirror.cli.run import print_note, run_until_signal
from mcp_mirror.cli.store import load_store_config
from mcp_mirror.dashboard.api import DashboardApi
from mcp_mirror.dashboard.services import DashboardServices
from mcp_mirror.observability.audit import Audit
from mcp_mirror.observability.audit_file import open_audit_file
from mcp_mirror.payload.spool import Spool
from mcp_mirror.security.flows import build_flows
from mcp_mirror.server.http.dashboard import LocalDashboard
from mcp_mirror.server.http.hosts import AddressCheck
from mcp_mirror.server.http.server import HttpServer, format_url, listen
from mcp_mirror.settings.policies import Config, ServerPolicy
from mcp_mirror.stores.opening import open_persistent_store
from mcp_mirror.system.child_watchdog import ChildWatchdog
from mcp_mirror.workers.frames import FrameScanner
from mcp_mirror.workers.queries import QueryRunner

_HOST = "127.0.0.1"


def dashboard(
    config: ConfigOption = None,
    store: StoreOption = None,
    port: Annotated[int, typer.Option(help="The port on 127.0.0.1; 0: any free port.", min=0, max=65_535)] = 0,
    browser: Annotated[bool, typer.Option(help="Open the page in the browser.")] = True,
    verbose: VerboseOption = 0,
) -> None:
    """Open a page with calls, stored values, lineage and savings.

    Only this machine can reach the page, with the link that the command prints. It works beside running gateways, and
    ends with Ctrl-C. Without a configuration it shows the values of wrapped servers.

    Example: mcp-mirror dashboard

    Example: mcp-mirror dashboard --port 8765 --no-browser
    """
    chosen = load_store_config(config, store, verbose)
    run_until_signal(_serve(chosen, port, opens_browser=browser))


async def _serve(config: Config, port: int, *, opens_browser: bool) -> None:
    async with _open_services(config) as services:
        with listen(_HOST, port) as listening:
            address = format_url(_HOST, listening, "/")
            links: list[str] = []

            def announce(token: str) -> None:
                links.append(f"{address}#token={token}")
                print_note(f"mcp-mirror shows its dashboard on {links[-1]}")
                print_note("The link works once, in one browser tab. Press Ctrl-C to stop.")

            page = LocalDashboard(DashboardApi(services), AddressCheck(ServerPolicy()), announce)
            page.open_link()
            async with anyio.create_task_group() as tasks:
                if opens_browser:
                    tasks.start_soon(
                        partial(anyio.to_thread.run_sync, webbrowser.open, links[0], abandon_on_cancel=True)
                    )
                await HttpServer(page).serve_until(anyio.Event(), listening)
                tasks.cancel_scope.cancel()


@asynccontextmanager
async def _open_services(config: Config) -> AsyncIterator[DashboardServices]:
    """Open the store and the objects that read it."""
    with open_audit_file(config) as audit_file, ChildWatchdog() as child_watchdog, Spool(config.limits) as spool:
        async with (
            open_persistent_store(config) as store,
            aclosing(FrameScanner(child_watchdog, spool)) as scanner,
            aclosing(QueryRunner(child_watchdog, spool)) as queries,
        ):
            limits = replace(config.store, principals=config.auth.principals)
            flows = build_flows(config, is_isolated=config.auth.is_required)
            yield DashboardServices(
                store=store,
                scanner=scanner,
                queries=queries,
                config=config,
                limits=limits.shared() if config.auth.is_required else limits,
                read_flows=lambda: flows,
                audit=Audit(audit_file, config.audit.required),
            )
