"""A configuration that a program gives: a file's name, a mapping, or policies."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from mcp_mirror.config.clients import CLIENT_BLOCKS
from mcp_mirror.config.loading import load_config, read_config
from mcp_mirror.config.shape import keys_of
from mcp_mirror.settings.policies import Config, StorePolicy

GivenUpstreams = str | os.PathLike[str] | Mapping[str, Any] | Config | None
"""A configuration's file, or what it would hold, or its upstreams alone; None: no upstreams."""

GivenStore = str | Mapping[str, Any] | StorePolicy | None
"""A kind of store, or what a configuration has under `store`; None: what the configuration says."""


def read_given(upstreams: GivenUpstreams, store: GivenStore, environ: Mapping[str, str]) -> Config:
    """The configuration of a program; values are kept in memory, unless it says where.

    Raises:
        ConfigError: It cannot be used.
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
            sections = {one.key for one in keys_of(Config)}
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
