"""Follows changes of upstreams: rebuilds catalogs, logs deviations from pins, and notifies clients."""

import asyncio
import logging
from dataclasses import replace
from itertools import islice
from typing import Final

import anyio
import anyio.lowlevel
import msgspec

from mcp_mirror.callers import OWN_UPSTREAM
from mcp_mirror.core.catalog import Catalog, CatalogEntry, CatalogRules, build_catalog
from mcp_mirror.core.naming import Origin
from mcp_mirror.gateway.call import RuntimeState
from mcp_mirror.gateway.contents import CONTENT_SLUGS
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.subscriptions import Subscriptions
from mcp_mirror.gateway.tool_search import search_tools
from mcp_mirror.memory.tools.table import RUN, TOOLS
from mcp_mirror.memory.tools.table import SLUGS as OWN_SLUGS
from mcp_mirror.server.announcements import Announcements, ListChange
from mcp_mirror.server.sessions import Sessions
from mcp_mirror.settings.labels import FUNCTIONS
from mcp_mirror.settings.upstreams import UpstreamPolicy
from mcp_mirror.system.event_loop import expect_growth
from mcp_mirror.system.slices import Steps, finish, take_sliced
from mcp_mirror.upstreams.listing import Listing

_logger = logging.getLogger(__name__)

_NOTIFY_INTERVAL: Final = 1.0
"""Seconds between two rounds of notifications to clients, however often something changes."""
_TOOL_BLOCKS: Final = 160
"""Blocks of memory that a further tool takes, about: its listing, and its entry in the catalog."""
_INLINE_TOOLS: Final = 500
"""Catalogs of up to this many tools are rebuilt at once, which takes 10 ms; larger ones in slices."""
_MAX_RESERVED: Final = 100_000
"""Names whose owners are remembered."""
_MAX_LOGGED: Final = 10
"""Findings that one rebuild logs."""


class _CatalogRebuild(msgspec.Struct, frozen=True):
    """Catalogs that must be rebuilt."""

    owners: tuple[str | None, ...]
    upstream: str | None
    is_done: anyio.Event = msgspec.field(default_factory=anyio.Event)


class _RebuiltCatalog(msgspec.Struct, frozen=True):
    """A rebuilt catalog, and its differences from those that are served."""

    catalog: Catalog
    deviations: list[str]
    """Deviations from the pins, one sentence each."""
    is_changed: bool
    """The owner's clients see a difference."""
    is_common: bool
    """The catalog equals the one that all clients share."""


class ChangeNotifier:
    """Serves a new catalog as soon as a list changes, and notifies clients."""

    def __init__(
        self, gateway: Gateway, subscriptions: Subscriptions, announcements: Announcements, sessions: Sessions
    ) -> None:
        self._gateway = gateway
        self._upstreams = gateway.upstreams
        self._subscriptions = subscriptions
        self.announcements = announcements
        self._sessions = sessions
        self._pending: dict[ListChange, None] = {}
        self._rebuilds: asyncio.Queue[_CatalogRebuild] = asyncio.Queue()
        self._generation = 0
        """Counts the catalogs that were rebuilt at once."""
        self._has_pending = anyio.Event()
        self._reserved: dict[str, Origin] = {}
        """The owner of each tool name; a name stays with its owner."""
        self._logged: dict[str | None, frozenset[str]] = {}
        """Deviations that were logged, by owner without the common ones: each is logged once, not at every listing."""

    @property
    def _state(self) -> RuntimeState:
        return self._gateway.state

    def release_names(self, removed: frozenset[str]) -> None:
        """Free the tool names of upstreams that were removed from the configuration."""
        self._reserved = {name: origin for name, origin in self._reserved.items() if origin[0] not in removed}

    def list_changed(self, kind: str, owner: str | None, upstream: str | None = None) -> anyio.Event | None:
        """Handle a changed list, on an owner's connection or for all clients.

        `kind` is `tools`, `resources` or `prompts`. `upstream` is None if the configuration changed.

        Returns:
            An event that is set when the catalogs are rebuilt; None if they are. Catalogs of many tools are rebuilt in
            slices, so that calls are answered in between.
        """
        if kind == "tools":
            return self._rebuild((owner, *self._find_affected(owner)), upstream)
        self._enqueue(ListChange(kind, owner, required=self._find_required_scopes(upstream), upstream=upstream))
        return None

    def _rebuild(self, owners: tuple[str | None, ...], upstream: str | None = None) -> anyio.Event | None:
        listings = [listing for owner in owners for _, listing in self._find_listings(owner)]
        tools = sum(len(listing.tools) for listing in listings if listing)
        if tools > _INLINE_TOOLS and upstream != FUNCTIONS:
            rebuild = _CatalogRebuild(owners, upstream)
            self._rebuilds.put_nowait(rebuild)
            return rebuild.is_done
        self._generation += 1
        self._serve_catalogs(owners, upstream, finish(self._compare(owners)))
        return None

    def _find_affected(self, owner: str | None) -> tuple[str, ...]:
        """Return the other owners whose catalogs contain the tools on an owner's connection."""
        catalogs = self._state.catalogs
        if owner is None:
            return tuple(catalogs)
        is_session = self._sessions.find(owner) is not None
        return () if is_session else tuple(one for one in catalogs if self._find_principal(one) == owner)

    def _find_listings(self, owner: str | None) -> list[tuple[UpstreamPolicy, Listing | None]]:
        """Return the listings that an owner of connections sees."""
        principal = self._find_principal(owner)
        return [(one.policy, one.listing_for(owner, principal)) for one in self._upstreams]

    def _find_principal(self, owner: str | None) -> str | None:
        """Return the `Caller.principal_key` of an owner that is a session; None for others."""
        session = None if owner is None else self._sessions.find(owner)
        return session.caller.principal_key if session else None

    async def run(self) -> None:
        """Rebuild large catalogs and notify clients until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._run_rebuilds)
            tasks.start_soon(self._run_notifications)

    async def _run_rebuilds(self) -> None:
        """Rebuild the catalogs of many tools, in the order of their changes."""
        while True:
            rebuild = await self._rebuilds.get()
            generation = None
            while generation != self._generation:  # newer listings may have been rebuilt in between
                generation = self._generation
                rebuilt = await take_sliced(self._compare(rebuild.owners))
            replaced = self._list_entries(rebuild.owners)
            self._serve_catalogs(rebuild.owners, rebuild.upstream, rebuilt)
            added = max(len(self._list_entries(rebuild.owners)) - len(replaced), 0)
            rebuild.is_done.set()
            del rebuilt
            await take_sliced(_release(replaced))
            expect_growth(added * _TOOL_BLOCKS)

    def _list_entries(self, owners: tuple[str | None, ...]) -> list[CatalogEntry]:
        """Return the entries of the catalogs that are served to these owners."""
        return [entry for owner in owners for entry in self._find_served(owner).entries.values()]

    def _find_served(self, owner: str | None) -> Catalog:
        """Return the catalog that is served to an owner."""
        return self._state.catalog if owner is None else self._state.catalogs.get(owner, self._state.catalog)

    def _serve_catalogs(
        self, owners: tuple[str | None, ...], upstream: str | None, rebuilt: list[_RebuiltCatalog]
    ) -> None:
        """Serve other catalogs, and notify clients if they see a difference."""
        for owner, one in zip(owners, rebuilt, strict=True):
            self._record_findings(owner, one)
            self._swap_catalog(owner, one)
        if any(one.is_changed for one in rebuilt):
            required = self._find_required_scopes(upstream)
            self._enqueue(ListChange("tools", owners[0], required=required, upstream=upstream))

    def _swap_catalog(self, owner: str | None, rebuilt: _RebuiltCatalog) -> None:
        """Replace the state by one with this catalog."""
        # Values of tools that are gone can still be read, so their slugs stay.
        slugs = rebuilt.catalog.slugs | self._find_served(owner).slugs | CONTENT_SLUGS | OWN_SLUGS
        catalog = replace(rebuilt.catalog, slugs=slugs)
        if owner is None:
            self._gateway.state = msgspec.structs.replace(self._state, catalog=catalog)
        else:
            self._serve_own_catalog(owner, None if rebuilt.is_common else catalog)

    def _serve_own_catalog(self, owner: str, catalog: Catalog | None) -> None:
        """Serve a catalog of its own to an owner; None: the common one."""
        catalogs = {name: one for name, one in self._state.catalogs.items() if name != owner}
        if catalog is not None:
            catalogs[owner] = catalog
        self._gateway.state = msgspec.structs.replace(self._state, catalogs=catalogs)

    def _find_required_scopes(self, upstream: str | None) -> tuple[str, ...]:
        return next((one.policy.required_scopes for one in self._upstreams if one.policy.name == upstream), ())

    def _enqueue(self, change: ListChange) -> None:
        self._pending[change] = None
        self._has_pending.set()

    def pins_changed(self) -> None:
        """Rebuild all catalogs for other pins, also those of single owners."""
        connections = (one for upstream in self._upstreams for one in upstream.connections)
        for name in dict.fromkeys(one.owner.name for one in connections):
            if name is not None:
                self._rebuild((name,))

    def own_tools_changed(self) -> None:
        """Notify clients that the gateway has other tools of its own."""
        self._enqueue(ListChange("tools"))

    def value_stored(self, namespace: str) -> None:
        """Notify the owner of a new value, which is a resource that only the owner may see."""
        if self._state.config.server.wraps is None:
            self._enqueue(ListChange("resources", namespace=namespace, upstream=OWN_UPSTREAM))

    def _build(self, owner: str | None) -> Steps[Catalog]:
        config, pins = self._state.config, self._state.pins
        listings = self._find_listings(owner)
        listed = [(policy, listing.inspected or listing.tools if listing else ()) for policy, listing in listings]
        if config.server.wraps:
            reserved = tuple(self._state.own_tools)
        else:  # also names of own tools that are not served: a later configuration may serve them
            reserved = (*(() if config.is_transparent else (*TOOLS, RUN)), *search_tools(config.mirror))
        rules = CatalogRules(
            config.mirror,
            reserved,
            is_transparent=config.is_transparent,
            wraps=config.server.wraps is not None,
            pins=pins,
            owned_names=self._reserved,
        )
        catalog = yield from build_catalog(listed, rules)
        found = [
            pins.check_instructions(one.policy, one.listing.instructions) for one in self._upstreams if one.listing
        ]
        return replace(catalog, findings=(*catalog.findings, *(finding for finding in found if finding)))

    def _compare(self, owners: tuple[str | None, ...]) -> Steps[list[_RebuiltCatalog]]:
        """Build catalogs and compare them with those that are served, in steps."""
        common, rebuilt = self._state.catalog, list[_RebuiltCatalog]()
        for owner in owners:
            catalog = yield from self._build(owner)
            is_changed = yield from _differ(catalog, self._find_served(owner))
            if owner is None:
                common = catalog
            is_different = catalog is not common and (yield from _differ(catalog, common))
            is_common = not is_different and catalog.quarantined.keys() == common.quarantined.keys()
            deviations = []
            for finding in catalog.findings:
                deviations.append(finding.sentence)
                yield
            rebuilt.append(_RebuiltCatalog(catalog, deviations, is_changed=is_changed, is_common=is_common))
        return rebuilt

    def _record_findings(self, owner: str | None, rebuilt: _RebuiltCatalog) -> None:
        """Reserve the names of a catalog for their owners, and log its new deviations from the pins."""
        origins = rebuilt.catalog.origins
        self._reserved |= origins
        if len(self._reserved) > _MAX_RESERVED:  # unlisted names go first, or upstreams could free others' names
            idle = (name for name in tuple(self._reserved) if name not in origins)
            for name in islice(idle, len(self._reserved) - _MAX_RESERVED):
                del self._reserved[name]
        common = frozenset() if owner is None else self._logged.get(None, frozenset())
        known = common | self._logged.pop(owner, frozenset())
        if own := frozenset(rebuilt.deviations) - common:
            self._logged[owner] = own
        new = [sentence for sentence in rebuilt.deviations if sentence not in known]
        for sentence in new[:_MAX_LOGGED]:
            _logger.warning("%s", sentence)
        if len(new) > _MAX_LOGGED:
            _logger.warning("And %d more. `mcp-mirror check` names them.", len(new) - _MAX_LOGGED)

    def session_ended(self, session: str) -> None:
        """Drop what belonged to a session that has ended."""
        self._upstreams.end_session(session)
        self._serve_own_catalog(session, None)
        self._logged.pop(session, None)
        self._subscriptions.drop_session(session)

    async def _run_notifications(self) -> None:
        """Notify clients of changes, once for all changes of an interval."""
        while True:
            await self._has_pending.wait()
            self._has_pending = anyio.Event()
            pending, self._pending = self._pending, {}
            for change in pending:
                await self.announcements.list_changed(change)
            await anyio.sleep(_NOTIFY_INTERVAL)


def _release(entries: list[CatalogEntry]) -> Steps[None]:
    """Drop entries of a replaced catalog one by one: to free all at once would block the event loop."""
    while entries:
        entries.pop()
        yield


def _differ(one: Catalog, other: Catalog) -> Steps[bool]:
    """Return whether clients see a difference, in steps of one tool."""
    if one.entries.keys() != other.entries.keys():
        return True
    for name, entry in one.entries.items():
        yield
        known = other.entries[name]
        if entry.advert is not known.advert and entry.advert != known.advert:
            return True
        if entry.is_always_listed != known.is_always_listed:
            return True
    return False
