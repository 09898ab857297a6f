"""Patterns of lines by which logs and files with settings are known. Pure."""

import re
from typing import Final

from mcp_mirror.system.patterns import lazy_pattern

LOG_LINE: Final = lazy_pattern(
    r"\[?(?:\d{4}-\d\d-\d\d[T ]\d\d:\d\d|\d\d:\d\d:\d\d|\d{4}/\d\d/\d\d \d\d:|\d{10,13}\b"
    r"|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d"
    r"|\S+ \S+ \S+ \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d)"
    r"|(?:\S+ ){0,4}?[\[(<]?(?:trace|debug|info|notice|warn|warning|error|fatal|critical)\b[\])>:]?",
    re.IGNORECASE,
)
"""The beginning of a line of a log: a time, or words and a level."""
SETTINGS: Final = lazy_pattern(
    r"(?:[;#][^\n]*+\n)*+[ \t]*+(?:\[[^\]\n]++\][\w.\]]*+|@\w+\{[^\s,{}]++,)[ \t\r]*+\n"
    r"(?:[;#][^\n]*+\n)*+[\w .\"'-]++=[^\n]*+\n(?<![;{(]\n)"
)
"""A section of INI or TOML, or an entry of BibTeX, with its first name and value; comments may precede both."""
