"""The bounds: each key reaches its policy, and the documentation has each with its default."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_mirror.config.shape import keys_of
from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.limits import TrafficPolicy, UpstreamBounds
from mcp_mirror.settings.policies import Config, WirePolicy

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
KEYS = {one.key: one.default for one in keys_of(WirePolicy)}
FIVE = "{calls_per_minute: 5}"


@pytest.mark.parametrize("key", KEYS)
def test_every_key_changes_one_thing(load: Callable[..., Config], key: str) -> None:
    before, after = (
        load("upstreams: {a: {command: x}}"),
        load(f"upstreams: {{a: {{command: x}}}}\nlimits: {{{key}: 7}}"),
    )
    told = [
        (owner, name)
        for owner in (WirePolicy, TrafficPolicy, UpstreamBounds)
        for name in owner.__dataclass_fields__
        if name not in ("traffic", "bounds") and _of(owner, before, name) != _of(owner, after, name)
    ]
    assert {name for _, name in told} == {key}
    assert all(_of(owner, after, name) == 7 for owner, name in told)


def _of(owner: type, config: Config, name: str) -> object:
    policy = {
        WirePolicy: config.limits,
        TrafficPolicy: config.limits.traffic,
        UpstreamBounds: config.upstreams[0].bounds,
    }
    return getattr(policy[owner], name)


def test_a_rate_is_the_stricter_one_where_people_show_tokens_unless_the_file_says_none(
    load: Callable[..., Config],
) -> None:
    unsaid, said, none = (load(f"limits: {one}").limits.traffic for one in ("{}", FIVE, "{calls_per_minute: none}"))
    assert [one.rate(shows_tokens=False) for one in (unsaid, said, none)] == [0, 5, 0]
    assert [one.rate(shows_tokens=True) for one in (unsaid, said, none)] == [6000, 5, 0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("max_depth: 701", "limits.max_depth: wanted a number of levels from 1 to 700"),
        ("calls_per_principal: 0", "limits.calls_per_principal: wanted a whole number above 0"),
        ("calls_per_minute: 1.5", "limits.calls_per_minute: wanted a whole number above 0, or none"),
        ("queue_timeout: 0", "limits.queue_timeout: wanted a number of seconds above 0"),
    ],
)
def test_a_bound_that_is_none_is_told(load: Callable[..., Config], text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        load(f"limits: {{{text}}}")


def test_the_documentation_has_each_key_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(key for key, _ in rows) == sorted(KEYS)
    for key, said in rows:
        default = KEYS[key]
        amount, _, unit = said.partition(" ")
        number = None if amount.startswith("none") else int(amount.replace(",", "")) * UNITS.get(unit, 1)
        assert number == default, key
