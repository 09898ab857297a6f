"""The headers or variables of an upstream that have each client's own values, such as a person's token.

The values come from headers of the client's HTTP requests. They are only in memory.
"""

import hashlib
import json
from typing import Final

import mcp_types as types
from msgspec.structs import replace

from mcp_mirror.callers import Caller
from mcp_mirror.errors import RefusalReason, RefusedError, UpstreamError
from mcp_mirror.settings.upstreams import UpstreamPolicy
from mcp_mirror.upstreams.elicitation import InputRequired, InputRound

_DIGEST: Final = "values"
"""The member of the state of an input-required result with the digest of the caller's values."""


class ClientValues:
    """Reads the values of callers for one upstream."""

    def __init__(self, policy: UpstreamPolicy) -> None:
        self._upstream = policy.name
        self._headers = policy.client_values

    def are_needed(self, caller: Caller) -> bool:
        """Whether the requests of a caller need values of its own."""
        return bool(self._headers) and caller.client_headers is not None

    def find_missing_header(self, caller: Caller) -> str | None:
        """Return a header that the request of a caller needs and lacks; None without one."""
        given = caller.client_headers
        lacking = () if given is None else (header for header in self._headers.values() if header.lower() not in given)
        return next(iter(lacking), None)

    def read(self, caller: Caller) -> dict[str, str]:
        """Return the values of a caller by the names that the upstream knows; empty if it needs none.

        Raises:
            UpstreamError: The request lacks a header.
        """
        if header := self.find_missing_header(caller):
            raise UpstreamError(
                f"Upstream {self._upstream!r} needs the request header `{header}` with the user's own credential, once "
                "and in ASCII. Ask the user to add this header to the settings of this server in the MCP client.",
                RefusalReason.MISSING_HEADER,
            )
        given = caller.client_headers
        return {} if given is None else {name: given[header.lower()] for name, header in self._headers.items()}

    def digest(self, caller: Caller) -> str | None:
        """Return a digest of the values of a caller; None if it needs none. Raises errors as `read`."""
        values = self.read(caller)
        return hashlib.sha256(json.dumps(values).encode()).hexdigest() if values else None

    def bind_round(self, required: InputRequired, caller: Caller) -> InputRequired:
        """Return an input-required result that only a request with the same values can answer."""
        digest = self.digest(caller)
        return replace(required, state={**(required.state or {}), _DIGEST: digest}) if digest else required

    def check_round(self, answered: InputRound, caller: Caller) -> InputRound:
        """Return answers of a caller.

        Raises:
            RefusedError: They answer a request that had other values.
        """
        if answered.state.get(_DIGEST) == self.digest(caller):
            return answered
        message = "The request that this answers had other values in its headers. Make the request again."
        raise RefusedError(message, types.INVALID_PARAMS, data={"reason": "invalid_request_state"})
