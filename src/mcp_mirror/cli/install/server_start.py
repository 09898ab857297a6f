"""Start a server as its client does: the variables and folder of an entry, and a gateway's configuration."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from mcp_mirror.cli.install.entries import ENVIRONMENTS, Entry, read_words
from mcp_mirror.cli.install.targets import Target
from mcp_mirror.cli.main import find_config_option
from mcp_mirror.config import Config, find_config, load_config
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.upstreams import StdioEndpoint
from mcp_mirror.system.patterns import lazy_pattern

_VARIABLE: Final = lazy_pattern(
    r"\$\{(?:env:)?(?P<braced>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|\{env:(?P<colon>[A-Za-z_]\w*)\}|\$(?P<bare>[A-Za-z_]\w*)",
    re.ASCII,
)
_REFERENCE: Final = lazy_pattern(r"\$\{[^{}]+\}|\{env:\w+\}")
"""A reference to a variable in one of the forms that name it beyond doubt."""


class ServerStart(msgspec.Struct, frozen=True):
    """The start of a server by its client."""

    entry: Entry
    target: Target

    @property
    def title(self) -> str:
        """The server's name, with the client or its file."""
        return f"{self.target.word}: {self.entry.label}"

    @property
    def words(self) -> list[str]:
        """The command with its arguments."""
        return self.expand(read_words(self.entry.value))

    @property
    def folder(self) -> Path:
        """The server's own folder, or the project of an entry that belongs to one."""
        cwd, at = self.entry.value.get("cwd"), self.entry.at
        if isinstance(cwd, str):
            return Path(os.path.expanduser(self.expand([cwd])[0]))  # noqa: PTH111  # of any text
        if at[0] == "projects" and os.path.isdir(str(at[1])):  # noqa: PTH112  # of any text
            return Path(str(at[1]))
        return Path.cwd()

    @property
    def environment(self) -> dict[str, str]:
        """The environment, with the variables of the entry."""
        return {**os.environ, **self.variables}

    @property
    def redactor(self) -> Redactor:
        """Redacts what may be secret in the server's arguments and variables."""
        program, *args = self.expand(self.entry.own.wrapped) or [""]
        return Redactor(StdioEndpoint(program, tuple(args), self.variables))

    def find_unset_variables(self) -> list[str]:
        """Return the references to variables that are not set here, each once; the client may know them."""
        if not self.target.client.expands_variables:
            return []
        value, server = self.entry.value, self.entry.own.wrapped
        words, variables = read_words(value), _read_environment(value)
        others = [*server, *variables.values(), str(value.get("cwd", ""))]
        known = {f"${{{name}}}" for name in variables}  # `wrap` replaces them in its own options
        own = [one for one in self._find_references(words[: len(words) - len(server)]) if one not in known]
        return list(dict.fromkeys((*own, *self._find_references(others))))

    def load_gateway(self) -> tuple[Path, Config]:
        """Return the configuration that an entry with `mcp-mirror serve` reads, and its file; else ConfigError."""
        named, folder = find_config_option(self.words), self.folder
        path = folder / find_config(Path(named) if named else None, self.environment, folder).path
        return path, load_config(path, self.environment)

    def expand(self, words: list[str]) -> list[str]:
        """Return texts with `${VAR}` and other forms replaced where the client does so; unset variables stay."""
        client = self.target.client
        if not client.expands_variables:
            return words

        def replace(match: re.Match[str]) -> str:
            if match["bare"] and not client.expands_bare_variables:
                return match[0]
            name = match["braced"] or match["colon"] or match["bare"]
            return os.environ.get(name, match[0] if match["default"] is None else match["default"])

        return [_VARIABLE.sub(replace, word) for word in words]

    @property
    def variables(self) -> dict[str, str]:
        """The variables of the entry."""
        variables = _read_environment(self.entry.value)
        return dict(zip(variables, self.expand(list(variables.values())), strict=True))

    def _find_references(self, texts: list[str]) -> list[str]:
        return [found for text in self.expand(texts) for found in _REFERENCE.findall(text)]


def _read_environment(entry: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that an entry gives its server, as they are written."""
    env: Mapping[Any, Any] = next((entry[key] for key in ENVIRONMENTS if isinstance(entry.get(key), dict)), {})
    return {str(name): str(value) for name, value in env.items()}
