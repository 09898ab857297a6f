"""Resources, prompts and completions of the upstreams, handed on to clients as they are.

Lists are asked for anew each time, over the caller's own connections; what was listed last tells whose a name is.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import anyio
import mcp_types as types
import msgspec
from mcp.shared.uri_template import UriTemplate

from mcp_mirror.callers import Caller, ClientChannel
from mcp_mirror.core.catalog import join_cache_hints
from mcp_mirror.core.merged_lists import KINDS, IsReserved, Kind, ResourceOrigin, assign_name, merge_lists, scheme_of
from mcp_mirror.core.result_processing import RejectedFrame
from mcp_mirror.errors import RefusedError, UpstreamError, WireError
from mcp_mirror.gateway.input_required import asked_reply, checked
from mcp_mirror.payload.spool import SpooledFrame, discard_after
from mcp_mirror.settings.limits import MAX_DEPTH
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.upstreams.content_filter import filter_content
from mcp_mirror.upstreams.elicitation import InputRequired, InputRound
from mcp_mirror.upstreams.listing import Page
from mcp_mirror.upstreams.registry import UpstreamRegistry
from mcp_mirror.upstreams.session import UpstreamRequest
from mcp_mirror.upstreams.upstream import Upstream
from mcp_mirror.workers.frames import FrameScanner

_IN_TURN: Final[tuple[Kind, ...]] = ("resources", "templates")
"""What is listed where it is not known whose a resource is."""
_CAPABILITY: Final[Mapping[Kind, str]] = {"resources": "resources", "templates": "resources", "prompts": "prompts"}
_OURS: Final = frozenset({"_meta", "requestState", "inputResponses"})
"""Parameters that are not passed on as they came."""
_NOT_FOUND: Final = frozenset({types.INVALID_PARAMS, types.METHOD_NOT_FOUND, -32002, 0})
"""How servers say that they do not have a resource."""

log = logging.getLogger(__name__)

Members = Mapping[str, Buffer | Segments]
"""A result, its members JSON text."""
Sight = tuple[str, ...]
"""The names of all upstreams that somebody may see, in the order of the configuration."""


@dataclass(frozen=True, slots=True)
class RelayRequest:
    """One request of a client's for something that an upstream has."""

    channel: ClientChannel
    params: Mapping[str, Buffer]
    """As they came."""
    meta: Mapping[str, Any]
    again: InputRound | None = None


class Relayed(NamedTuple):
    """A result, and what it came from."""

    members: Members
    place: ResourceOrigin


@dataclass(frozen=True, slots=True)
class Listed:
    """A list for a client."""

    items: tuple[Segments, ...]
    ttl_ms: int
    cache_scope: str


@dataclass(slots=True)
class Relay:
    """Hands requests for resources, prompts and completions on."""

    upstreams: UpstreamRegistry
    scanner: FrameScanner
    """Reads large results."""
    may_show: Callable[[str], bool] = lambda _upstream: True
    """Whether the model may see what an upstream says; see `Gateway.may_show`."""
    max_depth: int = MAX_DEPTH
    """Levels of nesting that a result may have."""
    is_reserved: IsReserved = lambda _uri: False
    """Whether a URI, or a template of URIs, is the gateway's own."""
    _places: dict[tuple[Kind, Sight], Mapping[str, ResourceOrigin]] = field(default_factory=dict)
    """What was listed last, by the names under which those know it who may see the same upstreams."""
    _last: dict[tuple[Kind, str, str], Page] = field(default_factory=dict)
    """What each upstream listed last, by whom it was for: what one principal was shown is not another's."""

    def offers(self, capability: str, caller: Caller, detail: str = "") -> bool:
        """Whether any upstream that a caller may see has a capability."""
        return any(upstream.offers(capability, detail) for upstream in self.upstreams.visible_to(caller))

    def may_offer(self, capability: str, caller: Caller, detail: str = "") -> bool:
        """Whether one has a capability, or may turn out to have it when it has started."""
        unknown = any(upstream.listing is None for upstream in self.upstreams.visible_to(caller))
        return unknown or self.offers(capability, caller, detail)

    async def list_all(self, kind: Kind, channel: ClientChannel) -> Listed:
        """What all upstreams that the caller may see have of a kind; of one that fails, what it had last.

        Raises:
            UpstreamError: All failed.
        """
        offering = self._offering(_CAPABILITY[kind], channel.caller)
        pages: dict[str, Page] = {}
        failures: list[UpstreamError] = []

        async def list_one(upstream: Upstream) -> None:
            try:
                link = upstream.listing_connection(channel)
                way = filter_content(channel, may_show=self.may_show(upstream.policy.name)) or channel
                pages[upstream.policy.name] = await link.list_all(*KINDS[kind][:2], way)
            except UpstreamError as error:
                failures.append(error)
                log.warning("%s", error.log_message)

        async with anyio.create_task_group() as tasks:
            for upstream in offering:
                tasks.start_soon(list_one, upstream)
        if failures and not pages:
            raise failures[0]
        names = [one.policy.name for one in offering]
        namespace = channel.caller.namespace
        self._last |= {(kind, name, namespace): page for name, page in pages.items()}
        # One that is away for a while keeps what it had, and the others keep their names.
        present = [(name, pages.get(name, self._last.get((kind, name, namespace)))) for name in names]
        merged = merge_lists(kind, ((name, page.items) for name, page in present if page), self._reserved(kind))
        self._places[kind, self._sight_of(channel.caller)] = merged.places
        ttl_ms, scope = join_cache_hints(hint for _, page in present if page for hint in page.hints)
        return Listed(merged.items, 0 if failures else ttl_ms, scope)

    async def read_resource(self, uri: str, asking: RelayRequest) -> Relayed:
        """The contents of a resource, as its upstream gives them.

        Raises:
            RefusedError: No upstream has it, or the one that does refused.
            UpstreamError: It failed.
        """
        places = await self._places_of(uri, asking.channel)
        for place in places[:-1]:
            try:
                return await self._request("resources/read", "uri", place, asking)
            except RefusedError as error:
                if error.code not in _NOT_FOUND:
                    raise
        if not places:
            raise not_found(uri, asking.channel)
        return await self._request("resources/read", "uri", places[-1], asking)

    async def get_prompt(self, name: str, asking: RelayRequest) -> Relayed:
        """A prompt, as its upstream gives it.

        Raises:
            RefusedError: No upstream has it, or the one that does refused.
            UpstreamError: It failed.
        """
        return await self._request("prompts/get", "name", await self._prompt(name, asking.channel), asking)

    async def complete(self, ref: Mapping[str, Any], asking: RelayRequest) -> Members:
        """Completions for an argument of a prompt or of a resource template.

        Raises:
            RefusedError: No upstream has it, or the one that does refused.
            UpstreamError: It failed.
        """
        if ref.get("type") == "ref/prompt":
            key, place = "name", await self._prompt(str(ref.get("name")), asking.channel)
        else:
            key = "uri"
            places = await self._places_of(str(ref.get("uri")), asking.channel)
            if not places:
                raise not_found(str(ref.get("uri")), asking.channel)
            place = places[0]
        if not self.may_show(place.upstream):
            return {"completion": b'{"values":[]}'}
        renamed = {**asking.params, "ref": msgspec.json.encode({**ref, key: place.key})}
        order = _order("completion/complete", {}, RelayRequest(asking.channel, renamed, asking.meta))
        return await self._send(place.upstream, order, asking.channel, None)

    async def place_of(self, uri: str, channel: ClientChannel) -> ResourceOrigin:
        """Whose a resource is, as well as can be told.

        Raises:
            RefusedError: Nobody's.
        """
        places = await self._places_of(uri, channel)
        if not places:
            raise not_found(uri, channel)
        return places[0]

    def name_of(self, place: ResourceOrigin, caller: Caller) -> str:
        """The URI under which a client knows a resource."""
        return assign_name("resources", place, self._listed("resources", caller), self.is_reserved)

    def _reserved(self, kind: Kind) -> IsReserved:
        return self.is_reserved if kind != "prompts" else lambda _name: False

    def _sight_of(self, caller: Caller) -> Sight:
        return tuple(upstream.policy.name for upstream in self.upstreams.visible_to(caller))

    def _listed(self, kind: Kind, caller: Caller) -> Mapping[str, ResourceOrigin]:
        """What was listed last of a kind to those who may see the same; nothing where nothing was."""
        return self._places.get((kind, self._sight_of(caller)), {})

    def _offering(self, capability: str, caller: Caller) -> Sequence[Upstream]:
        return [upstream for upstream in self.upstreams.visible_to(caller) if upstream.offers(capability)]

    async def _prompt(self, name: str, channel: ClientChannel) -> ResourceOrigin:
        if name not in self._listed("prompts", channel.caller):
            await self.list_all("prompts", channel)
        if place := self._listed("prompts", channel.caller).get(name):
            return place
        offering = self._offering("prompts", channel.caller)
        if len(offering) == 1:  # it may know prompts that it does not list
            return ResourceOrigin(offering[0].policy.name, name)
        said = f"There is no prompt {name[:200]!r}; see prompts/list."
        raise RefusedError(said, types.INVALID_PARAMS, said)

    async def _places_of(self, uri: str, channel: ClientChannel) -> Sequence[ResourceOrigin]:
        """Where a resource may be, the likeliest first."""
        caller = channel.caller
        offering = [upstream.policy.name for upstream in self._offering("resources", caller)]
        for kind in _IN_TURN if len(offering) > 1 else ():
            if self._known(uri, caller) is None and (kind, self._sight_of(caller)) not in self._places:
                await self.list_all(kind, channel)
        if known := self._known(uri, caller):
            return (known,)
        for name in offering:
            scheme, _, rest = uri.partition("+")
            if rest and scheme == scheme_of(name):
                return (ResourceOrigin(name, rest),)
        return tuple(ResourceOrigin(name, uri) for name in offering)

    def _known(self, uri: str, caller: Caller) -> ResourceOrigin | None:
        templates = self._listed("templates", caller)
        if place := self._listed("resources", caller).get(uri) or templates.get(uri):
            return place
        for template, place in templates.items():
            if _matches(template, uri):
                return ResourceOrigin(place.upstream, uri.removeprefix(template.removesuffix(place.key)))
        return None

    async def _request(self, method: str, key: str, place: ResourceOrigin, asking: RelayRequest) -> Relayed:
        order = _order(method, {key: place.key}, asking)
        arguments = asking.params.get("arguments", b"{}")
        again = checked(asking.again, arguments, place.upstream)
        return Relayed(await self._send(place.upstream, order, asking.channel, again, arguments), place)

    async def _send(
        self,
        upstream: str,
        order: UpstreamRequest,
        channel: ClientChannel,
        again: InputRound | None,
        arguments: Buffer = b"{}",
    ) -> Members:
        hides = not self.may_show(upstream)
        try:
            way = filter_content(channel, may_show=not hides) or channel
            arrival = await self.upstreams[upstream].request(order, way, again)
        except RefusedError:
            raise
        except UpstreamError as error:
            if not hides:
                raise
            said = f"Upstream {upstream!r} failed at {order.what}. Its words are not shown."
            raise UpstreamError(said).with_log_message(error.log_message) from None
        if isinstance(arrival, InputRequired):
            return asked_reply(arrival, arguments, upstream)
        with discard_after(arrival):
            if not isinstance(arrival, SpooledFrame):
                return arrival
            try:
                members = await self.scanner.open(arrival, self.max_depth)
            except WireError as error:
                raise UpstreamError(f"Upstream {upstream!r} answered {order.what} unreadably. {error}") from None
            if isinstance(members, RejectedFrame):
                raise self.upstreams[upstream].refusal(order.what, members.code, members.message, hidden=hides)
            return members


def _order(method: str, shown: Mapping[str, str], asking: RelayRequest) -> UpstreamRequest:
    kept: dict[str, Segments] = {key: (raw,) for key, raw in asking.params.items() if key not in _OURS}
    renamed: dict[str, Segments] = {key: (msgspec.json.encode(value),) for key, value in shown.items()}
    return UpstreamRequest(method, {**kept, **renamed}, shown, asking.meta)


def _matches(template: str, uri: str) -> bool:
    try:
        return UriTemplate.parse(template).match(uri) is not None
    except ValueError:
        return False


def not_found(uri: str, channel: ClientChannel) -> RefusedError:
    """There is no such resource: the eras say it with different codes."""
    said = "Resource not found"
    code = types.INVALID_PARAMS if channel.caller.is_stateless else -32002
    return RefusedError(f"{said}: {uri[:200]}", code, said, {"uri": uri})
