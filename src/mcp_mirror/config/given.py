"""Reads the configuration of a program that uses the library: a file name, a mapping, or settings."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_mirror.config.clients import CLIENT_BLOCKS
from mcp_mirror.config.loading import load_config, read_config
from mcp_mirror.config.shape import list_keys
from mcp_mirror.settings.policies import Config
from mcp_mirror.settings.store import StorePolicy

GivenUpstreams = str | os.PathLike[str] | Mapping[str, Any] | Config | None
"""A configuration file, its content, only its upstreams, or settings; None: no upstreams."""

GivenStore = str | Mapping[str, Any] | StorePolicy | None
"""A kind of store, the content of `store`, or settings; None: the store of the configuration."""


def read_given(upstreams: GivenUpstreams, store: GivenStore, environ: Mapping[str, str]) -> Config:
    """Return the configuration of a program. Without a kind of store, values are stored in memory.

    Raises:
        ConfigError: The configuration cannot be used.
    """
    config = _read_upstreams(upstreams, environ)
    chosen = _read_store(store, config.store, environ)
    return replace(config, store=replace(chosen, kind=chosen.kind or "memory"))


def _read_upstreams(given: GivenUpstreams, environ: Mapping[str, str]) -> Config:
    match given:
        case None:
            return Config()
        case Config():
            return given
        case Mapping():
            sections = {one.key for one in list_keys(Config)}
            whole = any(key in sections or key in CLIENT_BLOCKS for key in given)
            return read_config(given if whole else {"upstreams": given}, "Mirror(upstreams)", environ)
    return load_config(Path(given), environ)


def _read_store(given: GivenStore, configured: StorePolicy, environ: Mapping[str, str]) -> StorePolicy:
    match given:
        case None:
            return configured
        case StorePolicy():
            return given
        case Mapping():
            return read_config({"store": given}, "Mirror(store)", environ).store
    kind = read_config({"store": {"kind": given}}, "Mirror(store)", environ).store.kind
    return replace(configured, kind=kind)
