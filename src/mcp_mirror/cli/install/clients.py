"""The table of clients: the files in which each client keeps its servers, and how it writes them.

The paths and formats are those of the clients' documentation; the documentation of `install` names the pages.
"""

import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Final, Literal

import msgspec

from mcp_mirror.cli.install.entries import EntryShape
from mcp_mirror.errors import ConfigError

Base = Literal["home", "config", "xdg", "project", "claude", "codex", "opencode"]
"""The folder that a path is relative to; see `Machine.folder`."""
Scope = Literal["user", "project"]
Block = tuple[str, ...]
"""The keys of the servers in a file; `*` is any key."""

_STANDARD: Final = EntryShape()
_MCP_SERVERS: Final[tuple[Block, ...]] = (("mcpServers",),)
_SUFFIXES: Final = frozenset({".json", ".jsonc", ".yaml", ".yml", ".toml"})


class Machine(msgspec.Struct, frozen=True):
    """The facts of a machine that decide the paths of clients."""

    platform: str
    """As `sys.platform`."""
    home: Path
    project: Path
    environ: Mapping[str, str]

    def folder(self, base: Base) -> Path:
        """Return the folder of a base: `config` is the system's folder of settings, `xdg` ignores macOS' own."""
        xdg = self._read_folder("XDG_CONFIG_HOME", self.home / ".config")
        settings = {
            "darwin": self.home / "Library" / "Application Support",
            "win32": self._read_folder("APPDATA", self.home / "AppData" / "Roaming"),
        }
        folders: dict[Base, Path] = {
            "home": self.home,
            "config": settings.get(self.platform, xdg),
            "xdg": settings["win32"] if self.platform == "win32" else xdg,
            "project": self.project,
            "claude": self._read_folder("CLAUDE_CONFIG_DIR", self.home),
            "codex": self._read_folder("CODEX_HOME", self.home / ".codex"),
            "opencode": xdg / "opencode",
        }
        return folders[base]

    def _read_folder(self, variable: str, default: Path) -> Path:
        return Path(self.environ.get(variable) or default)


class Place(msgspec.Struct, frozen=True):
    """A file, or a pattern of files, in which a client keeps servers."""

    base: Base
    path: str
    """Relative to the base; `*` matches within a name."""
    blocks: tuple[Block, ...] = _MCP_SERVERS
    """Keys of the servers; the first that the file has is used."""
    windows_path: str | None = None
    """The path on Windows, where it differs."""

    @property
    def scope(self) -> Scope:
        """Whether the file belongs to the user or to a project."""
        return "project" if self.base == "project" else "user"

    def files(self, machine: Machine) -> list[Path]:
        """Return the files of the place; of a pattern, those that exist."""
        path = self.windows_path if self.windows_path and machine.platform == "win32" else self.path
        folder = machine.folder(self.base)
        if "*" not in path:
            return [folder / path]
        found = folder.glob(path) if os.path.isdir(folder) else ()  # noqa: PTH112  # `is_dir` may raise
        return sorted(file for file in found if file.suffix in _SUFFIXES)

    def is_like(self, file: Path) -> bool:
        """Return whether a file has the name that the place has in any project or home folder."""
        parts = PurePath(self.path).parts
        is_specific = len(parts) > 1 or parts[0].startswith((".", "opencode"))
        return is_specific and PurePath(*file.parts[-len(parts) :]).match(self.path)


class Client(msgspec.Struct, frozen=True):
    """A client and its files."""

    name: str
    title: str
    source: str
    """The page of the client's documentation that describes its files."""
    places: tuple[Place, ...]
    shape: EntryShape = _STANDARD
    expands_variables: bool = True
    """Whether the client replaces variables such as `${VAR}` in entries; otherwise they are plain text."""
    expands_bare_variables: bool = False
    """Whether the client also replaces `$VAR`."""


def _list_extension_places(path: str) -> Iterator[Place]:
    """Yield the places of an extension in each editor of the family of VS Code."""
    for editor in ("Code", "Code - Insiders", "VSCodium", "Cursor", "Windsurf"):
        yield Place("config", f"{editor}/User/globalStorage/{path}")


_OPENCODE_BLOCKS: Final[tuple[Block, ...]] = (("mcp", "servers"), ("mcp",))
_SETTINGS_BLOCKS: Final[tuple[Block, ...]] = (("mcp", "servers"), ("mcp.servers",))

CLIENTS: Final[tuple[Client, ...]] = (
    Client(
        "claude-desktop",
        "Claude Desktop",
        "https://modelcontextprotocol.io/docs/develop/connect-local-servers",
        (Place("config", "Claude/claude_desktop_config.json"),),
        EntryShape(remote_type="http"),
        expands_variables=False,
    ),
    Client(
        "claude-code",
        "Claude Code",
        "https://code.claude.com/docs/en/mcp",
        (
            Place("claude", ".claude.json", (("mcpServers",), ("projects", "*", "mcpServers"))),
            Place("project", ".mcp.json"),
        ),
        EntryShape(remote_type="http"),
    ),
    Client(
        "cursor",
        "Cursor",
        "https://cursor.com/docs/mcp",
        (Place("home", ".cursor/mcp.json"), Place("project", ".cursor/mcp.json")),
    ),
    Client(
        "vscode",
        "VS Code",
        "https://code.visualstudio.com/docs/copilot/reference/mcp-configuration",
        (
            Place("config", "Code/User/mcp.json", (("servers",),)),
            Place("config", "Code/User/profiles/*/mcp.json", (("servers",),)),
            Place("config", "Code/User/settings.json", _SETTINGS_BLOCKS),
            Place("config", "Code - Insiders/User/mcp.json", (("servers",),)),
            Place("project", ".vscode/mcp.json", (("servers",),)),
            Place("project", ".vscode/settings.json", _SETTINGS_BLOCKS),
        ),
        EntryShape(remote_type="http"),
    ),
    Client(
        "windsurf",
        "Windsurf",
        "https://docs.windsurf.com/windsurf/cascade/mcp",
        # The second file belongs to the plugin for JetBrains IDEs: https://docs.windsurf.com/plugins/cascade/mcp
        (Place("home", ".codeium/windsurf/mcp_config.json"), Place("home", ".codeium/mcp_config.json")),
        EntryShape(url="serverUrl", sse_url="serverUrl"),
    ),
    Client(
        "codex",
        "Codex",
        "https://developers.openai.com/codex/mcp",
        (
            Place("codex", "config.toml", (("mcp_servers",),)),
            Place("project", ".codex/config.toml", (("mcp_servers",),)),
        ),
        EntryShape(headers="http_headers", forwarded="env_vars"),
        expands_variables=False,
    ),
    Client(
        "gemini",
        "Gemini CLI",
        "https://geminicli.com/docs/tools/mcp-server",
        (Place("home", ".gemini/settings.json"), Place("project", ".gemini/settings.json")),
        EntryShape(url="httpUrl", sse_url="url"),
        expands_bare_variables=True,
    ),
    Client(
        "zed",
        "Zed",
        "https://zed.dev/docs/ai/mcp",
        (
            Place("xdg", "zed/settings.json", (("context_servers",),), windows_path="Zed/settings.json"),
            Place("project", ".zed/settings.json", (("context_servers",),)),
        ),
        expands_variables=False,
    ),
    Client(
        "cline",
        "Cline",
        "https://docs.cline.bot/mcp/mcp-overview",
        (
            Place("home", ".cline/data/settings/cline_mcp_settings.json"),
            *_list_extension_places("saoudrizwan.claude-dev/settings/cline_mcp_settings.json"),
        ),
        EntryShape(remote_type="streamableHttp", is_sse_by_default=True),
    ),
    Client(
        "roo",
        "Roo Code",
        "https://docs.roocode.com/features/mcp/using-mcp-in-roo",
        (
            *_list_extension_places("rooveterinaryinc.roo-cline/settings/mcp_settings.json"),
            Place("project", ".roo/mcp.json"),
        ),
        EntryShape(remote_type="streamable-http"),
    ),
    Client(
        "goose",
        "Goose",
        "https://block.github.io/goose/docs/guides/config-files",
        (Place("xdg", "goose/config.yaml", (("extensions",),), windows_path="Block/goose/config/config.yaml"),),
        EntryShape(
            command="cmd",
            env="envs",
            is_type_required=True,
            url="uri",
            sse_url="uri",
            remote_type="streamable_http",
            has_header_variables=True,
            builtin_types=("builtin", "platform", "frontend", "inline_python"),
            has_enabled_entries=True,
        ),
        expands_variables=False,
    ),
    Client(
        "opencode",
        "OpenCode",
        "https://opencode.ai/docs/mcp-servers",
        (
            Place("opencode", "opencode.json", _OPENCODE_BLOCKS),
            Place("opencode", "opencode.jsonc", _OPENCODE_BLOCKS),
            Place("project", "opencode.json", _OPENCODE_BLOCKS),
            Place("project", "opencode.jsonc", _OPENCODE_BLOCKS),
            Place("project", ".opencode/opencode.json", _OPENCODE_BLOCKS),
            Place("project", ".opencode/opencode.jsonc", _OPENCODE_BLOCKS),
        ),
        EntryShape(
            has_command_list=True,
            env="environment",
            local_type="local",
            is_type_required=True,
            remote_type="remote",
        ),
    ),
    Client(
        "lm-studio",
        "LM Studio",
        "https://lmstudio.ai/docs/app/mcp",
        (Place("home", ".lmstudio/mcp.json"), Place("home", ".cache/lm-studio/mcp.json")),
    ),
    Client(
        "junie",
        "JetBrains Junie",
        "https://www.jetbrains.com/help/junie/model-context-protocol-mcp.html",
        (Place("home", ".junie/mcp/mcp.json"), Place("project", ".junie/mcp/mcp.json")),
    ),
    Client(
        "continue",
        "Continue",
        "https://docs.continue.dev/customize/deep-dives/mcp",
        (
            Place("home", ".continue/config.yaml"),
            Place("home", ".continue/mcpServers/*"),
            Place("project", ".continue/mcpServers/*"),
        ),
        EntryShape(is_type_required=True, remote_type="streamable-http", headers="requestOptions"),
    ),
)
"""Every client that `install` knows by name."""

ANY_CLIENT: Final = Client(
    "any",
    "the client of this file",
    "",
    (
        Place(
            "project", "*", (("mcpServers",), ("servers",), ("context_servers",), ("mcp_servers",), ("mcp", "servers"))
        ),
    ),
    EntryShape(remote_type="http"),
)
"""The client of a file that the table does not have."""


def current_machine() -> Machine:
    """Return this machine, with the current folder as the project; ConfigError if that was removed."""
    home = Path(os.path.expanduser("~"))  # noqa: PTH111  # also works without a home folder
    try:
        project = Path.cwd()
    except FileNotFoundError:
        raise ConfigError("The current folder was removed. Change to another folder, then try again.") from None
    return Machine(sys.platform, home, project, os.environ)


def each_file(machine: Machine) -> Iterator[tuple[Client, Place, Path]]:
    """Yield every file that a client may have on a machine."""
    for client in CLIENTS:
        for place in client.places:
            for file in place.files(machine):
                yield client, place, file
