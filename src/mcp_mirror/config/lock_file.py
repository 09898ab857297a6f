"""Reads the lock file at each start and reload; `mcp-mirror lock` writes it."""

import os
from pathlib import Path

from mcp_mirror.errors import ConfigError
from mcp_mirror.security.pins import NO_PINS, Lock, Pins, read_lock, write_lock
from mcp_mirror.settings.policies import LockPolicy
from mcp_mirror.system.files import UnsafePathError, atomic_write, check_shared


def read_pins(policy: LockPolicy) -> Pins:
    """Return the definitions that tools must have; by default those of the lock file, if it exists.

    Raises:
        ConfigError: The lock file cannot be read, or does not exist although the mode is configured.
    """
    if policy.mode == "off" or (policy.mode is None and policy.file is None):
        return NO_PINS
    lock = read_file(Path(policy.file)) if policy.file else None
    if lock is not None:
        return Pins(lock, policy.mode or "block")
    if policy.mode is None:
        return NO_PINS
    raise ConfigError(
        f"The lock file {policy.file or '(`lock.file`)'} does not exist, and `lock.mode` is {policy.mode}. Write it "
        "with `mcp-mirror lock`."
    )


def read_file(path: Path) -> Lock | None:
    """Return the content of a lock file, None if it does not exist; ConfigError if it cannot be used."""
    try:
        check_shared(path)
        return read_lock(path.read_text("utf-8"))
    except UnsafePathError as error:
        raise ConfigError(f"The lock file cannot be used: {error}") from None
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        reason = (error.strerror or type(error).__name__) if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"The lock file {path} cannot be used: {reason}. Restore it, or remove it and run `mcp-mirror lock`."
        ) from None


def write_file(path: Path, lock: Lock) -> None:
    """Write a lock file, through a link if it is one; ConfigError if that fails, and the old file remains."""
    try:
        atomic_write(os.path.realpath(path), (write_lock(lock).encode(),), 0o644, keep_mode=True)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise ConfigError(
            f"The lock file {path} cannot be written: {reason}. Choose another file with `lock.file`."
        ) from None
