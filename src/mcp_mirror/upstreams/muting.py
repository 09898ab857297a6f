"""An upstream whose words models may not see (`preview: false`): what of them goes on to clients all the same.

Progress goes on without its words, log lines do not, the client's model is not asked, and errors are told by their
codes. Questions to a person go on: a person reads them.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import mcp_types as types

from mcp_mirror.callers import Exchange
from mcp_mirror.errors import RefusedError, ToolError
from mcp_mirror.upstreams.passing import Passing

_SAMPLING: Final = "sampling/createMessage"
_DROPPED: Final = frozenset({"notifications/message"})
_PROGRESS: Final = "notifications/progress"
_NUMBERS: Final = frozenset({"progressToken", "progress", "total"})


@dataclass(frozen=True, slots=True)
class Muted(Passing):
    """The way back to a client for such an upstream."""

    @property
    def log_level(self) -> str | None:
        """None: log lines are not passed on."""
        return None

    @property
    def home(self) -> Exchange | None:
        """See `Exchange.home`."""
        return Muted(self.exchange.home) if self.exchange.home else None

    async def tell(self, method: str, params: Mapping[str, Any]) -> None:
        """Pass a notification on, without words."""
        if method in _DROPPED:
            return
        if method == _PROGRESS:
            params = {key: value for key, value in params.items() if key in _NUMBERS}
        await self.exchange.tell(method, params)

    async def ask(self, method: str, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Ask the client; see `Exchange.ask`. Its model is not asked.

        Raises:
            RefusedError: It is the model that is to be asked.
        """
        check_questions([{"method": method}])
        return await self.exchange.ask(method, params)


def muted(exchange: Exchange | None, *, may_show: bool) -> Exchange | None:
    """The way back to a client, as far as an upstream's words may go there."""
    return exchange if may_show or exchange is None else Muted(exchange)


def check_questions(requests: Iterable[Mapping[str, Any]]) -> None:
    """Refuse what would go to a model.

    Raises:
        RefusedError: Something would.
    """
    if any(request["method"] == _SAMPLING for request in requests):
        said = "The upstream asks the client's model, which may not see its words (`preview: false`)."
        raise RefusedError(said, types.METHOD_NOT_FOUND, said)


def unsaid(upstream: str, what: str, code: int, data: object = None) -> RefusedError:
    """A JSON-RPC error without the words that came with it; what a client needs to act on it stays."""
    said = f"Upstream {upstream!r} refused {what} (error {code}). Its words are not shown (`preview: false`)."
    acted_on = (types.MISSING_REQUIRED_CLIENT_CAPABILITY, types.URL_ELICITATION_REQUIRED)
    refusal = RefusedError(said, code, said, data if code in acted_on else None)
    return refusal.logged_as(refused(upstream, code))


def refused(upstream: str, code: int) -> str:
    """What a log may say of such an error, whoever may see its words."""
    return f"Upstream {upstream!r} refused a request (error {code})."


@contextmanager
def unquoting(*, shows: bool) -> Iterator[None]:
    """What an upstream says in an error may repeat what it was given: where that may not be shown, it is not said.

    Raises:
        ToolError: In its place.
    """
    try:
        yield
    except RefusedError as error:
        if shows or is_for_client(error):
            raise
        said = "Its words are not shown: they may repeat a value that may not be (`preview: false`)."
        raise ToolError(f"{error.logged} {said}") from None


def is_for_client(error: RefusedError) -> bool:
    """Whether a client acts on it: a capability or a URL elicitation is wanted, or its answers do not fit."""
    wanted = (types.MISSING_REQUIRED_CLIENT_CAPABILITY, types.URL_ELICITATION_REQUIRED)
    return error.code in wanted or error.data == {"reason": "invalid_request_state"}
