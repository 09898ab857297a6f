"""Translates clients' blocks of servers, such as `mcpServers`, to `upstreams`.

Tables list the clients' keys. This module renames and moves nodes, and does not know which values are right. Nodes keep
their locations, so that later messages name the keys that the user wrote.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from mcp_mirror.config.checks import HTTP_KEYS, STDIO_KEYS
from mcp_mirror.config.scalars import kind_name
from mcp_mirror.config.source import Findings, Items, Node, Scalar, YamlMapping
from mcp_mirror.settings.declarations import UPSTREAM_NAME

CLIENT_BLOCKS: Final[Mapping[str, str]] = {
    "mcpServers": "Claude, Cursor, Cline, Roo, Windsurf, Gemini CLI and others",
    "servers": "VS Code",
    "context_servers": "Zed",
    "mcp_servers": "Codex",
}
"""Top-level keys of clients' servers, with the clients."""

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
"""A client's key, and the key here; a dot separates the section."""

_APPROVAL: Final = "it has no effect here; approval stays with the client"
_LABEL: Final = "it has no effect here; it is a label in the client's window"
_SIGN_IN: Final = "it has no effect here; write 'headers' with an Authorization from ${VAR}"
_PROCESS: Final = "it has no effect here; the gateway starts and restarts upstreams itself"

_IGNORED: Final[Mapping[str, str]] = {
    **dict.fromkeys(("autoApprove", "alwaysAllow", "trust", "default_tools_approval_mode"), _APPROVAL),
    **dict.fromkeys(("name", "description", "icon", "iconPath", "gallery", "version"), _LABEL),
    **dict.fromkeys(("source", "registryUrl", "note", "metadata", "chatMenu", "serverInstructions"), _LABEL),
    **dict.fromkeys(("oauth", "auth", "authProviderType", "targetAudience", "targetServiceAccount"), _SIGN_IN),
    **dict.fromkeys(("oauthClient", "scopes", "headersHelper", "bearer_token_env_var", "env_http_headers"), _SIGN_IN),
    **dict.fromkeys(("oauth_resource", "requiresOAuth", "customUserVars"), _SIGN_IN),
    **dict.fromkeys(("dev", "watchPaths", "required", "alwaysLoad", "remote", "startup", "start_on_launch"), _PROCESS),
    **dict.fromkeys(("sandbox", "sandboxEnabled"), "it has no effect here; the program has the gateway's own rights"),
    "envFile": "the file is not read; set its variables in the gateway's environment and name them in 'env'",
    "env_vars": "it has no effect here; name the variables in 'env' as NAME: ${NAME}",
    "settings": "it has no effect here; write the program's settings in 'args' or 'env'",
    **dict.fromkeys(("startup_timeout_ms", "initTimeout"), "it has no effect here; write 'startup_timeout' in seconds"),
    "supports_parallel_tool_calls": "it has no effect here; calls always run concurrently",
}
"""A client's key without effect here, and the reason or the advice."""

_NAMES: Final = "names are of A-Z, a-z, 0-9, _, - and dots"
_TRANSPORTS: Final[Mapping[str, str]] = {
    "local": "stdio",
    "http": "streamable-http",
    "streamableHttp": "streamable-http",
    "streamable_http": "streamable-http",
    "streamablehttp": "streamable-http",
    "remote": "streamable-http",
}


def gather_upstreams(root: YamlMapping, findings: Findings) -> tuple[Mapping[str, Node], YamlMapping]:
    """Return the other sections, without keys for editors only, and the upstreams with those of clients' blocks."""
    gathered = _read_entries(root.members.get("upstreams"), findings)
    for block in CLIENT_BLOCKS:
        entries = _read_entries(root.members.get(block), findings)
        for name, node in entries.items():
            chosen = re.sub(r"[^A-Za-z0-9_.-]", "_", name)
            if chosen != name and UPSTREAM_NAME.fullmatch(chosen):
                findings.warn(node.location, f"the name of the upstream becomes '{chosen}'; {_NAMES}")
            if chosen in gathered:
                line = gathered[chosen].location.line
                why = "" if chosen == name else f": both become '{chosen}', because {_NAMES}"
                findings.report(node.location, f"line {line} has an upstream of the same name{why}; rename one")
            gathered.setdefault(chosen, _translate(node, findings))
    if inputs := root.members.get("inputs"):
        findings.warn(inputs.location, "the gateway cannot ask a person; set environment variables and write ${VAR}")
    moved = {"upstreams", "inputs", "$schema", *CLIENT_BLOCKS}
    sections = {key: node for key, node in root.members.items() if key not in moved and not key.startswith("x-")}
    return sections, YamlMapping(root.members.get("upstreams", root).location, gathered)


def _read_entries(block: Node | None, findings: Findings) -> dict[str, Node]:
    """Return the servers of a block; nothing if every line is a comment."""
    match block:
        case YamlMapping():
            return dict(block.members)
        case None | Scalar(kind="nothing" | "unusable"):
            return {}
    findings.report(block.location, f"expected a mapping from names to servers, got {kind_name(block)}")
    return {}


def _translate(server: Node, findings: Findings) -> Node:
    """Return a server with the keys of `upstreams`."""
    if not isinstance(server, YamlMapping):
        return server
    members: dict[str, Node] = {}
    tools: dict[str, Node] = {}
    for key, node in _flatten(server).items():
        if key in _IGNORED:
            findings.warn(node.location, _IGNORED[key])
            continue
        is_list_of_tools = key == "tools" and isinstance(node, Items)  # GitHub Copilot: a list of names
        section, _, leaf = ("tools.allow" if is_list_of_tools else RENAMED.get(key, key)).rpartition(".")
        _put(tools if section else members, leaf, _convert(key, node), findings)
    if tools:
        _put(members, "tools", YamlMapping(server.location, tools), findings)
    return YamlMapping(server.location, _drop_unused(members, findings))


def _flatten(server: YamlMapping) -> dict[str, Node]:
    """Return the keys of a server, those in Cline's `transport` among them."""
    members = dict(server.members)
    inner = members.get("transport")
    if isinstance(inner, YamlMapping):
        del members["transport"]
        members |= inner.members
    return members


def _put(members: dict[str, Node], key: str, node: Node, findings: Findings) -> None:
    if key in members:
        findings.report(node.location, f"this key means the same as '{members[key].location.path[-1]}'; keep one")
    members.setdefault(key, node)


def _convert(key: str, node: Node) -> Node:
    if not isinstance(node, Scalar):
        return node
    if key == "disabled":
        return replace(node, is_inverted=True)
    if RENAMED.get(key, key) == "transport":
        return replace(node, text=_TRANSPORTS.get(node.text, node.text))
    return node


def _drop_unused(members: dict[str, Node], findings: Findings) -> dict[str, Node]:
    """Remove keys that the transport does not use: clients write an empty `env` for remote servers."""
    if "command" not in members and "url" not in members:
        return members
    other = HTTP_KEYS if "command" in members else STDIO_KEYS
    for key in other:
        node = members.get(key)
        if node and not _is_empty(node):
            findings.warn(node.location, "it has no effect here, because this kind of server does not use it")
    return {key: node for key, node in members.items() if key not in other}


def _is_empty(node: Node) -> bool:
    match node:
        case YamlMapping():
            return not node.members
        case Items():
            return not node.nodes
        case Scalar():
            return node.kind == "nothing"
