"""The HTTP API of the page, below `/api/`: JSON, images and downloads.

The application expects the viewer of each request in its scope; see `services.VIEWER_KEY`. It answers only requests of
the page itself: other origins are rejected, and changes need a header that no form can send.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping
from importlib.metadata import version
from itertools import chain
from time import time
from typing import Any, Final
from urllib.parse import urlsplit

import anyio.to_thread
import msgspec
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from mcp_mirror.dashboard.calls import MAX_PAGE, CallFilter, Calls
from mcp_mirror.dashboard.savings import (
    LATER_STEPS,
    PRICES_READ,
    STEP_CONTEXT,
    Assumptions,
    build_savings,
    find_price,
    merge_prices,
)
from mcp_mirror.dashboard.services import VIEWER_KEY, DashboardServices, Viewer, describe_principal
from mcp_mirror.dashboard.static_files import SECURITY_HEADERS
from mcp_mirror.dashboard.values import ForbiddenError, ValueFilter, Values
from mcp_mirror.errors import MirrorError, ToolError
from mcp_mirror.memory.tools.lookup import read_path
from mcp_mirror.observability.lineage import read_lineage
from mcp_mirror.stores.event_log import DAY

API_PREFIX: Final = "/api/"
CHANGE_HEADER: Final = "x-mcp-mirror"
"""The header of requests that change something. A page of another origin cannot send it without a preflight."""
ALL: Final = "*"
"""In place of a namespace: all, for operators."""

_MAX_QUERY: Final = 16_384
"""Characters of a query string."""
_MAX_OPEN: Final = 16
"""Open requests of one principal."""

Endpoint = Callable[["DashboardRequest"], Awaitable[Response | Mapping[str, Any]]]
"""Returns a response, or an object for JSON."""


class DashboardRequest(msgspec.Struct, frozen=True):
    """One request of the page."""

    services: DashboardServices
    viewer: Viewer
    query: Mapping[str, str]

    def text(self, name: str) -> str:
        """Return a parameter, empty by default."""
        return self.query.get(name, "")

    def number(self, name: str, default: int, most: int) -> int:
        """Return a whole number between 0 and `most`; ToolError for another text."""
        found = self.find_number(name)
        return default if found is None else min(found, most)

    def find_number(self, name: str) -> int | None:
        """Return a whole number; None if the request does not have it. Raises as `number` does."""
        text = self.text(name)
        if not text:
            return None
        if not text.isascii() or not text.isdecimal() or len(text) > 15:  # noqa: PLR2004  # more than any size
            raise ToolError(f"`{name}` must be a whole number.")
        return int(text)

    @property
    def values(self) -> Values:
        """The values of the namespace that the request names; ToolError if it belongs to another principal."""
        return Values(self.services, self.viewer, self._select_namespace())

    def _select_namespace(self) -> str:
        asked, own = self.text("principal"), self.viewer.namespace
        if asked and asked != own and not self.viewer.is_operator:
            raise ToolError("Only an operator sees other principals. Select your own values.")
        return asked or own

    async def list_namespaces(self) -> tuple[str, ...]:
        """Return the namespaces of a list of calls: the viewer's, the named one, or all for an operator."""
        if self.text("principal") != ALL:
            return (self._select_namespace(),)
        if not self.viewer.is_operator:
            raise ForbiddenError("Only an operator sees other principals. Select your own calls.")
        return await _list_known_namespaces(self.services, self.viewer)


class DashboardApi(msgspec.Struct):
    """The ASGI application of the API."""

    services: DashboardServices
    _open: Counter[str] = msgspec.field(default_factory=Counter)
    """The number of open requests by namespace."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        viewer: Viewer = scope[VIEWER_KEY]
        if self._open[viewer.namespace] >= _MAX_OPEN:
            await refuse(429, "Too many requests of this page are open. Try again in a moment.")(scope, receive, send)
            return
        self._open[viewer.namespace] += 1
        try:
            response = await self._answer(Request(scope), viewer)
            await response(scope, receive, send)
        finally:
            self._open[viewer.namespace] -= 1
            if not self._open[viewer.namespace]:
                del self._open[viewer.namespace]

    async def _answer(self, request: Request, viewer: Viewer) -> Response:
        endpoint = _ENDPOINTS.get((request.method, request.url.path.removeprefix(API_PREFIX)))
        if refusal := _check_request(request):
            return refusal
        if endpoint is None:
            return refuse(404, "The dashboard has no such address.")
        try:
            found = await endpoint(DashboardRequest(self.services, viewer, request.query_params))
        except ForbiddenError as error:
            return refuse(403, str(error))
        except ToolError as error:
            return refuse(404, str(error))
        except MirrorError as error:
            return refuse(503, str(error))
        return found if isinstance(found, Response) else respond(found)


def _check_request(request: Request) -> Response | None:
    """Return the response that rejects a request of another page, or one that is too long; None for others."""
    site = request.headers.get("sec-fetch-site", "none")
    origin = request.headers.get("origin")
    is_foreign = origin is not None and urlsplit(origin).netloc.lower() != request.headers.get("host", "").lower()
    if site not in ("none", "same-origin") or is_foreign:
        return refuse(
            403, "The request comes from another page, or a proxy changed its Host header. Open the dashboard itself."
        )
    if request.method == "POST" and CHANGE_HEADER not in request.headers:
        return refuse(403, f"A change needs the header {CHANGE_HEADER}.")
    if len(request.url.query) > _MAX_QUERY:
        return refuse(414, "The address is too long. Shorten the search.")
    return None


def refuse(status: int, message: str) -> Response:
    """Return an error for the page."""
    return respond({"error": message}, status)


def respond(content: Any, status: int = 200) -> Response:
    """Return a response in JSON, which no cache keeps."""
    return Response(msgspec.json.encode(content), status, _build_headers("application/json"))


def _build_headers(media_type: str) -> dict[str, str]:
    return {**SECURITY_HEADERS, "cache-control": "no-store", "content-type": media_type}


async def _list_known_namespaces(services: DashboardServices, viewer: Viewer) -> tuple[str, ...]:
    """Return the namespaces that a viewer may select, the viewer's own first."""
    if not viewer.is_operator:
        return (viewer.namespace,)
    known = await services.store.namespaces() | await services.store.events.namespaces()
    return (viewer.namespace, *sorted(known - {viewer.namespace}))


async def _read_session(request: DashboardRequest) -> Mapping[str, Any]:
    """The viewer, the principals that the viewer may select, and the use of the store."""
    services, viewer = request.services, request.viewer
    names = await _list_known_namespaces(services, viewer)
    described = await anyio.to_thread.run_sync(lambda: [(name, describe_principal(name)) for name in names])
    stats = await services.store.stats(viewer.namespace)
    return {
        "principal": viewer.namespace,
        "is_operator": viewer.is_operator,
        "reads_others": viewer.reads_others,
        "principals": [{"id": namespace, "name": name} for namespace, name in described],
        "version": version("mcp-mirror"),
        "values": stats.values,
        "now": time(),
    }


async def _list_values(request: DashboardRequest) -> Mapping[str, Any]:
    values = request.values
    wanted = ValueFilter(
        search=request.text("search").strip()[:500],
        kind=request.text("kind"),
        tool=request.text("tool"),
        smallest=request.find_number("smallest"),
        largest=request.find_number("largest"),
    )
    page = await values.list_page(wanted, request.text("after") or None)
    stats = await request.services.store.stats(values.namespace)
    slugs = sorted(await request.services.store.slugs(values.namespace))
    return {**page, "total": stats.values, "bytes": stats.size, "tools": slugs[:500], "now": time()}


async def _describe_value(request: DashboardRequest) -> Mapping[str, Any]:
    return {**await request.values.describe(request.text("path")), "now": time()}


async def _read_part(request: DashboardRequest) -> Mapping[str, Any]:
    offset, limit = request.number("offset", 0, 1 << 50), request.number("limit", 100, 1_000)
    return await request.values.read_part(request.text("path"), offset, limit)


async def _read_image(request: DashboardRequest) -> Response:
    media_type, pieces = await request.values.open_image(request.text("path"))
    return await _stream(pieces, _build_headers(media_type))


async def _read_notice(request: DashboardRequest) -> Mapping[str, Any]:
    return {"notice": await request.values.write_notice(request.text("path"))}


async def _download(request: DashboardRequest) -> Response:
    name, pieces = await request.values.open_download(request.text("path"))
    headers = {
        **_build_headers("application/octet-stream"),
        "content-disposition": f'attachment; filename="{name}"',
    }
    return await _stream(pieces, headers)


async def _stream(pieces: Iterator[bytes], headers: Mapping[str, str]) -> Response:
    first = await anyio.to_thread.run_sync(next, pieces, b"")  # an error becomes a response, not a broken body
    return StreamingResponse(chain((first,), pieces), headers=headers)


async def _forget(request: DashboardRequest) -> Mapping[str, Any]:
    return {"forgotten": await request.values.forget(request.text("path"))}


async def _list_calls(request: DashboardRequest) -> Mapping[str, Any]:
    calls = Calls(request.services, request.viewer, await request.list_namespaces())
    wanted = CallFilter(
        tool=request.text("tool").strip(),
        upstream=request.text("upstream"),
        outcome=request.text("outcome"),
        only_why=request.text("why") == "1",
    )
    before, after = request.text("before") or None, request.text("after") or None
    limit = max(request.number("limit", 50, MAX_PAGE), 1)
    page = await calls.list_page(wanted, before, after, limit)
    return {**page, "now": time()}


async def _find_call(request: DashboardRequest) -> Mapping[str, Any]:
    calls = Calls(request.services, request.viewer, await request.list_namespaces())
    return await calls.find(request.text("id"))


async def _read_lineage(request: DashboardRequest) -> Mapping[str, Any]:
    namespace, text = request.values.namespace, request.text("path")
    path = read_path(text) if text else None
    if text and path is None:
        raise ToolError("This is not a memory path. Open a value, and follow its link.")
    graph = await read_lineage(request.services.store, namespace, path.base if path else "")
    if not request.viewer.may_read(namespace):  # the parts that calls used contain keys of the values
        edges = dict.fromkeys(msgspec.structs.replace(edge, part="") for edge in graph.edges)
        graph = msgspec.structs.replace(graph, edges=tuple(edges))
    return graph.to_json()


async def _read_savings(request: DashboardRequest) -> Mapping[str, Any]:
    services = request.services
    days = max(request.number("days", 7, 90), 1)
    names = await request.list_namespaces()
    since = (time() // DAY - days + 1) * DAY
    sums: dict[str, Any] = {}
    for namespace in names:
        found = await services.store.events.sums(namespace, since)
        if found or len(names) == 1:
            name = describe_principal(namespace)
            sums[f"{name} ({namespace})" if name in sums else name] = found
    prices = merge_prices(services.config.dashboard.prices)
    assumed = Assumptions(
        find_price(prices, request.text("model")),
        request.number("later_steps", LATER_STEPS, 10_000),
        request.number("step_context", STEP_CONTEXT, 10_000_000),
    )
    return {
        **await anyio.to_thread.run_sync(build_savings, sums, assumed),
        "days": days,
        "model": assumed.price.name,
        "later_steps": assumed.later_steps,
        "step_context": assumed.step_context,
        "prices_read": PRICES_READ,
        "prices": [{"name": price.name, "input": price.input, "cached": price.cached} for price in prices],
        "memory": [await _read_quota(services, namespace) for namespace in names[:50]],
    }


async def _read_quota(services: DashboardServices, namespace: str) -> Mapping[str, Any]:
    """The values and bytes of a namespace with their limits, and all tokens that were ever counted."""
    stats, limits = await services.store.stats(namespace), services.limits.for_namespace(namespace)
    return {
        "principal": describe_principal(namespace),
        "values": stats.values,
        "max_values": limits.share_values,
        "bytes": stats.size,
        "max_bytes": limits.share_bytes,
        "sent": stats.traffic.sent,
        "kept_out": stats.traffic.kept_out,
    }


_ENDPOINTS: Final[Mapping[tuple[str, str], Endpoint]] = {
    ("GET", "session"): _read_session,
    ("GET", "values"): _list_values,
    ("GET", "value"): _describe_value,
    ("GET", "part"): _read_part,
    ("GET", "image"): _read_image,
    ("GET", "notice"): _read_notice,
    ("GET", "download"): _download,
    ("POST", "forget"): _forget,
    ("GET", "calls"): _list_calls,
    ("GET", "call"): _find_call,
    ("GET", "lineage"): _read_lineage,
    ("GET", "savings"): _read_savings,
}
