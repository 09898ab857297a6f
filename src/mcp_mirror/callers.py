"""Who asks, and the way back to them while a request of theirs is served.

The faces make these; the gateway hands them down; upstreams speak through them. Words alone: nothing is sent here.
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, Protocol

from mcp_mirror.errors import RefusedError

LEVELS: Final[tuple[str, ...]] = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""RFC 5424's severities, the least first."""

LOCAL: Final = "local"
"""The namespace of the one user of a gateway that nobody has to show a token."""

_INVALID_REQUEST: Final = -32600

CAPABILITY_OF: Final[Mapping[str, str]] = MappingProxyType(
    {"elicitation/create": "elicitation", "sampling/createMessage": "sampling", "roots/list": "roots"}
)
"""What a server may ask of a client, and the capability that the client must have for it."""


@dataclass(frozen=True, slots=True)
class Caller:
    """One client, as far as the gateway knows it."""

    namespace: str
    """Whose memory it uses."""
    is_stateless: bool = True
    """It speaks the 2026 era: each request stands alone, and questions are answered by asking again."""
    session: str | None = None
    """The connection that its requests belong to; None where each stands alone."""
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    """What it says it can do, as it says it."""
    scopes: frozenset[str] | None = None
    """What the token of this request is good for. None: everything, for nobody has to show one."""

    @property
    def identity(self) -> tuple[str, str | None]:
        """What makes two callers one."""
        return self.namespace, self.session

    @property
    def sharing_key(self) -> str:
        """A name for all callers whose connections may be one: they have one memory, and can do the same."""
        return json.dumps([self.namespace, dict(self.capabilities)], sort_keys=True)

    @property
    def connection_key(self) -> str | None:
        """A name for whoever has connections of their own, and may see on them what others do not; None: nobody."""
        if self.session is not None:
            return self.session
        return self.sharing_key if self.capabilities or self.namespace != LOCAL else None

    def has_scopes(self, required: Collection[str]) -> bool:
        """Whether it may see what takes all of these scopes."""
        return self.scopes is None or self.scopes.issuperset(required)

    def can_answer(self, method: str) -> bool:
        """Whether it has said that it takes this request of a server's."""
        return self.capabilities.get(CAPABILITY_OF.get(method, "")) is not None

    @property
    def can_answer_any(self) -> bool:
        """Whether it takes any request of a server's."""
        return any(self.can_answer(method) for method in CAPABILITY_OF)


class ClientChannel(Protocol):
    """The way back to a client: on the stream of one request of its own, or on its connection."""

    @property
    def caller(self) -> Caller:
        """Whose it is."""

    @property
    def log_level(self) -> str | None:
        """The least severity that the client wants to be told of; None where it has not said."""

    @property
    def wants_progress(self) -> bool:
        """Whether the client asked to be told of this request's progress."""

    @property
    def is_waiting(self) -> bool:
        """Whether the client waits for this request now; it does not between two rounds of one that was asked back."""

    @property
    def session_channel(self) -> "ClientChannel | None":
        """The way back that lasts beyond this request; None where requests stand alone."""

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass a notification on; one that the client does not want, or cannot be told, is dropped."""

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the client, and wait for its answer: the result.

        Raises:
            RefusedError: It answered with an error, or cannot be asked.
        """


@dataclass(frozen=True, slots=True)
class NullChannel:
    """The way to a caller who is told nothing and cannot be asked."""

    caller: Caller
    log_level: str | None = None
    wants_progress: bool = False
    is_waiting: bool = True
    session_channel: ClientChannel | None = None

    async def notify(self, method: str, params: Mapping[str, Any]) -> None:
        """Drop it."""

    async def request(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Refuse; see `ClientChannel.request`."""
        del params
        said = f"The client cannot be asked {method} now."
        raise RefusedError(said, _INVALID_REQUEST, said)
