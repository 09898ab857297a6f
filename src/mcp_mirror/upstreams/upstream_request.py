"""A request to an upstream, before it has an id."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from mcp_mirror.types import Buffer, Segments

TRY_AGAIN: Final = "try again in a moment"
INTERACTIVE_METHODS: Final = frozenset({"tools/call", "resources/read", "prompts/get"})
"""The requests during which clients of both protocol versions answer requests of the server: results of other methods
cannot be `input_required`."""
CHECK_EFFECTS: Final = "it may have had effects: check them before you repeat it"


class UpstreamRequest(msgspec.Struct, frozen=True):
    """A request to an upstream."""

    method: str
    params: Mapping[str, Segments]
    """The parameters except `_meta`, as JSON text."""
    shown: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The parameters that go into HTTP headers too: a name or URI, and arguments. `params` overrides them."""
    meta: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """The members of the caller's `_meta` that are for the upstream."""
    timeout: float | None = None
    """Seconds; None for the upstream's own `timeout`."""
    is_repeatable: bool = False
    """The request has no side effects and the configuration allows to repeat it if the connection is lost."""

    @property
    def size(self) -> int:
        """Bytes of the parameters."""
        return sum(len(segment) for segments in self.params.values() for segment in segments)

    @property
    def what(self) -> str:
        """The name of the request in error messages: its tool, prompt or URI, else its method."""
        name = self.shown.get("name", self.shown.get("uri"))
        return repr(str(name)[:200]) if name else self.method

    @property
    def after_loss(self) -> str:
        """What to do if the server got the request, and its response is lost."""
        return CHECK_EFFECTS if self.method == "tools/call" else TRY_AGAIN

    def with_answers(self, answers: Buffer | None, state: str | None) -> "UpstreamRequest":
        """Return a copy that brings a client's answers, a JSON object, and the state of the server, as far as given."""
        params = dict(self.params)
        if answers is not None:
            params["inputResponses"] = (answers,)
        if state is not None:
            params["requestState"] = (msgspec.json.encode(state),)
        return msgspec.structs.replace(self, params=params)
