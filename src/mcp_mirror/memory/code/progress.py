"""The values that a script has received and made, and the text that it has printed."""

from collections.abc import Callable

import msgspec

from mcp_mirror.core.amounts import format_count
from mcp_mirror.memory.code.inputs import Inputs, ValueBudget
from mcp_mirror.settings.labels import Labels
from mcp_mirror.types import Buffer


class Progress(msgspec.Struct):
    """The values that one script has received and made until now, and its printed text."""

    code: str
    inputs: Inputs
    labels: Labels
    """The joined flow labels of everything that the script has received."""
    preview: bool
    """The model may see parts of all of it."""
    join: Callable[..., Labels]
    budget: ValueBudget
    most_printed: int
    """Characters of printed text that are kept."""
    calls: int = 0
    changes: int = 0
    """Successful calls of tools that are not read-only."""
    refusals: set[str] = msgspec.field(default_factory=set)
    """The messages of calls that were refused; see `ScriptToolResult.is_refused`."""
    stored: list[tuple[str, str]] = msgspec.field(default_factory=list)
    """The tool and the memory path of each stored result."""
    parsed: dict[str, Buffer] = msgspec.field(default_factory=dict)
    """The JSON text of each input that the script uses and of the first result of each tool."""
    texts: dict[str, Buffer] = msgspec.field(default_factory=dict)
    """The JSON text of each other input that the script uses or opens, mostly a text."""
    names: list[str] = msgspec.field(default_factory=list)
    """The inputs that the script uses and that may be meant as a path, short texts."""
    printed: list[str] = msgspec.field(default_factory=list)
    printed_characters: int = 0

    def add_text(self, text: str) -> None:
        """Keep printed text up to the limit."""
        room = self.most_printed - self.printed_characters
        self.printed_characters += len(text)
        if room > 0:
            self.printed.append(text[:room])

    @property
    def text(self) -> str:
        """The printed text, and how much of it is missing."""
        text = "".join(self.printed).rstrip("\n")
        missing = self.printed_characters - self.most_printed
        return f"{text}\n... {format_count(missing, 'more character')} (`code.output`)" if missing > 0 else text
