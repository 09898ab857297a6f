"""The blocks that clients keep their servers in, translated to `upstreams`.

A table says what each client's key means here. This module must not know what a value may be: it renames and
moves nodes, which keep the places where the user wrote them, so a later complaint names the user's own key.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from mcp_mirror.config.checks import HTTP_KEYS, STDIO_KEYS
from mcp_mirror.config.scalars import kind_name
from mcp_mirror.config.source import Findings, Items, Node, Scalar, Table, YamlLocation
from mcp_mirror.settings.declarations import UPSTREAM_NAME

CLIENT_BLOCKS: Final[Mapping[str, str]] = {
    "mcpServers": "Claude, Cursor, Cline, Roo, Windsurf, Gemini CLI and others",
    "servers": "VS Code",
    "context_servers": "Zed",
    "mcp_servers": "Codex",
}
"""Top-level keys that hold a client's servers, with the clients."""

IGNORED_TOP: Final[Mapping[str, str]] = {
    "inputs": "it asks a person, and a gateway cannot; set environment variables and write ${VAR}",
}

RENAMED: Final[Mapping[str, str]] = {
    "type": "transport",
    "transportType": "transport",
    "httpUrl": "url",  # Gemini CLI: Streamable HTTP
    "serverUrl": "url",  # Windsurf
    "baseUrl": "url",
    "http_headers": "headers",  # Codex
    "environment": "env",
    "working_directory": "cwd",  # Warp
    "disabled": "enabled",
    "isActive": "enabled",
    "startup_timeout_sec": "startup_timeout",  # Codex
    "tool_timeout_sec": "timeout",  # Codex
    "includeTools": "tools.allow",  # Gemini CLI
    "excludeTools": "tools.deny",  # Gemini CLI
    "enabledTools": "tools.allow",
    "disabledTools": "tools.deny",  # Roo, Windsurf
    "enabled_tools": "tools.allow",  # Codex
    "disabled_tools": "tools.deny",  # Codex
}
"""A client's key and what it is here; a dot leads into a section."""

_APPROVAL: Final = "it has no effect here; approval stays with the client"
_LABEL: Final = "it has no effect here; a label for the client's own window"
_SIGN_IN: Final = "it has no effect here; write 'headers' with an Authorization from ${VAR}"
_LIFE: Final = "it has no effect here; the gateway starts and restarts upstreams itself"

IGNORED: Final[Mapping[str, str]] = {
    "autoApprove": _APPROVAL,
    "alwaysAllow": _APPROVAL,
    "trust": _APPROVAL,
    "default_tools_approval_mode": _APPROVAL,
    "name": _LABEL,
    "description": _LABEL,
    "icon": _LABEL,
    "iconPath": _LABEL,
    "gallery": _LABEL,
    "version": _LABEL,
    "source": _LABEL,
    "registryUrl": _LABEL,
    "note": _LABEL,
    "oauth": _SIGN_IN,
    "auth": _SIGN_IN,
    "authProviderType": _SIGN_IN,
    "targetAudience": _SIGN_IN,
    "targetServiceAccount": _SIGN_IN,
    "scopes": _SIGN_IN,
    "headersHelper": _SIGN_IN,
    "bearer_token_env_var": _SIGN_IN,
    "env_http_headers": _SIGN_IN,
    "envFile": "the file is not read; set its variables in the gateway's environment and name them in 'env'",
    "env_vars": "it has no effect here; name the variables in 'env' as NAME: ${NAME}",
    "dev": _LIFE,
    "watchPaths": _LIFE,
    "required": _LIFE,
    "alwaysLoad": _LIFE,
    "sandbox": "it has no effect here; the program runs with the gateway's own rights",
    "sandboxEnabled": "it has no effect here; the program runs with the gateway's own rights",
    "settings": "it has no effect here; give the program its settings in 'args' or 'env'",
    "startup_timeout_ms": "it has no effect here; write 'startup_timeout' in seconds",
    "supports_parallel_tool_calls": "it has no effect here; calls always run side by side",
}
"""A client's key that is read without effect, and what to know about that."""

TRANSPORTS: Final[Mapping[str, str]] = {
    "local": "stdio",
    "http": "streamable-http",
    "streamableHttp": "streamable-http",
    "streamable_http": "streamable-http",
    "streamablehttp": "streamable-http",
    "remote": "streamable-http",
}


def gather_upstreams(root: Table, findings: Findings) -> Table:
    """The same top level with every client's block moved into `upstreams`, and without what is only for editors."""
    gathered = _entries(root.members.get("upstreams"), findings)
    for block in CLIENT_BLOCKS:
        entries = _entries(root.members.get(block), findings)
        for name, node in entries.items():
            _add(gathered, _upstream_name(name, node.place, findings), _translate(node, findings), findings)
    for key in IGNORED_TOP.keys() & root.members.keys():
        findings.warn(root.members[key].place, IGNORED_TOP[key])
    rest = {key: node for key, node in root.members.items() if not _is_moved(key)}
    place = root.members["upstreams"].place if "upstreams" in root.members else root.place
    return replace(root, members=rest | {"upstreams": Table(place, gathered)})


def _is_moved(key: str) -> bool:
    return key in ("upstreams", "$schema") or key in CLIENT_BLOCKS or key in IGNORED_TOP or key.startswith("x-")


def _entries(block: Node | None, findings: Findings) -> dict[str, Node]:
    """The servers of a block; a block with every line commented out has none."""
    match block:
        case Table():
            return dict(block.members)
        case None | Scalar(kind="nothing" | "unusable"):
            return {}
    findings.problem(block.place, f"wanted a mapping from names to servers, got {kind_name(block)}")
    return {}


def _add(gathered: dict[str, Node], name: str, node: Node, findings: Findings) -> None:
    if name in gathered:
        line = gathered[name].place.line
        findings.problem(node.place, f"an upstream of this name is on line {line} already; rename one")
    gathered.setdefault(name, node)


def _upstream_name(name: str, place: YamlLocation, findings: Findings) -> str:
    usable = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
    if usable != name and UPSTREAM_NAME.fullmatch(usable):
        findings.warn(place, f"the upstream is called '{usable}' here; names are of A-Z, a-z, 0-9, _, - and dots")
    return usable


@dataclass(slots=True)
class _Translation:
    """One server's members under our keys."""

    findings: Findings
    members: dict[str, Node] = field(default_factory=dict)
    tools: dict[str, Node] = field(default_factory=dict)

    def put(self, key: str, node: Node) -> None:
        section, _, leaf = key.rpartition(".")
        target = self.tools if section else self.members
        if leaf in target:
            said = target[leaf].place.path[-1]
            self.findings.problem(node.place, f"it says the same as '{said}'; keep one")
        target.setdefault(leaf, node)


def _translate(server: Node, findings: Findings) -> Node:
    if not isinstance(server, Table):
        return server
    translation = _Translation(findings)
    for key, node in server.members.items():
        if key in IGNORED:
            findings.warn(node.place, IGNORED[key])
        else:
            translation.put(_target(key, node), _converted(key, node))
    if translation.tools:
        translation.put("tools", Table(server.place, translation.tools))
    return replace(server, members=_fitting(translation.members, findings))


def _target(key: str, node: Node) -> str:
    if key == "tools" and isinstance(node, Items):  # GitHub Copilot: a list of names
        return "tools.allow"
    return RENAMED.get(key, key)


def _converted(key: str, node: Node) -> Node:
    if not isinstance(node, Scalar):
        return node
    if key == "disabled":
        return replace(node, flipped=True)
    if RENAMED.get(key, key) == "transport":
        return replace(node, text=TRANSPORTS.get(node.text, node.text))
    return node


def _fitting(members: dict[str, Node], findings: Findings) -> dict[str, Node]:
    """Clients write an empty `env` for remote servers and keep keys that their transport does not use."""
    other = HTTP_KEYS if "command" in members else STDIO_KEYS if "url" in members else ()
    for key in other:
        node = members.get(key)
        if node and not _is_empty(node):
            findings.warn(node.place, "it has no effect here; this kind of server does not use it")
    return {key: node for key, node in members.items() if key not in other}


def _is_empty(node: Node) -> bool:
    match node:
        case Table():
            return not node.members
        case Items():
            return not node.nodes
        case Scalar():
            return node.kind == "nothing"
