"""New contents of clients' files: complete before the first write, and written only if the file did not change."""

from collections.abc import Iterator
from contextlib import suppress
from difflib import unified_diff
from itertools import count
from pathlib import Path

import msgspec

from mcp_mirror.cli.install.files import has_file, read_bytes, write_file
from mcp_mirror.cli.install.targets import Target
from mcp_mirror.errors import ConfigError


class GatewayFile(msgspec.Struct, frozen=True):
    """The configuration of the gateway to which `--merge` moves servers."""

    path: Path
    text: str
    """What `install` writes."""
    warnings: tuple[str, ...] = ()
    """A sentence for each setting of the servers that has no effect in the gateway."""


class Plan(msgspec.Struct, frozen=True):
    """A new content of a client's file."""

    target: Target
    before: bytes
    """The file as it was read."""
    after: bytes
    restored: bytes
    """The file without mcp-mirror: the backup."""
    changed: tuple[str, ...]
    """The servers that the plan wraps, unwraps or moves."""
    left: tuple[str, ...] = ()
    """A line for each other server, with the reason why it stays as it is."""
    config: GatewayFile | None = None
    """None: the servers are wrapped in their place."""
    adds_memory: bool = False
    """Whether the plan adds the memory tools."""

    @property
    def is_change(self) -> bool:
        """Whether the plan changes the client's file."""
        return self.after != self.before

    def diff(self) -> Iterator[str]:
        """Yield the lines of the changes of both files."""
        if self.config and self.before == self.restored:
            yield from _diff(self.config.path, b"", self.config.text.encode())
        yield from _diff(self.target.file, self.before, self.after)


def _diff(path: Path, *versions: bytes) -> Iterator[str]:
    before, after = (data.decode("utf-8-sig").splitlines() for data in versions)
    return unified_diff(before, after, str(path), str(path), lineterm="")


def apply_installation(plan: Plan) -> Path | None:
    """Write the configuration of a gateway and the backup, then the client's file; ConfigError if that changed.

    Returns where an older backup is now, which the file does not come from; None without one.
    """
    _check_unchanged(plan)
    backup, old = plan.target.backup, None
    if plan.before == plan.restored and has_file(backup) and read_bytes(backup) != plan.restored:
        names = (f"{backup.name}.old{number or ''}" for number in count())
        old = next(path for path in map(backup.with_name, names) if not has_file(path))
        write_file(old, read_bytes(backup))
    if plan.config:
        write_file(plan.config.path, plan.config.text.encode())
    write_file(backup, plan.restored)
    write_file(plan.target.file, plan.after)
    return old


def apply_removal(plan: Plan) -> bool:
    """Write the file, then remove the backup and the configuration of the gateway; ConfigError if the file changed.

    Returns whether the configuration stays, because it was edited after the installation.
    """
    _check_unchanged(plan)
    write_file(plan.target.file, plan.after)
    config = plan.config
    is_edited = config is not None and has_file(config.path) and read_bytes(config.path) != config.text.encode()
    with suppress(OSError):
        plan.target.backup.unlink()
        if config and not is_edited:
            config.path.unlink()
    return is_edited


def _check_unchanged(plan: Plan) -> None:
    if read_bytes(plan.target.file) != plan.before:
        raise ConfigError(
            f"{plan.target.file} changed at the same time. Close {plan.target.client.title}, then try again."
        )
