"""Every error that we raise. A class exists only where a caller acts differently.

    MirrorError                  its message may be shown to a model or an operator as it is
    ├── ConfigError              the operator mends the file and starts again (exit code 2)
    ├── ToolError                the model can mend the call: it is answered as a tool error, `isError`
    ├── UpstreamError            an upstream did not do its part: answered as a tool error that names it
    │   └── RefusedError         a peer answered with a JSON-RPC error, which another peer may have to see as it is
    ├── StoreError               the store refused or failed: nothing was stored, no path was given out
    └── WireError                a peer's bytes are not a message we can carry: one failed request

A message is one or two plain sentences: what was wrong, and what to do next.
"""


class MirrorError(Exception):
    """The root; its message is written for its reader and holds no secret and no value."""


class ConfigError(MirrorError):
    """The configuration cannot be used; the message names file, line, key and what was wanted."""


class ToolError(MirrorError):
    """A call that the model can mend; the message says how."""


class UpstreamError(MirrorError):
    """An upstream is down, timed out or broke the protocol; the message names it."""


class RefusedError(UpstreamError):
    """A peer answered a request with an error of JSON-RPC: its code, its own words, and its data."""

    def __init__(self, message: str, code: int, said: str, data: object = None) -> None:
        super().__init__(message)
        self.code = code
        self.said = said
        """What the peer said, without our words about it; no secret is in it."""
        self.data = data


class StoreError(MirrorError):
    """The store could not keep or give a value."""


class WireError(MirrorError):
    """Bytes that are no message, or a message past a bound; the message names the byte or the bound."""
