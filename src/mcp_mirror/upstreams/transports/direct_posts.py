"""Sends requests of the gateway over HTTP without the SDK's transport and the HTTP client around it.

The SDK's transport sends the first request of a session. Later ones repeat its headers and are sent here. A usual
response is taken here as well. An unusual one (a redirect, an error status, a stream that breaks off) goes to the SDK's
transport, which handles it as the response to a request of its own. No request is sent twice.
"""

import logging
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import anyio
import httpx2
import mcp_types as types
import msgspec
from anyio.abc import TaskGroup

from mcp_mirror.payload.json_rpc import RequestId
from mcp_mirror.upstreams.transports.http_bodies import EVENTS, BodyReader, RequestBody, encode_event, mark_failure
from mcp_mirror.upstreams.transports.payloads import PayloadBypass
from mcp_mirror.upstreams.transports.requests import PendingRequest

_logger = logging.getLogger(__name__)

_OWN_HEADERS: Final = frozenset({"content-length", "cookie", "mcp-method", "mcp-name"})
_OWN_PREFIX: Final = "mcp-param-"
"""Headers that differ between requests of a session; the others are the same."""
END_TIMEOUT: Final = 1.0
"""Seconds after its result in which an event stream may end, so that its connection stays open. The same for a body
that nothing reads."""
_RESUMING: Final = re.compile(rb"(?:id|retry)(?::|\Z)")
"""The lines of an event that apply to the whole stream: where and when to resume it."""


class _CommonParts(msgspec.Struct, frozen=True):
    """What all requests of a session have in common."""

    headers: list[tuple[str, str]]
    extensions: Mapping[str, Any]


class DirectPosts:
    """The requests of one connection that are sent without the SDK's transport."""

    def __init__(
        self, url: httpx2.URL, inner: httpx2.AsyncBaseTransport, bypass: PayloadBypass, bodies: BodyReader
    ) -> None:
        """Send to `url` through `inner`, after the first request."""
        self._url = url
        self._inner = inner
        self._bypass = bypass
        self._bodies = bodies
        self._common: _CommonParts | None = None
        """None before the first request of the session succeeded."""
        self._unusual: dict[RequestId, httpx2.Response] = {}
        """Responses for the SDK's transport, by the ids of their requests."""

    @property
    def has_begun(self) -> bool:
        """Whether requests are sent here, after the first one of the session."""
        return self._common is not None

    def note_first(self, request: httpx2.Request) -> None:
        """Note what all requests of the session have in common, by the first one; later ones have no effect."""
        if self._common is None:
            headers = request.headers.items()
            common = [one for one in headers if one[0] not in _OWN_HEADERS and not one[0].startswith(_OWN_PREFIX)]
            self._common = _CommonParts(common, dict(request.extensions))

    def take_unusual(self, identity: RequestId) -> httpx2.Response | None:
        """Return the unusual response to a request, once; None for a request that was not sent here."""
        return self._unusual.pop(identity, None)

    async def post(self, own: PendingRequest, cookies: httpx2.Cookies, tasks: TaskGroup) -> bool:
        """Send a request and take its response; return False if the SDK's transport must do that."""
        if self._common is None:
            return False
        with anyio.CancelScope() as scope:
            own.stop = partial(self._stop, own.id, scope)
            request = self._build_request(own, self._common, cookies)
            own.is_sent = True  # or will be: a slow server counts as a slow response
            try:
                response = await self._inner.handle_async_request(request)
            except httpx2.TransportError as error:
                self._bypass.fail(own.id, types.INTERNAL_ERROR, mark_failure(error, request.url))
                return True
            response.request, self._bypass.unreachable = request, None
            if "set-cookie" in response.headers:
                cookies.extract_cookies(response)
            unusual = await self._take_response(response, own.id, tasks)
            if unusual is not None:
                self._unusual[own.id] = unusual
            return unusual is None
        return True

    def _stop(self, identity: RequestId, scope: anyio.CancelScope) -> None:
        """Stop a request that a message of another stream, or the end of the connection, has ended."""
        if self._bodies.taking != identity:
            scope.cancel()

    def _build_request(self, own: PendingRequest, common: _CommonParts, cookies: httpx2.Cookies) -> httpx2.Request:
        segments = own.frame
        headers = [one for one in common.headers if one[0] not in own.headers]
        headers += own.headers.items()
        headers.append(("content-length", str(sum(len(segment) for segment in segments))))
        request = httpx2.Request(
            "POST", self._url, headers=headers, stream=RequestBody(segments), extensions=dict(common.extensions)
        )
        if cookies:
            cookies.set_cookie_header(request)
        return request

    async def _take_response(
        self, response: httpx2.Response, identity: RequestId, tasks: TaskGroup
    ) -> httpx2.Response | None:
        """Take the response to a request; return a response for the SDK's transport if it is unusual.

        If an event stream ends too early, that response has the last event that the SDK's transport would have seen,
        after the last id and delay of the stream. The SDK's transport resumes the stream, or reports its end.
        """
        read = self._bodies.find_reader(response)
        if response.status_code != httpx2.codes.OK or read is None:
            return response
        last, fields, chunks = b"", dict[bytes, bytes](), read(response, identity)
        is_left_open = False
        try:
            async for chunk in chunks:
                if self._bypass.has_ended(identity) and read == self._bodies.read_events:
                    tasks.start_soon(_read_end, response, chunks)
                    is_left_open = True
                    return None
                last = chunk
                fields |= {line.partition(b":")[0]: line for line in chunk.split(b"\n") if _RESUMING.match(line)}
        except httpx2.TransportError as error:
            _logger.debug("a response broke off: %s", type(error).__name__)
        finally:
            if not is_left_open:
                await chunks.aclose()
                await response.aclose()
        if self._bypass.has_ended(identity):
            return None
        content = encode_event(tuple(fields.values()), None) + last
        return httpx2.Response(httpx2.codes.OK, headers={"content-type": EVENTS}, content=content)


async def _read_end(response: httpx2.Response, chunks: AsyncGenerator[bytes]) -> None:
    """Read a response to its end if that comes soon, so that its connection can be used again, and close it."""
    try:
        with anyio.move_on_after(END_TIMEOUT), suppress(httpx2.TransportError):
            async for _ in chunks:
                pass
    finally:
        with anyio.CancelScope(shield=True):
            await chunks.aclose()
            await response.aclose()
