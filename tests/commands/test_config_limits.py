"""Limits: each key changes one setting, and the documentation has each key with its default."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from mcp_mirror.config.shape import list_keys
from mcp_mirror.errors import ConfigError
from mcp_mirror.settings.declarations import Section
from mcp_mirror.settings.limits import TrafficPolicy, UpstreamBounds
from mcp_mirror.settings.policies import Config, WirePolicy

DOCS = Path(__file__).parents[2] / "docs" / "reference" / "limits.md"
UNITS = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}
KEYS = {one.key: one.default for one in list_keys(WirePolicy)}
FIVE = "{calls_per_minute: 5}"

ISSUER = ", issuers: [{issuer: 'https://a.example.com', jwks: 'https://a.example.com/jwks', audience: x}]"


@pytest.mark.parametrize("key", KEYS)
def test_every_key_changes_one_setting(load: Callable[..., Config], key: str) -> None:
    before, after = (
        load("upstreams: {a: {command: x}}"),
        load(f"upstreams: {{a: {{command: x}}}}\nlimits: {{{key}: 7}}"),
    )
    changed = [
        (owner, name)
        for owner in (WirePolicy, TrafficPolicy, UpstreamBounds)
        for name in owner.__struct_fields__
        if name not in ("traffic", "bounds") and _of(owner, before, name) != _of(owner, after, name)
    ]
    assert {name for _, name in changed} == {key}
    assert all(_of(owner, after, name) == 7 for owner, name in changed)


def _of(owner: type[Section], config: Config, name: str) -> object:
    policy: dict[type[Section], Section] = {
        WirePolicy: config.limits,
        TrafficPolicy: config.limits.traffic,
        UpstreamBounds: config.upstreams[0].bounds,
    }
    return getattr(policy[owner], name)


def test_the_default_rate_is_stricter_with_authentication(
    load: Callable[..., Config],
) -> None:
    default, five, none = (load(f"limits: {one}").limits.traffic for one in ("{}", FIVE, "{calls_per_minute: none}"))
    assert [one.rate(has_auth=False) for one in (default, five, none)] == [0, 5, 0]
    assert [one.rate(has_auth=True) for one in (default, five, none)] == [6000, 5, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("max_depth: 701", "limits.max_depth: expected a number of levels from 1 to 700"),
        ("calls_per_principal: 0", "limits.calls_per_principal: expected a whole number above 0"),
        ("calls_per_minute: 1.5", "limits.calls_per_minute: expected a whole number above 0, or none"),
        ("queue_timeout: 0", "limits.queue_timeout: expected a duration above 0 in seconds, or with s, m, h or d"),
    ],
)
def test_a_wrong_limit_is_an_error(load: Callable[..., Config], text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(f"limits: {{{text}}}")


def test_the_documentation_has_each_key_with_its_default() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    assert sorted(key for key, _ in rows) == sorted(KEYS)
    for key, text in rows:
        default = KEYS[key]
        amount, _, unit = text.partition(" ")
        number = None if amount.startswith("none") else int(amount.replace(",", "")) * UNITS.get(unit, 1)
        assert number == default, key


def test_single_principals_have_limits_of_their_own(load: Callable[..., Config]) -> None:
    config = load(
        "limits: {calls_per_day: 5}\n"
        f"auth: {{tokens: {{alice: 'sha256:{'0' * 64}'}}, principals: "
        "{alice: {calls_per_day: none, namespace_bytes: 1KiB}, bob: {}}}"
    )
    alice, bob = config.auth.principals
    assert (alice.name, alice.calls_per_day, alice.namespace_bytes, alice.namespace_values) == ("alice", 0, 1024, None)
    assert (bob.name, bob.calls_per_day) == ("bob", None)
    assert config.has_call_quotas
    assert [one for one in config.warnings if "auth.principals.bob: these limits have no effect: no token" in one]


@pytest.mark.parametrize(("more", "is_known"), [("", False), (ISSUER, True)])
def test_limits_of_an_unknown_principal_are_a_warning(
    load: Callable[..., Config], more: str, *, is_known: bool
) -> None:
    config = load(
        f"auth: {{tokens: {{alice: 'sha256:{'0' * 64}'}}, principals: {{alise: {{calls_per_day: 1}}}}{more}}}"
    )
    found = [one for one in config.warnings if "auth.principals.alise" in one]
    assert [one.endswith("did you mean 'alice'?") for one in found] == ([] if is_known else [True])


@pytest.mark.parametrize(
    ("rest", "cause"),
    [
        ("events: {enabled: false}", "'events.enabled: false' does not have"),
        ("mirror: {suffix: '', capture: never}", "a gateway that stores no values does not have"),
    ],
)
def test_quotas_of_calls_need_the_event_log(load: Callable[..., Config], rest: str, cause: str) -> None:
    with pytest.raises(ConfigError, match=cause):
        load(f"upstreams: {{a: {{command: x}}}}\nlimits: {{calls_per_month: 5}}\n{rest}")
