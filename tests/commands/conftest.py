"""Fixtures of the configuration tests."""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from mcp_mirror.config.loading import load_config
from mcp_mirror.settings.policies import Config

NO_VARIABLES: Mapping[str, str] = {}

Load = Callable[..., Config]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    def load(text: str | bytes, environ: Mapping[str, str] = NO_VARIABLES, name: str = "mirror.yaml") -> Config:
        path = tmp_path / name
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_config(path, environ)

    return load
