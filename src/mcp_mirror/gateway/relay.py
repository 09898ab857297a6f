"""Relays lists and requests of resources, prompts and completions between clients and upstreams.

Each list is fetched from the upstreams, over the caller's own connections. The last list maps the names that clients
use to upstreams.
"""

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from time import monotonic
from typing import Any, Final, NamedTuple

import anyio
import mcp_types as types
import msgspec
from mcp.shared.uri_template import UriTemplate

from mcp_mirror.callers import OWN_UPSTREAM, Caller, ClientChannel
from mcp_mirror.core.merged_lists import (
    KINDS,
    IsReserved,
    ItemKind,
    MergedList,
    ResourceOrigin,
    assign_name,
    build_scheme,
    join_cache_hints,
    merge_lists,
)
from mcp_mirror.core.results.processing import RejectedFrame
from mcp_mirror.errors import RefusedError, UpstreamError, WireError
from mcp_mirror.gateway.contents import Members
from mcp_mirror.gateway.gateway import Gateway
from mcp_mirror.gateway.input_required import build_input_required_reply, check_round
from mcp_mirror.payload.spool import SpooledFrame, discard_after
from mcp_mirror.system.event_loop import expect_growth
from mcp_mirror.system.fair_threads import run_fairly
from mcp_mirror.system.limited_logs import RepeatedLog
from mcp_mirror.system.slices import run_by_size
from mcp_mirror.types import Buffer, Segments
from mcp_mirror.upstreams.content_filter import filter_content
from mcp_mirror.upstreams.elicitation import InputRequired, InputRound
from mcp_mirror.upstreams.listing import PagedList
from mcp_mirror.upstreams.registry import Upstream
from mcp_mirror.upstreams.upstream_request import UpstreamRequest

_RESOURCE_KINDS: Final[tuple[ItemKind, ...]] = ("resources", "templates")
"""The lists that can name the upstream of a resource, in the order in which they are fetched."""
_CAPABILITY: Final[Mapping[ItemKind, str]] = {"resources": "resources", "templates": "resources", "prompts": "prompts"}
_OWN_PARAMS: Final = frozenset({"_meta", "requestState", "inputResponses"})
"""Parameters that the gateway rebuilds for the upstream."""
_MAX_REFUSALS: Final = 5
"""Upstreams whose errors the error of an unknown resource contains."""
_NOT_FOUND: Final = frozenset({types.INVALID_PARAMS, types.METHOD_NOT_FOUND, -32002, 0})
"""Error codes of servers that do not have a resource."""
_MAX_KEPT_PAGES: Final = 1_000
_MAX_KEPT_BYTES: Final = 64 << 20
"""Last lists of upstreams, of all callers together. Above these limits the oldest are dropped."""
_ITEM_BLOCKS: Final = 3
"""Blocks of memory that an item of a list takes, about: its text, its name and its origin."""
_MAX_KEPT_LISTS: Final = 10_000
_MAX_KEPT_NAMES: Final = 200_000
"""Last merged lists, and the names in them, of all callers together. Above these limits the oldest are dropped."""
_NO_COMPLETION: Final = {"completion": b'{"values":[]}'}
_MATCH_SECONDS: Final = 1.0
"""Seconds in which templates are compared with one URI: each may have hundreds of variables."""

_logger = logging.getLogger(__name__)

View = tuple[str, tuple[str, ...]]
"""What determines a caller's lists: its namespace, and the names of all upstreams that it may see, in order."""


class RelayRequest(msgspec.Struct, frozen=True):
    """A client's request for a resource, a prompt or a completion."""

    channel: ClientChannel
    params: Mapping[str, Buffer]
    """The parameters as the client sent them, each JSON text."""
    meta: Mapping[str, Any]
    """Members of `_meta` for the upstream."""
    input_round: InputRound | None = None
    """The client's answers, if this request repeats one that required input."""


class RelayedResult(NamedTuple):
    """An upstream's result and its origin."""

    members: Members
    origin: ResourceOrigin


class ClientList(msgspec.Struct, frozen=True):
    """A merged list for a client."""

    items: tuple[Segments, ...]
    """All items as one text, joined by commas: the response is not written item by item."""
    ttl_ms: int
    cache_scope: str


class Relay(msgspec.Struct):
    """Relays requests for resources, prompts and completions.

    They raise a `RefusedError` if the caller's upstreams do not have the resource or prompt, or its upstream refused,
    and an `UpstreamError` if the upstream failed.
    """

    gateway: Gateway
    _origins: dict[tuple[ItemKind, View], Mapping[str, ResourceOrigin]] = msgspec.field(default_factory=dict)
    """The last merged lists, the newest last, as names and origins."""
    _last_pages: dict[tuple[ItemKind, str, str], PagedList] = msgspec.field(default_factory=dict)
    """The last list by kind, upstream and namespace: an upstream may list other items to other principals."""
    _log: RepeatedLog = msgspec.field(default_factory=lambda: RepeatedLog(_logger))

    def offers(self, capability: str, caller: Caller, detail: str = "") -> bool:
        """Whether an upstream that the caller may see has a server capability of MCP, such as `resources`.

        `detail` is a member of the capability, such as `subscribe`.
        """
        return any(upstream.offers(capability, detail) for upstream in self.gateway.upstreams.visible_to(caller))

    def may_offer(self, capability: str, caller: Caller, detail: str = "") -> bool:
        """Like `offers`, but also true while the capabilities of an upstream are unknown, such as during its start."""
        unknown = any(upstream.listing is None for upstream in self.gateway.upstreams.visible_to(caller))
        return unknown or self.offers(capability, caller, detail)

    async def list_all(self, kind: ItemKind, channel: ClientChannel) -> ClientList:
        """Return the merged list of all upstreams that the caller may see; of an upstream that fails, its last list.

        Raises:
            UpstreamError: All upstreams failed.
        """
        offering = self._select_upstreams(_CAPABILITY[kind], channel.caller)
        self._note_missing(kind, channel)
        pages: dict[str, PagedList] = {}
        failures: list[UpstreamError] = []

        async def list_one(upstream: Upstream) -> None:
            try:
                pages[upstream.policy.name] = await self._list_one(kind, upstream, channel)
            except UpstreamError as error:
                failures.append(error)
                self._log.warning("%s", error.log_message)

        async with anyio.create_task_group() as tasks:
            for upstream in offering:
                tasks.start_soon(list_one, upstream)
        if failures and not pages:
            raise failures[0]
        namespace = channel.caller.namespace
        self._keep_pages({(kind, name, namespace): page for name, page in pages.items()})
        listed: dict[str, PagedList] = {}
        for upstream in offering:
            # An upstream that is down for a while keeps its items, so that the names of the others do not change.
            name = upstream.policy.name
            if page := pages.get(name, self._last_pages.get((kind, name, namespace))):
                listed[name] = page
        # The check for reserved names: the gateway has no prompts of its own.
        text, merged = await run_by_size(
            sum(page.size for page in listed.values()),
            _merge,
            kind,
            [(name, page.items) for name, page in listed.items()],
            self.gateway.owns_uri if kind != "prompts" else lambda _name: False,
            principal=namespace,
        )
        for name, count in merged.invalid.items():
            _logger.warning(
                "Upstream %r lists %d %s that do not conform to MCP. The gateway serves what clients can read of them.",
                name,
                count,
                kind,
            )
        self._keep_origins((kind, self._get_view(channel.caller)), merged.origins)
        ttl_ms, scope = join_cache_hints(hint for page in listed.values() for hint in page.hints)
        return ClientList(((text,),) if text else (), 0 if failures else ttl_ms, scope)

    async def _list_one(self, kind: ItemKind, upstream: Upstream, channel: ClientChannel) -> PagedList:
        """Return the list of one upstream; an empty one if it does not have the method."""
        connection = await upstream.connection_for_lists(channel)
        filtered = channel if self.gateway.may_show(upstream.policy.name) else filter_content(channel)
        try:
            page = await connection.list_all(*KINDS[kind][:2], filtered)
        except RefusedError as error:
            if error.code != types.METHOD_NOT_FOUND:  # many servers with resources do not have that for templates
                raise
            return PagedList()
        if page.cut:
            _logger.warning(
                "Upstream %r lists more %s than %s allows. The gateway does not serve the rest.",
                upstream.policy.name,
                kind,
                page.cut,
            )
        return page

    def _note_missing(self, kind: ItemKind, channel: ClientChannel) -> None:
        """Note that the client gets a list without the items of upstreams that have not connected yet."""
        for upstream in self.gateway.upstreams.visible_to(channel.caller):
            if upstream.listing is None:
                upstream.listing_connection(channel).served_lists.note_failure(KINDS[kind].method)

    def _keep_pages(self, pages: dict[tuple[ItemKind, str, str], PagedList]) -> None:
        """Keep lists for the time in which their upstreams are down."""
        kept = {key: page for key, page in self._last_pages.items() if key not in pages} | pages
        size = sum(page.size for page in kept.values())
        while len(kept) > _MAX_KEPT_PAGES or size > _MAX_KEPT_BYTES:
            size -= kept.pop(next(iter(kept))).size
        self._last_pages = kept

    def _keep_origins(self, key: tuple[ItemKind, View], origins: Mapping[str, ResourceOrigin]) -> None:
        """Keep a merged list, which names the upstreams of later requests."""
        before = sum(map(len, self._origins.values()))
        self._origins.pop(key, None)
        size = sum(map(len, self._origins.values())) + len(origins)
        while self._origins and (size > _MAX_KEPT_NAMES or len(self._origins) >= _MAX_KEPT_LISTS):
            size -= len(self._origins.pop(next(iter(self._origins))))
        self._origins[key] = origins
        expect_growth(_ITEM_BLOCKS * max(size - before, 0))

    async def read_resource(self, uri: str, request: RelayRequest) -> RelayedResult:
        """Return the contents of a resource, as its upstream sent them.

        Of several upstreams that may have it, one that fails does not hide the resource of another.
        """
        origins = await self._find_possible_origins(uri, request.channel)
        refusals: list[RefusedError] = []
        failures: list[UpstreamError] = []
        for origin in origins:
            try:
                return await self._request("resources/read", "uri", origin, request)
            except RefusedError as error:
                if error.code not in _NOT_FOUND or len(origins) == 1:
                    raise
                refusals.append(error)
            except UpstreamError as error:
                failures.append(error)
        raise failures[0] if failures else resource_not_found(uri, request.channel, refusals)

    async def get_prompt(self, name: str, request: RelayRequest) -> RelayedResult:
        """Return a prompt, as its upstream sent it."""
        return await self._request("prompts/get", "name", await self._find_prompt(name, request.channel), request)

    async def complete(self, ref: Mapping[str, Any], request: RelayRequest) -> RelayedResult:
        """Return completions for an argument of the prompt or resource template that the parameter `ref` names."""
        if ref.get("type") == "ref/prompt":
            key, origin = "name", await self._find_prompt(str(ref.get("name")), request.channel)
        elif self.owns(uri := str(ref.get("uri")), request.channel.caller):  # upstreams must not learn paths
            return RelayedResult(_NO_COMPLETION, ResourceOrigin(OWN_UPSTREAM, uri))
        else:
            key, origin = "uri", await self.find_resource(uri, request.channel)
        if not self.gateway.may_show(origin.upstream):
            return RelayedResult(_NO_COMPLETION, origin)
        renamed = {**request.params, "ref": msgspec.json.encode({**ref, key: origin.key})}
        outbound = _build_upstream_request(
            "completion/complete", {}, RelayRequest(request.channel, renamed, request.meta)
        )
        return RelayedResult(await self._send(origin.upstream, outbound, request.channel, None), origin)

    def owns(self, uri: str, caller: Caller) -> bool:
        """Whether a URI of a caller is that of a resource or template of the gateway itself."""
        return self.gateway.has_resources(caller) and self.gateway.owns_uri(uri)

    async def find_resource(self, uri: str, channel: ClientChannel) -> ResourceOrigin:
        """Return the likeliest origin of a resource."""
        origins = await self._find_possible_origins(uri, channel)
        if not origins:
            raise resource_not_found(uri, channel)
        return origins[0]

    def uri_for(self, origin: ResourceOrigin, caller: Caller) -> str:
        """Return the URI that a client uses for a resource."""
        return assign_name("resources", origin, self._get_last_list("resources", caller), self.gateway.owns_uri)

    def _get_view(self, caller: Caller) -> View:
        return caller.namespace, tuple(upstream.policy.name for upstream in self.gateway.upstreams.visible_to(caller))

    def _get_last_list(self, kind: ItemKind, caller: Caller) -> Mapping[str, ResourceOrigin]:
        """The last list of a caller; empty before the first."""
        return self._origins.get((kind, self._get_view(caller)), {})

    def _select_upstreams(self, capability: str, caller: Caller) -> Sequence[Upstream]:
        return [upstream for upstream in self.gateway.upstreams.visible_to(caller) if upstream.offers(capability)]

    async def _find_prompt(self, name: str, channel: ClientChannel) -> ResourceOrigin:
        if name not in self._get_last_list("prompts", channel.caller):
            await self.list_all("prompts", channel)
        if origin := self._get_last_list("prompts", channel.caller).get(name):
            return origin
        offering = self._select_upstreams("prompts", channel.caller)
        if len(offering) == 1:  # it may have prompts that it does not list
            return ResourceOrigin(offering[0].policy.name, name)
        raise RefusedError(f"Unknown prompt {name[:200]!r}. Take a name from prompts/list.", types.INVALID_PARAMS)

    async def _find_possible_origins(self, uri: str, channel: ClientChannel) -> Sequence[ResourceOrigin]:
        """The possible origins of a resource, the likeliest first. No upstream gets a URI of the gateway itself."""
        if self.gateway.owns_uri(uri):
            return ()
        caller = channel.caller
        offering = [upstream.policy.name for upstream in self._select_upstreams("resources", caller)]
        if len(offering) > 1:
            await self._list_resources(uri, channel)
        linked = self.gateway.linked_resources.find_upstream(caller.namespace, uri)
        if linked in offering and uri not in self._get_last_list("resources", caller):
            offering.sort(key=lambda name: name != linked)
            return tuple(ResourceOrigin(name, uri) for name in offering)
        if listed := await self._find_listed_origin(uri, caller):
            return (listed,)
        scheme, _, rest = uri.partition("+")
        for name in offering:
            if rest and scheme == build_scheme(name):
                return (ResourceOrigin(name, rest),)
        return tuple(ResourceOrigin(name, uri) for name in offering)

    async def _list_resources(self, uri: str, channel: ClientChannel) -> None:
        """Fetch the lists that a caller has not fetched yet, until one of them names the upstream of a resource."""
        for kind in _RESOURCE_KINDS:
            is_known = (kind, self._get_view(channel.caller)) in self._origins
            if not is_known and await self._find_listed_origin(uri, channel.caller) is None:
                await self.list_all(kind, channel)

    async def _find_listed_origin(self, uri: str, caller: Caller) -> ResourceOrigin | None:
        """The origin of a URI that is listed or matches a listed template."""
        templates = self._get_last_list("templates", caller)
        if origin := self._get_last_list("resources", caller).get(uri) or templates.get(uri):
            return origin
        return await run_fairly(caller.namespace, _match_templates, templates, uri) if templates else None

    async def _request(self, method: str, key: str, origin: ResourceOrigin, request: RelayRequest) -> RelayedResult:
        outbound = _build_upstream_request(method, {key: origin.key}, request)
        arguments = request.params.get("arguments", b"{}")
        input_round = check_round(request.input_round, arguments, origin.upstream)
        return RelayedResult(
            await self._send(origin.upstream, outbound, request.channel, input_round, arguments), origin
        )

    async def _send(
        self,
        upstream: str,
        request: UpstreamRequest,
        channel: ClientChannel,
        input_round: InputRound | None,
        arguments: Buffer = b"{}",
    ) -> Members:
        is_shown, services = self.gateway.may_show(upstream), self.gateway.services
        try:
            filtered = channel if is_shown else filter_content(channel)
            response = await self.gateway.upstreams[upstream].request(request, filtered, input_round)
        except RefusedError:
            raise
        except UpstreamError as error:
            if is_shown or error.reason:
                raise
            message = (
                f"Upstream {upstream!r} failed to answer {request.what}. Its message is hidden from the model. "
                "Ask the operator to read the gateway's log."
            )
            raise UpstreamError(message).with_log_message(error.log_message) from None
        if isinstance(response, InputRequired):
            return build_input_required_reply(response, arguments, upstream)
        with discard_after(response):
            if not isinstance(response, SpooledFrame):
                return response
            try:
                members = await services.scanner.open(response, services.limits.max_depth, channel.caller.namespace)
            except WireError as error:
                raise UpstreamError(
                    f"Upstream {upstream!r} sent an invalid answer to {request.what}. {error}"
                ) from None
            if isinstance(members, RejectedFrame):
                raise self.gateway.upstreams[upstream].refusal(
                    request.what, members.code, members.message, channel.caller, is_content_hidden=not is_shown
                )
            return members


def _merge(
    kind: ItemKind, listed: Sequence[tuple[str, Sequence[Buffer]]], is_reserved: IsReserved
) -> tuple[bytes, MergedList]:
    """The items of a merged list as one text, joined by commas, and the list."""
    merged = merge_lists(kind, listed, is_reserved)
    return b",".join(map(b"".join, merged.items)), merged


def _build_upstream_request(method: str, renamed: Mapping[str, str], request: RelayRequest) -> UpstreamRequest:
    """The request for the upstream: the client's parameters, with the upstream's own names."""
    params: dict[str, Segments] = {key: (raw,) for key, raw in request.params.items() if key not in _OWN_PARAMS}
    params |= {key: (msgspec.json.encode(value),) for key, value in renamed.items()}
    return UpstreamRequest(method, params, renamed, request.meta)


def _match_templates(templates: Mapping[str, ResourceOrigin], uri: str) -> ResourceOrigin | None:
    """Return the origin of a URI that matches a template; None for other URIs, and after `_MATCH_SECONDS`.

    Of several templates, the one with the longest beginning without a variable matches: another upstream may list a
    template of all URIs. An upstream may list a hundred thousand. For None, the gateway asks each of the upstreams.
    """
    deadline = monotonic() + _MATCH_SECONDS
    possible = [template for template in templates if uri.startswith(template.partition("{")[0])]
    for template in sorted(possible, key=lambda one: one.find("{"), reverse=True):
        if monotonic() > deadline:
            break
        with suppress(ValueError):  # it is not a template
            if UriTemplate.parse(template).match(uri) is not None:
                origin = templates[template]
                return ResourceOrigin(origin.upstream, uri.removeprefix(template.removesuffix(origin.key)))
    return None


def resource_not_found(uri: str, channel: ClientChannel, refusals: Sequence[RefusedError] = ()) -> RefusedError:
    """Return the error of an unknown resource, with the code of the client's protocol version.

    `refusals` are the errors of the upstreams that may have it.
    """
    message = "Resource not found"
    code = types.INVALID_PARAMS if channel.caller.is_stateless else -32002
    words = " ".join([f"{message}: {uri[:200]}{'.' * bool(refusals)}", *map(str, refusals[:_MAX_REFUSALS])])
    return RefusedError(words, code, words if refusals else message, {"uri": uri})
