"""Start a server as its client does: the variables and folder of an entry, and a gateway's configuration."""

import os
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any, Final

from mcp_mirror.cli.install.entries import ENVIRONMENTS, read_words, read_wrapped_command
from mcp_mirror.cli.install.targets import Entry, Target
from mcp_mirror.cli.main import find_config_option
from mcp_mirror.config import Config, find_config, load_config
from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.upstreams import StdioEndpoint

_VARIABLE: Final = re.compile(
    r"\$\{(?:env:)?(?P<braced>[A-Za-z_]\w*)(?::-(?P<default>[^}]*))?\}|\{env:(?P<colon>[A-Za-z_]\w*)\}|\$(?P<bare>[A-Za-z_]\w*)",
    re.ASCII,
)
_REFERENCE: Final = re.compile(r"\$\{[^{}]+\}|\{env:\w+\}")
"""A reference to a variable in one of the forms that name it beyond doubt."""


def find_folder(entry: Entry, target: Target) -> Path:
    """Return the folder in which the client starts the server: its own, or the project, where the entry is of one."""
    cwd = entry.value.get("cwd")
    if isinstance(cwd, str):
        (cwd,) = expand_variables([cwd], target)
        return Path(os.path.expanduser(cwd))  # noqa: PTH111  # of any text
    if entry.at[0] == "projects" and os.path.isdir(str(entry.at[1])):  # noqa: PTH112  # of any text
        return Path(str(entry.at[1]))
    return Path.cwd()


def build_environment(entry: Entry, target: Target) -> dict[str, str]:
    """Return the environment that the client gives a server, with references to variables replaced as it does."""
    env = _read_environment(entry)
    values = expand_variables(list(env.values()), target)
    return {**os.environ, **dict(zip(env, values, strict=True))}


def find_unset_variables(entry: Entry, target: Target) -> list[str]:
    """Return the references in an entry to variables that are not set here, each once; the client may know them."""
    if not target.client.expands_variables:
        return []
    environment, words, server = _read_environment(entry), read_words(entry.value), read_wrapped_command(entry.value)
    others = [*server, *environment.values(), str(entry.value.get("cwd", ""))]
    own = words[: len(words) - len(server)]

    def find(texts: list[str]) -> Iterator[str]:
        return chain.from_iterable(_REFERENCE.findall(text) for text in expand_variables(texts, target))

    known = {f"${{{name}}}" for name in environment}  # `wrap` replaces them in its own options
    return list(dict.fromkeys((*(one for one in find(own) if one not in known), *find(others))))


def build_redactor(entry: Entry, target: Target) -> Redactor:
    """Return a redactor of what may be secret in the arguments and variables of an entry's server."""
    program, *args = expand_variables(read_wrapped_command(entry.value), target) or [""]
    env = _read_environment(entry)
    values = expand_variables(list(env.values()), target)
    return Redactor(StdioEndpoint(program, tuple(args), dict(zip(env, values, strict=True))))


def expand_variables(words: list[str], target: Target) -> list[str]:
    """Return texts with `${VAR}` and the other forms of clients replaced, where the client does so.

    A variable that is not set stays as it is: the client may know it.
    """
    if not target.client.expands_variables:
        return words

    def replace(match: re.Match[str]) -> str:
        if match["bare"] and not target.client.expands_bare_variables:
            return match[0]
        name = match["braced"] or match["colon"] or match["bare"]
        return os.environ.get(name, match[0] if match["default"] is None else match["default"])

    return [_VARIABLE.sub(replace, word) for word in words]


def _read_environment(entry: Entry) -> dict[str, str]:
    """Return the variables that the entry gives its server, as they are written."""
    given = entry.value
    env: Mapping[Any, Any] = next((given[key] for key in ENVIRONMENTS if isinstance(given.get(key), dict)), {})
    return {str(name): str(value) for name, value in env.items()}


def load_gateway(entry: Entry, target: Target) -> tuple[Path, Config]:
    """Return the file of the configuration that an entry with `mcp-mirror serve` reads, and its content.

    Raises:
        ConfigError: The configuration was not found, or is unusable.
    """
    environ = build_environment(entry, target)
    words = expand_variables(read_words(entry.value), target)
    named = find_config_option(words)
    path = find_folder(entry, target) / find_config(Path(named) if named else None, environ).path
    return path, load_config(path, environ)
