"""Every file becomes a configuration, or raises one ConfigError."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from samples import at_most

from mcp_mirror.config.loading import load_config
from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.policies import Config


def check_loading(path: Path, text: str) -> None:
    """Load a text, or check that each line of the error starts with the file."""
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    try:
        assert isinstance(load_config(path, {"A": "1"}), Config)
    except ConfigError as error:
        lines = str(error).splitlines()
        assert lines
        assert all(line.startswith(f"{path}:") for line in lines)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("config") / "mirror.yaml"


PIECES = (
    *"[]{}:,-?!&*#|>'\"%@`~= \n\t\\$<",
    *("\n  ", ": ", "- ", "<<: ", "&a ", "*a", "!!int ", "${A}", "${", "\\x", "\ufeff", "\x85"),
    *("upstreams", "mcpServers", "command", "url", "timeout", "env", "a", "1", "null"),
)
YAML_LIKE = st.lists(st.sampled_from(PIECES), max_size=60).map("".join)


@at_most(400)
@given(text=st.text() | YAML_LIKE)
def test_any_text_gives_a_configuration_or_its_problems(scratch: Path, text: str) -> None:
    check_loading(scratch, text)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["${A}", "${NONE}", "60", "x", "http://x", "always", "8GiB", "24h"])
)
KEYS = st.text(max_size=6) | st.sampled_from(
    [
        "upstreams",
        "mcpServers",
        "servers",
        "mirror",
        "store",
        "server",
        "command",
        "args",
        "env",
        "cwd",
        "url",
        "headers",
        "transport",
        "type",
        "timeout",
        "tools",
        "startup_timeout",
        "enabled",
        "disabled",
        "allow",
        "deny",
        "overrides",
        "suffix",
        "capture",
        "inline_budget",
        "max_bytes",
        "ttl",
        "kind",
        "name",
        "path",
        "httpUrl",
        "includeTools",
        "excludeTools",
        "autoApprove",
    ]
)
JSON = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=25
)


def mappings_of(keys: list[str]) -> st.SearchStrategy[dict[str, Any]]:
    return st.dictionaries(st.sampled_from(keys) | KEYS, JSON, max_size=6)


UPSTREAM = mappings_of(["command", "url", "args", "env", "headers", "timeout", "enabled", "tools", "overrides", "type"])
FILES = st.dictionaries(
    st.sampled_from(["upstreams", "mcpServers", "servers"]), st.dictionaries(KEYS, UPSTREAM, max_size=3), max_size=3
)


ANY_MAPPING = given(data=mappings_of(["upstreams", "mcpServers"]) | FILES, as_json=st.booleans())


@at_most(100)
@ANY_MAPPING
def test_any_mapping_gives_a_configuration_or_its_problems(scratch: Path, data: Any, *, as_json: bool) -> None:
    check_loading(scratch, json.dumps(data) if as_json else yaml.safe_dump(data, allow_unicode=True))


@pytest.mark.slow
@at_most(400)
@ANY_MAPPING
def test_many_mappings_give_a_configuration_or_its_problems(scratch: Path, data: Any, *, as_json: bool) -> None:
    check_loading(scratch, json.dumps(data) if as_json else yaml.safe_dump(data, allow_unicode=True))
