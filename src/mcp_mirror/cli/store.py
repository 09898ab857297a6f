"""The store that the commands `stats`, `usage`, `values` and `dashboard` read, whether or not a gateway runs."""

import os
from collections.abc import Callable, Coroutine
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from mcp_mirror.cli.run import load, print_note, run_until_signal
from mcp_mirror.config import list_configs
from mcp_mirror.errors import MirrorError
from mcp_mirror.observability.logging import configure_logging
from mcp_mirror.settings.policies import Config
from mcp_mirror.stores.base import Store
from mcp_mirror.stores.disk.store import OWN_NAMES
from mcp_mirror.stores.opening import open_persistent_store


def load_store_config(path: Path | None, store: Path | None, verbosity: int = 0) -> Config:
    """Return the configuration of a command that reads stored values; a folder `store` replaces it."""
    if store is None and (path is not None or list_configs(os.environ)):
        return load(path, verbosity, is_quiet=True)
    configure_logging(verbosity)
    if store is None:
        print_note("mcp-mirror: no configuration was found; using the values of wrapped servers.")
        return Config()
    folder = store.absolute()
    _check_folder(folder)
    return Config(store=replace(Config().store, kind="disk", path=str(folder)))


def _check_folder(folder: Path) -> None:
    """Refuse a folder that does not exist, or has other files: opening a store there would create the store's files."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        raise MirrorError(f"{folder} does not exist. Name the folder of a store, as its gateway does.") from None
    except NotADirectoryError:  # the store reports the file
        return
    except OSError as error:
        raise MirrorError(f"{folder} cannot be read: {error.strerror}. Name the folder of a store.") from None
    if names and not any(fnmatchcase(name, glob) for name in names for glob in OWN_NAMES):
        raise MirrorError(f"{folder} has other files and no stored values. Name the folder of a store.")


def read_store(config: Config, work: Callable[[Store], Coroutine[Any, Any, None]]) -> None:
    """Open the store of a configuration for the work of a command, and run the command."""

    async def run() -> None:
        async with open_persistent_store(config) as store:
            await work(store)

    run_until_signal(run())
