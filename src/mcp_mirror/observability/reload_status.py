"""The outcome of the last reload, which the metrics export."""

import time

import msgspec


class ReloadStatus(msgspec.Struct):
    """Whether the last reload succeeded, and when the configuration in use was applied. A start counts as a reload."""

    is_successful: bool = True
    succeeded_at: float = msgspec.field(default_factory=time.time)
    """Seconds since the epoch."""

    def note(self, *, is_successful: bool) -> None:
        """Note the outcome of a reload that has just ended."""
        self.is_successful = is_successful
        if is_successful:
            self.succeeded_at = time.time()
