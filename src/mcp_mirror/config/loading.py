"""Finds and reads a configuration, of a file or of a program, once, into the settings' frozen objects.

The steps: YAML to nodes with locations (`source`), clients' blocks to upstreams (`clients`), variables into the enabled
part, nodes to objects (`reader`), rules between keys (`checks`), and warnings of secrets in files that others can read.
One error reports all problems of a file. No message contains a value from the file or the environment.
"""

import json
import os
import stat
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, cast, get_args
from urllib.parse import urlsplit

from msgspec.structs import replace
from platformdirs import user_config_path, user_data_path

from mcp_mirror.config.checks import check_config, check_upstream
from mcp_mirror.config.clients import CLIENT_BLOCKS, RENAMED, gather_upstreams
from mcp_mirror.config.reader import Reader
from mcp_mirror.config.scalars import expand_home, kind_name, read_boolean
from mcp_mirror.config.shape import list_keys
from mcp_mirror.config.source import Findings, Items, Node, Scalar, YamlLocation, YamlMapping, expand, read_yaml
from mcp_mirror.config.variables import Variables
from mcp_mirror.errors import ConfigError
from mcp_mirror.security.redaction import SECRET_NAMES
from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.store import StoreKind, StorePolicy
from mcp_mirror.settings.upstreams import HttpEndpoint, UpstreamPolicy, is_sse_address
from mcp_mirror.system.patterns import lazy_pattern

_CONFIG_VARIABLE: Final = "MCP_MIRROR_CONFIG"
CONFIG_NAME: Final = "mcp-mirror.yaml"
_MAX_FILE_BYTES: Final = 1 << 20
_TOO_LARGE: Final = f"{{path}}: larger than {_MAX_FILE_BYTES} bytes; this is not a configuration"
_LONGEST_SECONDS: Final = 3600
"""A client's `timeout` above this is in milliseconds: some clients use them, and no client waits longer."""
_LOCK_SUFFIX: Final = ".lock.json"
_SHORTEST: Final = 8
"""Characters; shorter values are switches and names."""
_PATH: Final = lazy_pattern(r"(?:~|\.{0,2})/\S*|[A-Za-z]:\\.*")
_SECRET: Final = lazy_pattern(
    r"auth\.tokens\.[^.]*(\.hash)?|store\.encryption\.keys\..*|server\.state_keys\..*|audit\.key|.*\.client_secret"
)
"""Paths of keys whose values are secrets."""
GivenUpstreams = str | os.PathLike[str] | Mapping[str, Any] | Config | None
"""A configuration file, its content, only its upstreams, or settings; None: no upstreams."""

GivenStore = str | Mapping[str, Any] | StorePolicy | None
"""A kind of store, the content of `store`, or settings; None: the store of the configuration."""


class FoundConfig(NamedTuple):
    """The configuration file to read."""

    path: Path
    notice: str | None = None
    """A line for the operator: which of several files is read, and how to choose another."""


def find_config(explicit: Path | None, environ: Mapping[str, str], current: Path = Path()) -> FoundConfig:
    """Find the configuration that a command reads if `current` is its current folder.

    `explicit` wins, then `$MCP_MIRROR_CONFIG`; both are returned whether or not they exist, and `load_config` reports
    what is wrong with them. Otherwise the order is `./mcp-mirror.yaml`, `mcp-mirror.yaml` in the user's configuration
    folder, and the only other `*.yaml` file there, which `install --merge` names after a client.

    Raises:
        ConfigError: No file was found, several clients' files and none to prefer, or a file in the current folder that
            another user put there.
    """
    if explicit:
        return FoundConfig(Path(expand_home(str(explicit))))
    folder, found = user_config_path("mcp-mirror"), list_configs(environ, current)
    if not environ.get(_CONFIG_VARIABLE) and current / CONFIG_NAME in found:
        _refuse_foreign(current / CONFIG_NAME)
    if len(found) == 1 or (found and found[0].name == CONFIG_NAME):
        others = ", ".join(map(str, found[1:]))
        choice = f"Also found: {others}. Choose with --config FILE or ${_CONFIG_VARIABLE}."
        return FoundConfig(found[0], f"Reading {found[0]}. {choice}" if others else None)
    if found:
        names = ", ".join(path.name for path in found)
        raise ConfigError(
            f"There are several configuration files in {folder}: {names}. Choose one with --config "
            f"{found[0]} or ${_CONFIG_VARIABLE}."
        )
    raise ConfigError(
        f"No configuration file: looked for --config, ${_CONFIG_VARIABLE}, ./{CONFIG_NAME} and {folder / CONFIG_NAME}. "
        f"Write ./{CONFIG_NAME} with 'upstreams:' or a client's 'mcpServers' block, or run `mcp-mirror install`, which "
        "wraps a client's servers without a configuration; then `mcp-mirror doctor` checks them."
    )


def list_configs(environ: Mapping[str, str], current: Path = Path()) -> list[Path]:
    """Return the files that a command without `--config` may mean, the preferred first; see `find_config`."""
    if named := environ.get(_CONFIG_VARIABLE):
        return [Path(expand_home(named))]
    folder = user_config_path("mcp-mirror")
    defaults = [path for path in (current / CONFIG_NAME, folder / CONFIG_NAME) if _may_be_file(path)]
    others = sorted(folder.glob("*.yaml")) if os.path.isdir(folder) else ()  # noqa: PTH112  # `is_dir` may raise
    return [*defaults, *(other for other in others if other.name != CONFIG_NAME and other.is_file())]


def _refuse_foreign(path: Path) -> None:
    """Raise ConfigError if another user put this file into a folder that others can change, such as `/tmp`.

    Its upstreams are programs, which would run as this user. In a folder that only this user can change, the file was
    put there by this user, or by root: a file that is mounted into a container, for example.
    """
    if sys.platform == "win32":
        return
    try:
        file, folder = path.lstat(), path.absolute().parent.stat()
    except OSError:  # reading reports it
        return
    is_private = folder.st_uid in {0, os.geteuid()} and not folder.st_mode & (stat.S_IWGRP | stat.S_IWOTH)
    if file.st_uid not in {0, os.geteuid()} and not is_private:
        raise ConfigError(
            f"{path.absolute()} belongs to another user (uid {file.st_uid}), whose programs would run as you. If you "
            f"trust it, name it: --config {path.absolute()}"
        )


def _may_be_file(path: Path) -> bool:
    """Whether a path is a file; true too if only reading can show it, as in a folder that this user may not enter."""
    try:
        return stat.S_ISREG(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


def load_config(path: Path, environ: Mapping[str, str]) -> Config:
    """Read the configuration in `path`, with `${VAR}` from `environ` (and `${PYTHON}` for this Python, unless set).

    Raises:
        ConfigError: The file is unusable; a line for each problem names the file, line, key and expected value.
    """
    findings = Findings(str(path))
    root = read_yaml(_read_text(path), findings)
    _warn_of_exposure(path, root, findings)
    return _read_config(root, findings, environ, path)


def parse_config(text: str, path: Path, environ: Mapping[str, str]) -> Config:
    """Read a text as the content of `path`; ConfigError as for `load_config`."""
    if len(text.encode(errors="surrogatepass")) > _MAX_FILE_BYTES:
        raise ConfigError(_TOO_LARGE.format(path=path))
    findings = Findings(str(path))
    return _read_config(read_yaml(text, findings), findings, environ, path)


def read_config(
    content: Mapping[str, Any],
    called: str,
    environ: Mapping[str, str],
    name_origin: Callable[[Sequence[str]], str] | None = None,
) -> Config:
    """Read a mapping of the same shape as a file; relative paths start at the current folder.

    Messages name `called` in place of a file and a line; with `name_origin`, what it returns for the keys.

    Raises:
        ConfigError: As for `load_config`.
    """
    try:
        text = json.dumps(content, default=os.fspath)
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(f"{called}: expected only texts, numbers, booleans, lists and mappings") from None
    findings = Findings(called, name_origin or (lambda keys: f"{called}: {'.'.join(keys)}" if keys else called))
    return _read_config(read_yaml(text, findings), findings, environ)


def _read_config(root: Node, findings: Findings, environ: Mapping[str, str], path: Path | None = None) -> Config:
    """Return the configuration in a tree, which was read from the file `path` if there is one."""
    if not isinstance(root, YamlMapping):
        findings.fail(root.location, f"expected a mapping with 'upstreams:' at the top, got {kind_name(root)}")
    folder = path.absolute().parent if path else Path()
    if not path:
        with suppress(FileNotFoundError):  # the current folder was removed; only relative paths need it
            folder = Path.cwd()
    variables = Variables({"PYTHON": sys.executable} | dict(environ))
    sections, gathered = gather_upstreams(root, findings)
    _check_names(gathered, findings)
    on: dict[str, Node] = {}
    off: dict[str, Node] = {}
    for name, node in gathered.members.items():
        if _is_enabled(node, variables):
            on[name] = expand(node, variables, findings)
        else:
            off[name] = node
    upstreams = {name: node for name, node in on.items() if isinstance(node, YamlMapping)}
    for name, mapping in upstreams.items():
        check_upstream(name, mapping, findings)
    used = {key: expand(node, variables, findings) for key, node in sections.items()}
    whole = YamlMapping(root.location, {**used, "upstreams": YamlMapping(gathered.location, on)})
    config = Reader(findings, folder).read_config(whole)
    # The values of a disabled upstream need not be usable, but its keys must be known.
    disabled = YamlMapping(root.location, {"upstreams": YamlMapping(gathered.location, off)})
    Reader(findings, folder, is_strict=False).read_config(disabled)
    if config:
        check_config(config, whole, {*upstreams, *off}, findings)
    findings.raise_problems()
    config = replace(config or Config(), disabled=tuple(off))
    lock_file = str(folder / f"{path.stem}{_LOCK_SUFFIX}") if path else None
    return _complete(config, upstreams, findings, lock_file)


def _check_names(upstreams: YamlMapping, findings: Findings) -> None:
    """Fail if a key of one upstream is where the names of upstreams are."""
    for key in ("command", "url"):
        if isinstance(node := upstreams.members.get(key), Scalar):
            findings.fail(node.location, f"expected the name of a server, and {key!r} below the name")


def _read_text(path: Path) -> str:
    data = b""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_BYTES + 1)
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: the file is not UTF-8; save it as UTF-8") from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a usable path"
        raise ConfigError(
            f"{path}: the configuration cannot be read: {reason}; check the path and its permissions"
        ) from None
    if len(data) > _MAX_FILE_BYTES:
        raise ConfigError(_TOO_LARGE.format(path=path))
    return text


def _is_enabled(upstream: Node, variables: Variables) -> bool:
    """Return whether an upstream is enabled; if the switch is not a boolean, the reader will report it."""
    switch = upstream.members.get("enabled") if isinstance(upstream, YamlMapping) else None
    if switch is None:
        return True
    expanded = expand(switch, variables, Findings(""))
    return not isinstance(expanded, Scalar) or read_boolean(expanded) is not False


def _complete(config: Config, mappings: Mapping[str, YamlMapping], findings: Findings, lock_file: str | None) -> Config:
    """Apply the defaults that depend on other keys."""
    lock = config.lock if config.lock.file else replace(config.lock, file=lock_file)
    audience = (config.auth.resource,) if config.auth.resource else ()
    issuers = tuple(replace(one, audience=one.audience or audience) for one in config.auth.issuers)
    return replace(
        config,
        upstreams=tuple(_complete_upstream(one, mappings[one.name], config, findings) for one in config.upstreams),
        lock=lock,
        auth=replace(config.auth, issuers=issuers),
        warnings=findings.warnings,
        exposures=tuple(findings.exposures),
    )


def _complete_upstream(
    upstream: UpstreamPolicy, mapping: YamlMapping, config: Config, findings: Findings
) -> UpstreamPolicy:
    endpoint = upstream.endpoint
    if isinstance(endpoint, HttpEndpoint):
        transport, oauth = mapping.members.get("transport"), endpoint.oauth
        if oauth and not oauth.token_file:
            oauth = replace(oauth, token_file=str(find_token_file(upstream.name)))
        named = transport.text if isinstance(transport, Scalar) else None
        is_legacy = named == "sse" if named else is_sse_address(endpoint.url)
        endpoint = replace(endpoint, legacy_sse=is_legacy, oauth=oauth)
    return replace(
        upstream,
        endpoint=endpoint,
        timeout=_read_timeout(upstream.timeout, mapping.members.get("timeout"), findings),
        preview=upstream.preview if "preview" in mapping.members else config.mirror.preview,
        bounds=config.limits.bounds,
    )


def find_token_file(name: str) -> Path:
    """Return the file for the tokens of an upstream, unless its `oauth.token_file` names another."""
    return user_data_path("mcp-mirror") / "tokens" / f"{name}.json"


def _read_timeout(seconds: float, node: Node | None, findings: Findings) -> float:
    """Return a timeout in seconds. That of a client's block may be in milliseconds, unless its key names the unit."""
    if node is None or seconds <= _LONGEST_SECONDS:
        return seconds
    if node.location.path[0] not in CLIENT_BLOCKS or node.location.path[-1] != "timeout":
        return seconds
    findings.warn(node.location, f"over {_LONGEST_SECONDS}, so it is read as milliseconds; write seconds")
    return seconds / 1000


def _warn_of_exposure(path: Path, root: Node, findings: Findings) -> None:
    """Warn once if other users can read a configuration file that contains secrets in plain text."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
    except OSError:
        return
    if sys.platform == "win32" or not mode & (stat.S_IRGRP | stat.S_IROTH):
        return
    locations = list(_find_literal_secrets(root))
    if locations:
        more = f" and {len(locations) - 1} more" if len(locations) > 1 else ""
        findings.warn(
            locations[0],
            f"other users can read this file (mode {mode:04o}), which contains this secret{more}; run chmod 600 "
            f"{path}, or write ${{VAR}} and set the variable",
            is_exposure=True,
        )


def _find_literal_secrets(node: Node) -> Iterator[YamlLocation]:
    match node:
        case Scalar():
            if "${" not in node.text and _is_secret(node):
                yield node.location
        case Items():
            for item in node.nodes:
                yield from _find_literal_secrets(item)
        case YamlMapping():
            for member in node.members.values():
                yield from _find_literal_secrets(member)


def _is_secret(scalar: Scalar) -> bool:
    keys, text = scalar.location.path, scalar.text
    if len(text) < _SHORTEST or _PATH.fullmatch(text):
        return False
    section = RENAMED.get(keys[-2], keys[-2]) if len(keys) > 1 else ""
    if section in ("env", "headers"):
        return bool(SECRET_NAMES.search(keys[-1]))
    return bool(_SECRET.fullmatch(".".join(keys))) or (bool(keys) and keys[-1] == "url" and _has_password(text))


def _has_password(url: str) -> bool:
    try:
        return bool(urlsplit(url).password)
    except ValueError:
        return False


def read_given(upstreams: GivenUpstreams, store: GivenStore, environ: Mapping[str, str]) -> Config:
    """Return the configuration of a program, in memory without a kind of store; ConfigError if it is unusable."""
    config = _read_upstreams(upstreams, environ)
    chosen = _read_store(store, config.store, environ)
    return replace(config, store=replace(chosen, kind=chosen.kind or "memory"))


def _read_upstreams(given: object, environ: Mapping[str, str]) -> Config:
    if isinstance(given, str) and "://" in given:
        raise ConfigError(
            'The address of an upstream needs a name: Mirror(upstreams={"NAME": {"url": "https://..."}}).'
        )
    match given:
        case None:
            return Config()
        case Config():
            return given
        case Mapping():
            whole = given if _has_sections(given) else {"upstreams": given}
            return read_config(whole, "Mirror(upstreams)", environ)
        case str() | os.PathLike():
            return load_config(Path(given), environ)
    raise ConfigError(
        f"`upstreams` is of type {type(given).__name__}. Give the path of a configuration file, or a mapping of "
        'upstreams such as {"files": {"command": "npx"}}.'
    )


def _has_sections(given: Mapping[str, Any]) -> bool:
    """Whether a mapping is a whole configuration."""
    sections = {one.key for one in list_keys(Config)}
    return any(key in sections or key in CLIENT_BLOCKS for key in given)


def _has_upstreams(given: Mapping[str, Any]) -> bool:
    """Whether a mapping consists of upstreams."""
    return any(isinstance(one, Mapping) and ("command" in one or "url" in one) for one in given.values())


def _read_store(given: object, configured: StorePolicy, environ: Mapping[str, str]) -> StorePolicy:
    match given:
        case None:
            return configured
        case StorePolicy():
            return given
        case Mapping() if not (_has_sections(given) or _has_upstreams(given)):
            return read_config({"store": given}, "Mirror(store)", environ).store
    if isinstance(given, Mapping | os.PathLike) or str(given).endswith((".yaml", ".yml", ".json")):
        raise ConfigError("Mirror(store): this is a configuration. Give it as `upstreams`: Mirror(upstreams=...).")
    if given not in get_args(StoreKind):
        # Texts that are not names are not shown: an address may contain a password.
        shown = f"Mirror(store={given!r})" if isinstance(given, str) and given.isidentifier() else "Mirror(store)"
        got = "" if isinstance(given, str) else f", got {type(given).__name__}"
        *kinds, last = get_args(StoreKind)
        raise ConfigError(
            f"{shown}: expected {', '.join(kinds)} or {last}, or a mapping such as "
            f"{{'kind': 'disk', 'path': './store'}}{got}"
        )
    return replace(configured, kind=cast("StoreKind", given))
