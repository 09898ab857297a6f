"""The sessions of 2025-11-25 clients: lookup, idle timeout, end."""

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn

import anyio
import msgspec
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from starlette.types import Scope

from mcp_mirror.callers import LOCAL, Caller
from mcp_mirror.errors import MirrorError, summarize_traceback
from mcp_mirror.server.auth.principals import read_namespace
from mcp_mirror.server.client_channel import Session
from mcp_mirror.server.request_context import Context, build_session_key, read_caller, with_rights
from mcp_mirror.system.event_loop import expect_growth

_logger = logging.getLogger(__name__)

STDIO: Final = "stdio"
"""The key of the only session on the stdio transport."""
_MAX_SWEEP_INTERVAL: Final = 15.0
"""Seconds between two searches for idle sessions."""
_MIN_SWEEP_INTERVAL: Final = 1.0
"""Seconds in which requests do not search again: a search looks at all sessions."""
_MAX_ENDED: Final = 8
"""Idle sessions that one search ends, at about 1 ms each; the others end soon after, so that calls are answered in
between."""
_BLOCKS: Final = 1_000
"""Blocks of memory that a session takes: 400, or 1,200 with an upstream process of its own."""
_INITIALIZE: Final = "initialize"


class _SessionRecord(msgspec.Struct):
    """A session that the SDK has created."""

    namespace: str
    upstream: str | None
    """The upstream of the endpoint at which it was created; None for the main endpoint."""
    used: float
    """When it was used last."""
    session: Session | None = None
    """None before its first request."""


class Sessions:
    """All sessions. A session ends when its client ends it, or after an idle timeout.

    A request without a verified principal is a `MirrorError` if the gateway requires authentication.
    """

    def __init__(
        self,
        answer_timeout: float,
        clock: Callable[[], float],
        on_end: Callable[[str, Session], None],
        idle_timeout: float,
        *,
        requires_auth: bool,
    ) -> None:
        """Create an empty set of sessions.

        `answer_timeout` is for responses of clients, which may need the user; an HTTP session ends after `idle_timeout`
        without an open request or stream. `on_end` gets the key of each session that has ended, and the session.
        `requires_auth`: HTTP requests without a verified principal are errors.
        """
        self.answer_timeout = answer_timeout
        self._clock = clock
        self._on_end = on_end
        self._idle_timeout = idle_timeout
        self._requires_auth = requires_auth
        self._records: dict[str, _SessionRecord] = {}
        """All sessions by key."""
        self._most = 0
        """The most sessions so far."""
        self._open_requests: Counter[str] = Counter()
        """The number of open HTTP requests by session."""
        self.close: Callable[[str], Awaitable[None]] | None = None
        """Ends a session of the SDK by its key; None without an HTTP server."""
        self._closing: set[str] = set()
        """Ended HTTP sessions that the SDK has not removed yet."""
        self._swept = clock()
        """The time of the last search for idle sessions."""
        self._wake = anyio.Event()

    def __iter__(self) -> Iterator[Session]:
        return iter([one.session for one in self._records.values() if one.session])

    def session_of(self, context: Context) -> Session | None:
        """Return the session of a request; None for stateless requests."""
        if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
            return None
        return self.find(self._build_key(context))

    def namespace_of(self, context: Context) -> str:
        """Return the namespace of a request."""
        namespace = LOCAL if context.request is None else read_namespace(context.request.scope)
        if context.request is not None and self.is_anonymous(namespace):
            raise MirrorError("The request has no verified principal.")
        return namespace

    def is_anonymous(self, namespace: str) -> bool:
        """Whether an HTTP request with this namespace lacks the principal that the gateway requires."""
        return self._requires_auth and namespace == LOCAL

    def caller_of(self, context: Context) -> Caller:
        """Return the sender of a request: the client of its session, with the scopes of this request's token."""
        session = self.session_of(context)
        caller = session.caller if session else read_caller(context, self.namespace_of(context), None)
        return with_rights(caller, _scope_of(context))

    def record_request(self, context: Context) -> Session | None:
        """Return the session of a request, with the scopes of its token, and create a new one.

        Return None for a session that has no id yet, as for an `initialize` request over HTTP.
        """
        now = self._clock()
        self._end_idle(now)
        if not (key := self._build_key(context)):
            return None
        if (session := self.find(key)) is None:
            caller = read_caller(context, self.namespace_of(context), key)
            record = self._records.setdefault(key, _SessionRecord(caller.namespace, caller.upstream, now))
            session = record.session = Session(caller, context.session, anyio.Event(), self.answer_timeout, now)
        session.caller = with_rights(session.caller, _scope_of(context))
        if context.method != _INITIALIZE:  # the SDK rejects other requests before the handshake
            session.ready.set()
            if context.session.client_params:
                session.protocol_version = context.protocol_version
        return session

    def find(self, key: str) -> Session | None:
        """Return a session; None if it has no requests yet, or has ended."""
        record = self._records.get(key)
        return record.session if record else None

    @contextmanager
    def in_use(self, key: str) -> Iterator[None]:
        """Count an open HTTP request or stream of a session for the duration of the context: it is not idle then."""
        self._open_requests[key] += 1
        try:
            yield
        finally:
            self._open_requests[key] -= 1
            if not self._open_requests[key]:
                del self._open_requests[key]
            if record := self._records.get(key):
                record.used = self._clock()

    def add_http_session(self, namespace: str, session_id: str, upstream: str | None = None) -> None:
        """Record a session that the SDK has created for a principal, at the main endpoint or at an upstream's."""
        record = _SessionRecord(namespace, upstream, self._clock())
        self._records.setdefault(build_session_key(namespace, session_id), record)
        if len(self._records) > self._most:
            self._most = len(self._records)
            expect_growth(_BLOCKS)  # to search 1,000 sessions for garbage takes 0.2 s

    def is_created_at(self, key: str, upstream: str | None) -> bool:
        """Whether a request may use a session at this endpoint; also true for requests without one."""
        record = self._records.get(key)
        return record is None or record.upstream == upstream

    def count(self, namespace: str) -> int:
        """Return the number of HTTP sessions of a principal that are not idle."""
        now = self._clock()
        own = ((key, one) for key, one in self._records.items() if one.namespace == namespace and key != STDIO)
        return sum(not self._is_idle(key, one, now) for key, one in own)

    def is_open(self, key: str) -> bool:
        """Whether a session has an open HTTP request or stream; the stdio session always has one."""
        return key == STDIO or key in self._open_requests

    def is_closing(self, key: str) -> bool:
        """Whether an HTTP session has ended but the SDK has not removed it yet."""
        return key in self._closing

    def end(self, key: str) -> None:
        """End a session and what belongs to it."""
        if (record := self._records.pop(key, None)) is None:
            return
        if self.close is not None:
            self._closing.add(key)
            self._wake.set()
        if record.session:
            record.session.direct_requests.cancel_all()
            self._on_end(key, record.session)

    async def run(self) -> NoReturn:
        """End idle sessions, and have the SDK close those that have ended, until cancelled."""
        while True:
            with anyio.move_on_after(min(_MAX_SWEEP_INTERVAL, self._idle_timeout / 4)):
                await self._wake.wait()
            self._wake = anyio.Event()
            self._end_idle(self._clock())
            for key in tuple(self._closing):
                try:
                    if self.close is not None:
                        await self.close(key)
                except Exception as error:  # noqa: BLE001  # it must not end the gateway; the HTTP server may have stopped
                    _logger.warning("a session could not be closed: %s", summarize_traceback(error))
                self._closing.discard(key)

    def _end_idle(self, now: float) -> None:
        if now - self._swept < min(_MIN_SWEEP_INTERVAL, self._idle_timeout / 8):
            return
        idle = [key for key, one in self._records.items() if self._is_idle(key, one, now)]
        for key in idle[:_MAX_ENDED]:
            self.end(key)
        if len(idle) <= _MAX_ENDED:
            self._swept = now

    def _is_idle(self, key: str, record: _SessionRecord, now: float) -> bool:
        return key != STDIO and now - record.used > self._idle_timeout and key not in self._open_requests

    def _build_key(self, context: Context) -> str:
        if context.request is None:
            return STDIO
        return build_session_key(self.namespace_of(context), context.request.headers.get("mcp-session-id", ""))


def _scope_of(context: Context) -> Scope | None:
    return None if context.request is None else context.request.scope
