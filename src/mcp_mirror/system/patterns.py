"""Regular expressions of modules, compiled at their first use.

The gateway imports modules with about 260 expressions when it starts, and a session uses few of them. Compiling them
all took 5 % of the start.
"""

import re
from typing import Any, AnyStr, cast


class _LazyPattern:
    """Has the attributes of a `re.Pattern`, each from its first use on."""

    def __init__(self, pattern: str | bytes, flags: int) -> None:
        self.pattern = pattern
        self._flags = flags

    def __getattr__(self, name: str) -> Any:
        value = getattr(re.compile(self.pattern, self._flags), name)
        setattr(self, name, value)
        return value


def lazy_pattern(pattern: AnyStr, flags: int = 0) -> re.Pattern[AnyStr]:
    """Return an expression as `re.compile` does, but compile it at its first use, which raises the errors in it."""
    return cast("re.Pattern[AnyStr]", _LazyPattern(pattern, flags))
