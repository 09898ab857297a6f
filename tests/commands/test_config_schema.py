"""The JSON Schema and the loader accept the same values of every key."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema_rs
import pytest

from mcp_mirror.config import config_json_schema
from mcp_mirror.config.clients import CLIENT_BLOCKS, gather_upstreams
from mcp_mirror.config.reader import Reader
from mcp_mirror.config.source import Findings, YamlMapping, expand, read_yaml
from mcp_mirror.config.variables import Variables
from mcp_mirror.errors import ConfigError

SCHEMA = config_json_schema()
VALIDATOR = jsonschema_rs.validator_for(SCHEMA)

WRONG: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 1.5, 70_000, "", " ", "x", "a b", "a\nb", "\u00e9", "x" * 40, "none", "off"),
    *(
        "0 MB",
        "1KB",
        "8gib",
        "1.5h",
        "2 D",
        "5 parsecs",
        "20 %",
        "100 %",
        "https://a.example.com",
        "ftp://a",
        "http://",
    ),
    *("HTTPS://a/b", "a:*", "/mcp", "a -> b", "sha256:" + "a" * 64, [], ["x"], ["x", "y"], ["a b"], [""], [None], [[]]),
    *({}, {"x": "y"}, {"x": None}, {"x": {}}, {"": "y"}, {"a b": "c"}, {"a=b": "c"}, {"a": "b\nc"}),
)
"""Values that fit some keys and not others."""


class Place(NamedTuple):
    """A place in a file that has a schema of its own."""

    path: tuple[str, ...]
    schema: dict[str, Any]

    def __str__(self) -> str:
        return ".".join(self.path)


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    return SCHEMA["$defs"][schema["$ref"].rpartition("/")[2]] if "$ref" in schema else schema


def section_of(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a section that may have a shorthand."""
    options = [resolved(one) for one in schema.get("anyOf", ())]
    return next((one for one in options if "properties" in one), resolved(schema))


def places(schema: dict[str, Any], path: tuple[str, ...] = ()) -> Iterator[Place]:
    """Every key below a place, each section, named entry and list item once."""
    section = section_of(schema)
    inner = {key: one for key, one in section.get("properties", {}).items() if path or not is_extra(key)}
    if isinstance(section.get("additionalProperties"), dict):
        inner["NAME"] = section["additionalProperties"]
    if "items" in section:
        inner["0"] = section["items"]
    for key, one in inner.items():
        yield Place((*path, key), one)
        yield from places(one, (*path, key))


def is_extra(key: str) -> bool:
    """Whether a key on the top level is only for clients and editors."""
    return key in (*CLIENT_BLOCKS, "inputs", "$schema")


def file_with(path: tuple[str, ...], value: Any, schema: dict[str, Any] = SCHEMA) -> Any:
    """The smallest file that has a value in a place."""
    if not path:
        return value
    key, *rest = path
    section = section_of(schema)
    if key == "0":
        return [file_with(tuple(rest), value, section["items"])]
    inner = section.get("properties", {}).get(key, section.get("additionalProperties"))
    required = [name for name in section.get("required", ()) if name != key]
    alternatives = [name for one in section.get("oneOf", ()) for name in one["required"]]
    others = {name: fitting(section["properties"][name]) for name in (*required, *alternatives[:1])}
    return {**({} if key in alternatives else others), key: file_with(tuple(rest), value, inner or {})}


def fitting(schema: dict[str, Any]) -> Any:
    """A value that a key accepts: its example, or a section with the required keys."""
    if "examples" in schema:
        return schema["examples"][0]
    section = section_of(schema)
    return {name: fitting(section["properties"][name]) for name in section.get("required", ())}


def is_read(file: Any) -> bool:
    """Whether the loader accepts a file, apart from the rules between several keys."""
    findings = Findings("mirror.yaml")
    root = read_yaml(json.dumps(file).replace("false", "off"), findings)  # false, and in YAML 1.2 the text "off"
    assert isinstance(root, YamlMapping)
    variables = {"HOME": "/home/ann"} | dict.fromkeys(("STORE_KEY", "STATE_KEY", "AUDIT_KEY"), "k" * 32)
    variables |= dict.fromkeys(("GITHUB_TOKEN", "CLIENT_SECRET", "REDIS_PASSWORD"), "secret")
    sections, upstreams = gather_upstreams(root, findings)
    tree = expand(YamlMapping(root.location, {**sections, "upstreams": upstreams}), Variables(variables), findings)
    assert isinstance(tree, YamlMapping)
    config = Reader(findings, Path("/etc")).read_config(tree)
    try:
        findings.raise_problems()
    except ConfigError:
        return False
    return config is not None


PLACES = tuple(places(SCHEMA))


def test_the_walk_reaches_every_kind_of_key() -> None:
    names = {str(one) for one in PLACES}
    assert len(names) > 190
    assert {"mirror.suffix", "upstreams.NAME.tools.allow.0", "auth.tokens.NAME.scopes", "flows.model.accepts"} <= names


@pytest.mark.parametrize("place", PLACES, ids=str)
def test_the_schema_and_the_loader_agree_on_a_key(place: Place) -> None:
    section = section_of(place.schema)
    good = [*place.schema.get("examples", ()), *([place.schema["default"]] if "default" in place.schema else ())]
    for value in (*good, *WRONG):
        file = file_with(place.path, value)
        assert VALIDATOR.is_valid(file) is is_read(file), value
    for value in good:
        assert is_read(file_with(place.path, value)), value
    if "properties" in section:
        file = file_with((*place.path, "zzz"), 1)
        assert not VALIDATOR.is_valid(file)
        assert not is_read(file)
