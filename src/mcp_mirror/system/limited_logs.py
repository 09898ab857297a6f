"""Log lines that could come many times a second: few of each kind are written."""

import logging
from collections.abc import Callable
from time import monotonic
from typing import Final

_INTERVAL: Final = 10.0
"""Seconds between two log lines of one kind."""


class RepeatedLog:
    """Writes one log line of each kind per interval, with the number of suppressed lines."""

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = monotonic) -> None:
        self._log = log
        self._clock = clock
        self._kinds: dict[tuple[str, str], tuple[float, int]] = {}
        """By kind and format: the time of the last line, and the number of lines suppressed since."""

    def warning(self, text: str, *args: object, kind: str = "") -> None:
        """Log a warning. Its kind is its format, `text`; `kind` divides the warnings of one format."""
        now = self._clock()
        since, suppressed = self._kinds.get((kind, text), (float("-inf"), 0))
        if now - since < _INTERVAL:
            self._kinds[kind, text] = since, suppressed + 1
            return
        self._kinds[kind, text] = now, 0
        if suppressed:
            self._log.warning(f"{text} (and %d more like it in %.0f s)", *args, suppressed, now - since)
        else:
            self._log.warning(text, *args)

    def close(self) -> None:
        """Log how many lines were suppressed in the last interval."""
        for (_, text), (since, suppressed) in self._kinds.items():
            if suppressed:
                shown = text.replace("%s", "...").replace("%d", "...")
                self._log.warning("%s: %d more in %.0f s", shown, suppressed, self._clock() - since)
        self._kinds.clear()


class OutageLog:
    """Writes the beginning and the end of outages, for a service that may fail and work again many times a second.

    An outage that begins soon after the end of another one ends only after a calm interval without a failure. Kinds of
    failures that alternate are each logged once per interval.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = monotonic) -> None:
        self._log = log
        self._clock = clock
        self.kind: str = ""
        """The kind of the last logged failure of the present outage; empty without an outage."""
        self._lines: dict[str, float] = {}
        """By kind: the time of the last line of this outage."""
        self._failed = self._ended = float("-inf")
        """The times of the last failure and of the last line about an end."""
        self._needs_calm = False

    def fail(self, kind: str, text: str, *args: object, level: int = logging.WARNING) -> None:
        """Count a failure; log `text`, unless the failure repeats the last one."""
        now = self._failed = self._clock()
        if not self.kind:
            self._needs_calm = now - self._ended < _INTERVAL
            self._lines.clear()
        if kind != self.kind and now - self._lines.get(kind, float("-inf")) >= _INTERVAL:
            self.kind = kind
            self._lines[kind] = now
            self._log.log(level, text, *args)

    def recover(self, text: str, *args: object, after_calm: bool = False) -> bool:
        """Count a success. If it ends an outage, log a warning, `text` with `args`, and return True.

        `after_calm`: require a calm interval, as after an outage that followed another one.
        """
        if not self.kind:
            return False
        now = self._clock()
        if (after_calm or self._needs_calm) and now - self._failed < _INTERVAL:
            return False
        self.kind, self._ended = "", now
        self._log.warning(text, *args)
        return True
