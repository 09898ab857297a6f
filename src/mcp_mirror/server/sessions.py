"""The sessions of 2025-11-25 clients: which there are, which are in use, and when they end."""

from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, NoReturn

import anyio
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcp_mirror.callers import LOCAL, Caller
from mcp_mirror.errors import MirrorError
from mcp_mirror.server.auth.principals import namespace_in, scopes_in
from mcp_mirror.server.client_channel import Context, Session, read_caller

STDIO: Final = "stdio"
"""The one session of a gateway on standard input and output."""
_LONGEST_SWEEP: Final = 15.0
"""Seconds between two looks for sessions that are not used any more."""
_INITIALIZE: Final = "initialize"


class Sessions:
    """Remembers each, until it ends or nobody uses it any more."""

    def __init__(
        self,
        answer_timeout: float,
        clock: Callable[[], float],
        on_end: Callable[[str], None],
        idle: float = 300.0,
        *,
        wants_principals: bool = False,
    ) -> None:
        """Know none yet.

        Args:
            answer_timeout: Seconds that a user's answer may take.
            clock: Seconds that only grow.
            on_end: Told which session is over.
            idle: Seconds without an open request or stream after which an HTTP session ends.
            wants_principals: Over HTTP nobody is served whose principal was not verified.
        """
        self.answer_timeout = answer_timeout
        self._clock = clock
        self._on_end = on_end
        self._idle = idle
        self._wants_principals = wants_principals
        self._known: dict[str, tuple[Session, float]] = {}
        self._begun: dict[str, tuple[str, float]] = {}
        """Whose each HTTP session is that the SDK keeps, heard from or not, and when it was used last."""
        self._open: dict[str, int] = {}
        """How many HTTP requests of each session are open."""
        self.close: Callable[[str], Awaitable[None]] | None = None
        """Ends a session in the HTTP server, by its name; None where there is no HTTP server."""
        self._closing: set[str] = set()
        """HTTP sessions that we have ended, and that the HTTP server still has to forget."""
        self._wake = anyio.Event()

    def __iter__(self) -> Iterator[Session]:
        return iter([session for session, _ in self._known.values()])

    def of(self, context: Context) -> Session | None:
        """The session of a request; None where requests stand alone."""
        known = self._known.get(self._name(context))
        return known[0] if known and context.protocol_version not in MODERN_PROTOCOL_VERSIONS else None

    def namespace_of(self, context: Context) -> str:
        """Whose memory a request uses.

        Raises:
            MirrorError: Nobody has verified that.
        """
        namespace = LOCAL if context.request is None else namespace_in(context.request.scope)
        if self._wants_principals and context.request is not None and namespace == LOCAL:
            raise MirrorError("Nobody has been let in with this request.")
        return namespace

    def caller_of(self, context: Context) -> Caller:
        """Who makes a request: what a session began with, with the rights of the token that came now.

        Raises:
            MirrorError: Nobody has verified that.
        """
        home = self.of(context)
        caller = home.caller if home else read_caller(context, self.namespace_of(context), None)
        return replace(caller, scopes=_scopes_of(context))

    def heard_from(self, context: Context) -> Session | None:
        """Remember a session, or that it is in use; None where it has no name yet, as at the handshake over HTTP."""
        now = self._clock()
        self._forget_idle(now)
        if not (key := self._name(context)):
            return None
        session = self._known[key][0] if key in self._known else self._begin(context, key)
        session.caller = replace(session.caller, scopes=_scopes_of(context))
        self._known[key] = (session, now)
        if context.method != _INITIALIZE:  # the SDK lets nothing else through before the handshake
            session.ready.set()
        return session

    @contextmanager
    def using(self, key: str) -> Iterator[None]:
        """While an HTTP request of a session is open, and a stream of its is one, the session is in use."""
        if not key:
            yield
            return
        self._open[key] = self._open.get(key, 0) + 1
        try:
            yield
        finally:
            self._open[key] -= 1
            if not self._open[key]:
                del self._open[key]
            if begun := self._begun.get(key):
                self._begun[key] = (begun[0], self._clock())
            if known := self._known.get(key):
                self._known[key] = (known[0], self._clock())

    def begin(self, namespace: str, identity: str) -> None:
        """The SDK has made a session for a principal."""
        self._begun[session_name(namespace, identity)] = (namespace, self._clock())

    def count(self, namespace: str) -> int:
        """How many sessions a principal has over HTTP."""
        before = self._clock() - self._idle
        for key, (_, used) in tuple(self._begun.items()):
            if used < before and key not in self._open:
                del self._begun[key]
        return sum(one == namespace for one, _ in self._begun.values())

    def is_open(self, key: str) -> bool:
        """Whether a session has an HTTP request or stream open; that of standard input always has."""
        return key == STDIO or key in self._open

    def is_alive(self, key: str) -> bool:
        """Whether a session has not ended."""
        return key in self._known

    def is_over(self, key: str) -> bool:
        """Whether we have ended an HTTP session that the HTTP server still knows."""
        return key in self._closing

    def end(self, key: str) -> None:
        """End a session, for its client or for us: what was made for it ends too."""
        begun = self._begun.pop(key, None)
        if self.close is not None and (begun or key in self._known):
            self._closing.add(key)
            self._wake.set()
        if self._known.pop(key, None):
            self._on_end(key)

    async def run(self) -> NoReturn:
        """End the sessions that are not used any more; until cancelled."""
        while True:
            with anyio.move_on_after(min(_LONGEST_SWEEP, self._idle / 4)):
                await self._wake.wait()
            self._wake = anyio.Event()
            self._forget_idle(self._clock())
            for key in tuple(self._closing):
                if self.close is not None:
                    await self.close(key)
                self._closing.discard(key)

    def _begin(self, context: Context, key: str) -> Session:
        caller = read_caller(context, self.namespace_of(context), key)
        return Session(caller, context.session, anyio.Event(), self.answer_timeout)

    def _forget_idle(self, now: float) -> None:
        for key, (_, used) in tuple(self._known.items()):
            if key != STDIO and now - used > self._idle and key not in self._open:
                self.end(key)

    def _name(self, context: Context) -> str:
        if context.request is None:
            return STDIO
        return session_name(self.namespace_of(context), context.request.headers.get("mcp-session-id", ""))


def _scopes_of(context: Context) -> frozenset[str] | None:
    return None if context.request is None else scopes_in(context.request.scope)


def session_name(namespace: str, identity: str) -> str:
    """What a session is called: with another's id nobody comes to another's session. Empty where there is no id."""
    return f"{identity} {namespace}" if identity and namespace != LOCAL else identity
