"""Follows what upstreams announce: which tools there are now, which of them are not as pinned, and who is told."""

import logging
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Final

import anyio
import anyio.lowlevel

from mcp_mirror.core.catalog import Catalog, CatalogRules, build_catalog
from mcp_mirror.core.naming import Origin
from mcp_mirror.gateway.contents import LABELS
from mcp_mirror.memory.tools.table import LABELS as OWN_LABELS
from mcp_mirror.memory.tools.table import TOOLS
from mcp_mirror.payload.floods import Steps, finish, take_sliced
from mcp_mirror.security.pins import Finding
from mcp_mirror.server.announcements import ListChange
from mcp_mirror.server.handlers import Handlers
from mcp_mirror.settings.labels import FUNCTIONS
from mcp_mirror.settings.policies import Config

_logger = logging.getLogger(__name__)

_SPREAD_PAUSE: Final = 1.0
"""Seconds between two announcements to clients, however often something changes."""
_AT_ONCE: Final = 500
"""Tools up to which catalogs are made at once: 10 ms."""
_HELD: Final = 100_000
"""Names for which it is remembered whose they were."""
_TOLD: Final = 10
"""Findings that the log is told of at once."""


@dataclass(frozen=True, slots=True)
class _CatalogRebuild:
    """Catalogs that are to be made."""

    owners: tuple[str | None, ...]
    upstream: str | None
    is_done: anyio.Event = field(default_factory=anyio.Event)


@dataclass(frozen=True, slots=True)
class _RebuiltCatalog:
    """A catalog that was made, and in what it differs from those that are served."""

    catalog: Catalog
    told: list[str]
    """What is not as it was pinned, a sentence each."""
    is_changed: bool
    """Clients of the party see a difference."""
    is_common: bool
    """It shows what everybody's catalog shows."""


class ChangeNotifier:
    """A new catalog at once when a list changes, and word of it to clients."""

    def __init__(self) -> None:
        self._handlers: Handlers | None = None
        self.config = Config()
        self._pending: dict[ListChange, None] = {}
        self._remakings: deque[_CatalogRebuild] = deque()
        self._is_stale = anyio.Event()
        self._generation = 0
        """Counts the catalogs that were made at once."""
        self._wake = anyio.Event()
        self._held: dict[str, Origin] = {}
        self._told: dict[str | None, frozenset[str]] = {}
        """What the log was told, by party: once, not with every listing."""

    @property
    def handlers(self) -> Handlers:
        """Who is told; known before anything is started."""
        assert self._handlers is not None  # noqa: S101  # `reach` comes first
        return self._handlers

    def reach(self, handlers: Handlers, config: Config) -> None:
        """Who is told, and by which rules catalogs are made."""
        gone = {one.name for one in self.config.upstreams} - {one.name for one in config.upstreams}
        self._held = {name: origin for name, origin in self._held.items() if origin[0] not in gone}
        self._handlers, self.config = handlers, config

    def changed(self, kind: str, owner: str | None, upstream: str | None = None) -> anyio.Event | None:
        """On a party's connection, or on everybody's, a list has changed: an upstream's, or the configuration.

        Returns:
            An event that is set once the catalogs show it; None if they do already. Catalogs of many tools are made in
            slices, so that calls are answered meanwhile.
        """
        if kind == "tools":
            return self._remake((owner, *(tuple(self.handlers.gateway.catalogs) if owner is None else ())), upstream)
        self._tell(ListChange(kind, owner, required=self._required(upstream)))
        return None

    def _remake(self, owners: tuple[str | None, ...], upstream: str | None = None) -> anyio.Event | None:
        gateway = self.handlers.gateway
        listings = [one.listing_for(owner) for one in gateway.upstreams for owner in owners]
        tools = sum(len(listing.tools) for listing in listings if listing)
        if tools > _AT_ONCE and upstream != FUNCTIONS:
            remaking = _CatalogRebuild(owners, upstream)
            self._remakings.append(remaking)
            self._is_stale.set()
            return remaking.is_done
        self._generation += 1
        self._put(owners, upstream, finish(self._compared(owners)))
        return None

    async def follow(self) -> None:
        """Make the catalogs of many tools, those that changed first at first."""
        while True:
            await self._is_stale.wait()
            self._is_stale = anyio.Event()
            while self._remakings:
                remaking = self._remakings.popleft()
                generation = self._generation - 1
                while generation != self._generation:  # others may have been made meanwhile, of newer listings
                    generation = self._generation
                    made = await take_sliced(self._compared(remaking.owners))
                self._put(remaking.owners, remaking.upstream, made)
                remaking.is_done.set()

    def _put(self, owners: tuple[str | None, ...], upstream: str | None, made: list[_RebuiltCatalog]) -> None:
        """Serve other catalogs, and tell clients if they see a difference."""
        for owner, one in zip(owners, made, strict=True):
            self._serve(owner, one)
        if any(one.is_changed for one in made):
            self._tell(ListChange("tools", owners[0], required=self._required(upstream)))

    def _required(self, upstream: str | None) -> tuple[str, ...]:
        found = (one.policy for one in self.handlers.gateway.upstreams if one.policy.name == upstream)
        return next((policy.required_scopes for policy in found), ())

    def _tell(self, change: ListChange) -> None:
        self._pending[change] = None
        self._wake.set()

    def pins_changed(self) -> None:
        """Tools are held to other pins: so are those that a party sees on its own connection alone."""
        links = (link for upstream in self.handlers.gateway.upstreams for link in upstream.connections)
        for name in dict.fromkeys(link.owner.name for link in links):
            if name is not None:
                self._remake((name,))

    def own_changed(self) -> None:
        """We have other tools of our own."""
        self._tell(ListChange("tools"))

    def updated(self, upstream: str, owner: str | None, uri: str, params: Mapping[str, Any]) -> None:
        """A resource was updated."""
        self.handlers.subscriptions.updated(upstream, owner, uri, params)

    def may_show(self, upstream: str) -> bool:
        """See `Gateway.may_show`."""
        return self.handlers.gateway.may_show(upstream)

    def kept(self, namespace: str) -> None:
        """A value was stored: it is a resource of ours, which nobody but its owner is to hear of."""
        self._tell(ListChange("resources", namespace=namespace))

    def _made(self, owner: str | None) -> Steps[Catalog]:
        """Put a catalog together, in steps."""
        gateway, config = self.handlers.gateway, self.config
        said = ((one.policy, one.listing_for(owner)) for one in gateway.upstreams)
        listed = ((policy, listing.examined or listing.tools if listing else ()) for policy, listing in said)
        rules = CatalogRules(
            config.mirror,
            () if config.is_transparent else TOOLS,
            transparent=config.is_transparent,
            pins=gateway.pins,
            held=self._held,
        )
        catalog = yield from build_catalog(listed, rules)
        return replace(catalog, findings=(*catalog.findings, *self._instructions()))

    def _compared(self, owners: tuple[str | None, ...]) -> Steps[list[_RebuiltCatalog]]:
        """Put catalogs together, and compare them with those that are served, in steps."""
        gateway, common, made = self.handlers.gateway, self.handlers.gateway.catalog, list[_RebuiltCatalog]()
        for owner in owners:
            catalog = yield from self._made(owner)
            is_changed = yield from _differ(catalog, gateway.catalogs.get(owner or "", gateway.catalog))
            if owner is None:
                common = catalog
            is_common = owner is None or not (yield from _differ(catalog, common))
            told = []
            for finding in catalog.findings:
                yield
                told.append(finding.sentence)
            is_common = is_common and catalog.quarantined.keys() == common.quarantined.keys()
            made.append(_RebuiltCatalog(catalog, told, is_changed=is_changed, is_common=is_common))
        return made

    def _serve(self, owner: str | None, made: _RebuiltCatalog) -> None:
        """Serve a catalog."""
        gateway = self.handlers.gateway
        self._note(owner, made)
        before = gateway.catalogs.get(owner or "", gateway.catalog)
        # What a tool that has gone once stored is still ours to find, or to miss.
        catalog = replace(made.catalog, labels=made.catalog.labels | before.labels | LABELS | OWN_LABELS)
        if owner is None:
            gateway.catalog = catalog
        elif made.is_common:
            gateway.catalogs.pop(owner, None)
        else:
            gateway.catalogs[owner] = catalog

    def _instructions(self) -> list[Finding]:
        """What upstreams say of themselves otherwise than it was pinned."""
        pins, upstreams = self.handlers.gateway.pins, self.handlers.gateway.upstreams
        found = [pins.judge_instructions(one.policy, one.listing.instructions) for one in upstreams if one.listing]
        return [finding for finding in found if finding]

    def _note(self, owner: str | None, made: _RebuiltCatalog) -> None:
        """Remember whose each name is, and tell the log what is not as it was pinned."""
        origins = made.catalog.origins
        self._held |= origins
        if len(self._held) > _HELD:  # what is listed no more goes first, or upstreams could make others' names free
            idle = (name for name in tuple(self._held) if name not in origins)
            for name in islice(idle, len(self._held) - _HELD):
                del self._held[name]
        known = self._told.get(None, frozenset()) | self._told.get(owner, frozenset())
        told = made.told
        self._told.pop(owner, None)
        self._told |= {owner: frozenset(told)} if told else {}
        new = [sentence for sentence in told if sentence not in known]
        for sentence in new[:_TOLD]:
            _logger.warning("%s", sentence)
        if len(new) > _TOLD:
            _logger.warning("And %d more. `mcp-mirror check` names them.", len(new) - _TOLD)

    def ended(self, session: str) -> None:
        """A client has gone: so does what was its alone."""
        self.handlers.gateway.upstreams.end_session(session)
        self.handlers.gateway.catalogs.pop(session, None)
        self._told.pop(session, None)
        self.handlers.subscriptions.forget_session(session)

    async def spread(self) -> None:
        """Tell clients, however many changes there were meanwhile, once."""
        while True:
            await self._wake.wait()
            self._wake = anyio.Event()
            pending, self._pending = self._pending, {}
            for change in pending:
                await self.handlers.announcements.announce(change)
            await anyio.sleep(_SPREAD_PAUSE)


def _differ(one: Catalog, other: Catalog) -> Steps[bool]:
    """Whether clients see a difference, in steps of one tool."""
    if one.entries.keys() != other.entries.keys():
        return True
    for name, entry in one.entries.items():
        yield
        if entry.advert is not other.entries[name].advert and entry.advert != other.entries[name].advert:
            return True
    return False
