"""A configuration file, found and read once, into the frozen policies that every other module obeys.

The order: YAML to a tree with places (`source`), clients' blocks to upstreams (`clients`), variables
into the enabled part, types and bounds (`models`), policies. Everything wrong in a file is told at once.
No message may hold a value from the file or the environment. This module must not know who obeys a policy.
"""

import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from platformdirs import user_config_path
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mcp_mirror.config.access_policies import check_access, read_auth, read_oauth
from mcp_mirror.config.clients import CLIENT_BLOCKS, HTTP_KEYS, RENAMED, STDIO_KEYS, gather_upstreams
from mcp_mirror.config.exposure import warn_of_exposure
from mcp_mirror.config.fields import WANTED, kind_name, read_boolean
from mcp_mirror.config.flow_policies import check_flows, read_flows, read_place
from mcp_mirror.config.limits import read_bounds, read_limits
from mcp_mirror.config.models import UPSTREAM_NAME, ConfigFile, MemoryToolsSection, UpstreamSection
from mcp_mirror.config.shape import keys_at, plain
from mcp_mirror.config.source import Findings, Items, Node, Scalar, Table, YamlLocation, expand, read_yaml
from mcp_mirror.config.store_policies import check_store, read_store
from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.access import TOKEN_PREFIX
from mcp_mirror.settings.policies import (
    AuditPolicy,
    Config,
    ContextPolicy,
    HttpEndpoint,
    LockPolicy,
    MemoryToolsPolicy,
    MirrorPolicy,
    ServerPolicy,
    StdioEndpoint,
    ToolPolicy,
    UpstreamPolicy,
)

CONFIG_VARIABLE: Final = "MCP_MIRROR_CONFIG"
CONFIG_NAME: Final = "mcp-mirror.yaml"
MAX_FILE_BYTES: Final = 1 << 20
LONGEST_SECONDS: Final = 3600
"""A client's `timeout` over this is in milliseconds: some clients count so, and none waits longer."""

LONGEST_KEY: Final = 32
LOCK_SUFFIX: Final = ".lock.json"

_WANTED_TYPES: Final[Mapping[str, str]] = {"list_type": "a list", "tuple_type": "a list"}


@dataclass(frozen=True, slots=True)
class FoundConfig:
    """The configuration file to read, and the other files that could have been meant."""

    path: Path
    others: tuple[Path, ...] = ()

    @property
    def notice(self) -> str | None:
        """A line for the operator: which file is read and how to choose another; None where there is only one."""
        if not self.others:
            return None
        others = ", ".join(map(str, self.others))
        return f"Reading {self.path}. Also found: {others}. Choose with --config FILE or ${CONFIG_VARIABLE}."


def find_config(explicit: Path | None, environ: Mapping[str, str]) -> FoundConfig:
    """Find the configuration to read.

    `explicit` wins, then `$MCP_MIRROR_CONFIG`; both are returned whether or not they exist, and `load_config` reports
    what is wrong with them. Otherwise the order is `./mcp-mirror.yaml`, `mcp-mirror.yaml` in the user's configuration
    folder, and the only other `*.yaml` file there, which `install` names after a client.

    Raises:
        ConfigError: No file was found, or several clients' files and none to prefer.
    """
    named = explicit or (Path(environ[CONFIG_VARIABLE]) if environ.get(CONFIG_VARIABLE) else None)
    if named:
        return FoundConfig(Path(_from_home(str(named))))
    folder = user_config_path("mcp-mirror")
    defaults = [place for place in (Path(CONFIG_NAME), folder / CONFIG_NAME) if place.is_file()]
    installed = [place for place in sorted(folder.glob("*.yaml")) if place.name != CONFIG_NAME and place.is_file()]
    found = [*defaults, *installed]
    if defaults or len(found) == 1:
        return FoundConfig(found[0], tuple(found[1:]))
    if found:
        names = ", ".join(place.name for place in found)
        raise ConfigError(
            f"There are several configuration files in {folder}: {names}. Choose one with --config "
            f"{found[0]} or ${CONFIG_VARIABLE}."
        )
    raise ConfigError(
        f"No configuration file: looked for --config, ${CONFIG_VARIABLE}, ./{CONFIG_NAME} and {folder / CONFIG_NAME}. "
        f"To begin, run `mcp-mirror install CLIENT`, or write ./{CONFIG_NAME} with 'upstreams:' or a client's "
        "'mcpServers' block."
    )


def load_config(path: Path, environ: Mapping[str, str]) -> Config:
    """The configuration in `path`, with `${VAR}` from `environ` (and `${PYTHON}` for this Python, unless set).

    Raises:
        ConfigError: the file cannot be used; one line for each problem names file, line, key and what was wanted.
    """
    findings = Findings(str(path))
    root = read_yaml(_read_text(path), findings)
    warn_of_exposure(path, root, findings)
    return _read_config(root, findings, path.absolute().parent, environ, path.with_suffix(LOCK_SUFFIX).name)


def parse_config(text: str, path: Path, environ: Mapping[str, str]) -> Config:
    """The configuration that `path` would hold with this text.

    Raises:
        ConfigError: as for `load_config`.
    """
    lock_name = path.with_suffix(LOCK_SUFFIX).name
    findings = Findings(str(path))
    return _read_config(read_yaml(text, findings), findings, path.absolute().parent, environ, lock_name)


def read_config(content: Mapping[str, Any], called: str, environ: Mapping[str, str]) -> Config:
    """The configuration that a mapping is, of the same shape as a file's; relative folders start at the current one.

    Args:
        content: Texts, numbers, truth values, paths, lists and mappings.
        called: What a message calls it, in place of a file's name.
        environ: As for `load_config`.

    Raises:
        ConfigError: as for `load_config`.
    """
    try:
        text = json.dumps(content, default=os.fspath)
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(f"{called}: wanted texts, numbers, truth values, lists and mappings alone") from None
    findings = Findings(called)
    return _read_config(read_yaml(text, findings), findings, Path.cwd(), environ)


def _read_config(
    root: Node, findings: Findings, folder: Path, environ: Mapping[str, str], lock_name: str | None = None
) -> Config:
    if not isinstance(root, Table):
        findings.fail(root.place, f"wanted a mapping with 'upstreams:' at the top, got {kind_name(root)}")
    variables = {"PYTHON": sys.executable} | dict(environ)
    live, disabled = _split_disabled(gather_upstreams(root, findings), variables)
    live = cast("Table", expand(live, variables, findings))
    upstreams = _upstream_tables(live)
    for name, table in upstreams.items():
        _check_upstream(name, table, findings)
    _check_mirror(live.members.get("mirror"), findings)
    check_store(live.members.get("store"), findings)
    file = _validate(live, findings)
    if file:
        check_access(file, live, findings)
        check_flows(file, live, {*upstreams, *_upstream_nodes(disabled)}, findings)
    _check_keys(disabled, findings)
    findings.raise_problems()
    return _Builder(folder, upstreams, findings, lock_name).build(file or ConfigFile())


def _read_text(path: Path) -> str:
    problem, data = "", b""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        problem = f"{path}:{line}: the file is not UTF-8; save it as UTF-8"
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        problem = f"{path}: the configuration cannot be read: {reason}; check the path and its permissions"
    if not problem and len(data) > MAX_FILE_BYTES:
        problem = f"{path}: larger than {MAX_FILE_BYTES} bytes; this is not a configuration"
    if problem:
        raise ConfigError(problem)
    return text


def _split_disabled(root: Table, variables: Mapping[str, str]) -> tuple[Table, Table]:
    """The top level with the enabled upstreams, and one with the others."""
    place = root.members["upstreams"].place
    upstreams = _upstream_nodes(root)
    off = {name: node for name, node in upstreams.items() if not _is_enabled(node, variables)}
    on = {name: node for name, node in upstreams.items() if name not in off}
    return (
        replace(root, members={**root.members, "upstreams": Table(place, on)}),
        Table(root.place, {"upstreams": Table(place, off)}),
    )


def _upstream_nodes(root: Table) -> Mapping[str, Node]:
    upstreams = root.members["upstreams"]
    return upstreams.members if isinstance(upstreams, Table) else {}


def _upstream_tables(root: Table) -> dict[str, Table]:
    return {name: node for name, node in _upstream_nodes(root).items() if isinstance(node, Table)}


def _is_enabled(upstream: Node, variables: Mapping[str, str]) -> bool:
    """Whether to read an upstream on. What is no boolean is read on, so that the models complain of it."""
    switch = upstream.members.get("enabled") if isinstance(upstream, Table) else None
    if switch is None:
        return True
    expanded = expand(switch, variables, Findings(""))
    return not isinstance(expanded, Scalar) or read_boolean(expanded) is not False


def _check_upstream(name: str, table: Table, findings: Findings) -> None:
    """The rules that hold between an upstream's keys; told beside what is wrong with single keys."""
    if not UPSTREAM_NAME.fullmatch(name):
        findings.problem(table.place, "wanted a name of 1 to 64 of A-Z, a-z, 0-9, _, - and dots")
    keys = table.members.keys()
    if ("command" in keys) == ("url" in keys):
        got = "both; keep one" if "url" in keys else "neither"
        findings.problem(table.place, f"wanted 'command' (a program to start) or 'url' (an address), got {got}")
        return
    wrong, kind, other = (HTTP_KEYS, "command", "url") if "command" in keys else (STDIO_KEYS, "url", "command")
    for key in wrong:
        if key in keys:
            findings.problem(table.members[key].place, f"this goes with '{other}', not with '{kind}'; remove it")
    _check_transport(table.members.get("transport"), kind, findings)


def _check_transport(transport: Node | None, kind: str, findings: Findings) -> None:
    fits = {"command": ("stdio",), "url": ("streamable-http", "sse")}
    elsewhere = {name for key, names in fits.items() if key != kind for name in names}
    if isinstance(transport, Scalar) and transport.text in elsewhere:
        findings.problem(transport.place, f"with '{kind}' wanted {' or '.join(fits[kind])}; or leave it out")


def _check_mirror(mirror: Node | None, findings: Findings) -> None:
    keys = mirror.members if isinstance(mirror, Table) else {}
    suffix, switch = keys.get("suffix"), keys.get("expose_originals")
    bare = isinstance(suffix, Scalar) and suffix.kind in ("text", "expanded") and not suffix.text
    if bare and isinstance(switch, Scalar) and read_boolean(switch):
        findings.problem(switch.place, "without a suffix twins have the originals' names; set 'suffix', or remove this")


def _validate(root: Table, findings: Findings) -> ConfigFile | None:
    for error in (result := _try(root))[1]:
        _tell(error, root, findings)
    return result[0]


def _check_keys(disabled: Table, findings: Findings) -> None:
    """A disabled upstream's values need not be usable, but a mistyped key would surprise on enabling it."""
    for error in _try(disabled)[1]:
        if error["type"] == "extra_forbidden":
            _tell(error, disabled, findings)


def _try(root: Table) -> tuple[ConfigFile | None, list[ErrorDetails]]:
    try:
        return ConfigFile.model_validate(plain(root)), []
    except ValidationError as error:
        return None, error.errors(include_url=False, include_input=False)


def _tell(error: ErrorDetails, root: Table, findings: Findings) -> None:
    loc = tuple(str(part) for part in error["loc"])
    node = _node_at(root, loc)
    if isinstance(node, Scalar) and node.kind == "unusable":
        return
    if error["type"] == "extra_forbidden":
        findings.problem(_unknown_place(node.place), _unknown_key(loc))
        return
    if error["type"] == "missing":
        findings.problem(_safe_place(node), f"wanted {loc[-1]!r}, which is missing")
        return
    wanted = error["ctx"]["wanted"] if error["type"] == WANTED else _WANTED_TYPES.get(error["type"], "a mapping")
    got = kind_name(node)
    findings.problem(_safe_place(node), f"wanted {wanted}, got {got}{_hint(node, wanted)}")


def _hint(node: Node, wanted: str) -> str:
    if not isinstance(node, Scalar):
        return ""
    if wanted.startswith("sha256:") and node.text.startswith(TOKEN_PREFIX):
        return "; this is a token itself, and no longer a secret: make another, and put its hash here"
    if node.kind == "nothing" and node.text == "~":
        return "; a bare ~ means nothing in YAML, so put it in quotes"
    if node.kind == "nothing":
        return "; it is never none" if "seconds above" in wanted else ""
    return "; put it in quotes" if wanted.startswith("text") and node.kind in ("number", "boolean") else ""


def _node_at(root: Node, loc: tuple[str, ...]) -> Node:
    """The node that pydantic's location names, or the deepest on the way to it."""
    node = root
    for key in loc:
        match node:
            case Table() if key in node.members:
                node = node.members[key]
            case Items() if key.isdecimal():
                node = node.nodes[int(key)]
            case Items():  # it stands for a mapping that has one key
                continue
            case _:
                break
    return node


def _unknown_key(loc: tuple[str, ...]) -> str:
    key, keys = loc[-1], keys_at(loc[:-1])
    blocks = tuple(CLIENT_BLOCKS) if len(loc) == 1 else ()
    same = RENAMED.get(key, "").split(".")[0]
    near = [same] if same in keys else get_close_matches(key, (*keys, *blocks), 1)
    return f"unknown key; did you mean '{near[0]}'?" if near else f"unknown key; wanted one of {', '.join(keys)}"


def _unknown_place(place: YamlLocation) -> YamlLocation:
    """No key of ours is long or odd, but a secret in the place of a key is."""
    name = place.path[-1]
    return place if name.replace("-", "_").isidentifier() and len(name) <= LONGEST_KEY else _parent(place)


def _safe_place(node: Node) -> YamlLocation:
    """In `env: {secret}` the secret is a key without a value."""
    keys = node.place.path
    lone = isinstance(node, Scalar) and node.kind == "nothing" and len(keys) > 1
    return _parent(node.place) if lone and RENAMED.get(keys[-2], keys[-2]) in ("env", "headers") else node.place


def _parent(place: YamlLocation) -> YamlLocation:
    return replace(place, path=place.path[:-1])


@dataclass(frozen=True, slots=True)
class _Builder:
    """Sections to policies."""

    folder: Path
    """Where the file is: relative paths in it start here."""
    tables: Mapping[str, Table]
    findings: Findings
    lock_name: str | None
    """What the lock file is called where nothing else is said."""

    def build(self, file: ConfigFile) -> Config:
        upstreams = tuple(self._upstream(name, section, file) for name, section in file.upstreams.items())
        return Config(
            upstreams=upstreams,
            mirror=MirrorPolicy(**file.mirror.model_dump()),
            memory_tools=self._memory_tools(file.memory_tools),
            context=ContextPolicy(**file.context.model_dump()),
            store=read_store(file.store, self._folder(file.store.path)),
            server=ServerPolicy(**file.server.model_dump()),
            limits=read_limits(file.limits),
            lock=LockPolicy(file.lock.mode, self._folder(file.lock.file or self.lock_name)),
            auth=read_auth(file.auth, self._path),
            flows=read_flows(file.flows),
            audit=AuditPolicy(self._folder(file.audit.path), file.audit.required, file.audit.key),
            warnings=self.findings.warnings,
        )

    def _memory_tools(self, section: MemoryToolsSection) -> MemoryToolsPolicy:
        roots = tuple(os.path.normpath(self.folder / _from_home(root)) for root in section.roots)
        return MemoryToolsPolicy(**(section.model_dump() | {"roots": roots}))

    def _upstream(self, name: str, section: UpstreamSection, file: ConfigFile) -> UpstreamPolicy:
        return UpstreamPolicy(
            name=name,
            endpoint=self._http(name, section) if section.command is None else self._stdio(section, section.command),
            timeout=self._timeout(name, section.timeout),
            startup_timeout=section.startup_timeout,
            allow=section.tools.allow,
            deny=section.tools.deny,
            overrides=tuple((glob, ToolPolicy(**each.model_dump())) for glob, each in section.overrides.items()),
            max_request_bytes=section.max_request_bytes,
            lock=section.lock,
            preview=file.mirror.preview if section.preview is None else section.preview,
            bounds=read_bounds(file.limits),
            place=read_place(section),
            oldest_protocol=section.oldest_protocol,
            required_scopes=section.required_scopes or (),
            scope=section.scope,
            repeat_read_only=section.repeat_read_only,
            progress_resets_timeout=section.progress_resets_timeout,
        )

    def _stdio(self, section: UpstreamSection, command: str) -> StdioEndpoint:
        cwd = self._folder(section.cwd)
        return StdioEndpoint(_from_home(command), section.args, MappingProxyType(section.env), cwd)

    def _folder(self, path: str | None) -> str | None:
        return None if path is None else self._path(path)

    def _path(self, path: str) -> str:
        return os.path.normpath(self.folder / _from_home(path))

    def _http(self, name: str, section: UpstreamSection) -> HttpEndpoint:
        oauth = read_oauth(name, section.auth.oauth, self._path) if section.auth else None
        headers, is_legacy = MappingProxyType(section.headers), section.transport == "sse"
        return HttpEndpoint(section.url or "", headers, is_legacy, oauth, section.allow_private)

    def _timeout(self, name: str, seconds: float) -> float:
        node = self.tables[name].members.get("timeout")
        if node is None or seconds <= LONGEST_SECONDS or not _is_clients_timeout(node.place):
            return seconds
        self.findings.warn(node.place, f"over {LONGEST_SECONDS}, so it is read as milliseconds; write seconds")
        return seconds / 1000


def _is_clients_timeout(place: YamlLocation) -> bool:
    """Whether no unit is known: Codex's `tool_timeout_sec` has its own in its name."""
    return place.path[0] in CLIENT_BLOCKS and place.path[-1] == "timeout"


def _from_home(path: str) -> str:
    return os.path.expanduser(path)  # noqa: PTH111  # Path.expanduser raises for an unknown user
