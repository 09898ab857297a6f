"""Policies, errors and spans."""

import pytest
from rich.pretty import pretty_repr

from mcp_mirror import errors
from mcp_mirror.settings.policies import Config, MirrorPolicy
from mcp_mirror.settings.store import StorePolicy
from mcp_mirror.settings.upstreams import HttpEndpoint, LocalEndpoint, StdioEndpoint, ToolPolicy, UpstreamPolicy
from mcp_mirror.types import Kind, Span, media_type_of

ENDPOINT = StdioEndpoint("server", ("--token", "canary"), {"KEY": "canary"})


def test_a_span_stops_behind_its_last_byte() -> None:
    assert Span(3, 4).stop == 7


@pytest.mark.parametrize(
    ("allow", "deny", "tool", "admitted"),
    [
        (("*",), (), "anything", True),
        (("git_*",), (), "git_log", True),
        (("git_*",), (), "Git_log", False),
        (("git_*",), ("*_push",), "git_push", False),
        (("a", "b"), (), "b", True),
        ((), (), "a", False),
    ],
)
def test_a_tool_is_served_if_it_is_allowed_and_not_denied(
    allow: tuple[str, ...], deny: tuple[str, ...], tool: str, admitted: object
) -> None:
    assert UpstreamPolicy("u", ENDPOINT, allow=allow, deny=deny).admits(tool) is admitted


def test_overrides_are_joined_member_by_member_and_a_later_one_wins() -> None:
    policy = UpstreamPolicy(
        "u",
        ENDPOINT,
        overrides=(
            ("*", ToolPolicy(capture="always", timeout=5)),
            ("git_*", ToolPolicy(timeout=9, inline_budget=0)),
            ("Git_*", ToolPolicy(description="other")),
        ),
    )
    assert policy.tool_policy("git_log") == ToolPolicy(capture="always", timeout=9, inline_budget=0)
    assert policy.tool_policy("x") == ToolPolicy(capture="always", timeout=5)
    assert UpstreamPolicy("u", ENDPOINT).tool_policy("x") == ToolPolicy()


def test_the_repr_of_a_configuration_has_no_secrets() -> None:
    http = HttpEndpoint("https://user:canary@x.example/?key=canary", {"Authorization": "canary"})
    config = Config(upstreams=(UpstreamPolicy("a", ENDPOINT), UpstreamPolicy("b", http)))
    assert "canary" not in repr(config)
    assert "canary" not in pretty_repr(config)  # as rich prints it
    assert "server" in repr(config)


def test_every_error_is_of_the_one_tree() -> None:
    classes = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, Exception)]
    kinds = [kind for kind in classes if kind.__module__ == errors.__name__]
    assert len(kinds) >= 6
    assert all(issubclass(kind, errors.MirrorError) for kind in kinds)
    assert all(kind.__doc__ for kind in kinds)
    assert all(kind.__name__ in str(errors.__doc__) for kind in kinds)


BARE = MirrorPolicy(suffix="", capture="never")
TRANSPARENT = [
    (BARE, (), True),
    (MirrorPolicy(suffix="", capture="never", inline_budget=0, expose_originals=True), (), True),
    (MirrorPolicy(), (), False),
    (MirrorPolicy(suffix=""), (), False),
    (MirrorPolicy(capture="never"), (), False),
    (BARE, (("*", ToolPolicy(timeout=5)), ("x", ToolPolicy(capture="never"))), True),
    (BARE, (("x", ToolPolicy(capture="auto")),), False),
    (BARE, (("x", ToolPolicy(capture="always")), ("*", ToolPolicy(capture="never"))), False),
]


@pytest.mark.parametrize(("mirror", "overrides", "transparent"), TRANSPARENT)
def test_a_gateway_that_renames_and_stores_nothing_is_transparent(
    mirror: MirrorPolicy, overrides: tuple[tuple[str, ToolPolicy], ...], transparent: object
) -> None:
    upstreams = (UpstreamPolicy("plain", ENDPOINT), UpstreamPolicy("up", ENDPOINT, overrides=overrides))
    assert Config(upstreams, mirror).is_transparent is transparent


def test_the_first_error_of_a_group_is_reported() -> None:
    grouped = ExceptionGroup("outer", [ExceptionGroup("inner", [OSError("one"), OSError("two")]), ValueError()])
    assert str(errors.unwrap_error_group(grouped)) == "one"
    assert str(errors.unwrap_error_group(OSError("alone"))) == "alone"
    ours = ExceptionGroup("outer", [OSError("consequence"), ExceptionGroup("inner", [errors.MirrorError("cause")])])
    assert str(errors.unwrap_error_group(ours)) == "cause"


def test_only_servers_of_a_program_or_an_address_are_wrapped() -> None:
    assert UpstreamPolicy("up", StdioEndpoint("x", is_wrapped=True)).is_wrapped
    assert UpstreamPolicy("up", HttpEndpoint("http://127.0.0.1", is_wrapped=True)).is_wrapped
    assert not UpstreamPolicy("up", StdioEndpoint("x")).is_wrapped
    assert not UpstreamPolicy("up", LocalEndpoint()).is_wrapped


@pytest.mark.parametrize(
    ("kind", "declared", "media_type"),
    [
        ("text", None, "text/plain"),
        ("binary", None, "application/octet-stream"),
        ("binary", "image/png", "image/png"),
        ("object", None, "application/json"),
        ("null", None, "application/json"),
    ],
)
def test_a_value_has_its_declared_media_type_or_that_of_its_kind(
    kind: Kind, declared: str | None, media_type: str
) -> None:
    assert media_type_of(kind, declared) == media_type


@pytest.mark.parametrize(
    ("policy", "days"),
    [
        (StorePolicy(), 1),
        (StorePolicy(kind="memory"), 1),
        (StorePolicy(kind="redis"), 1),
        (StorePolicy(kind="disk"), 7),
        (StorePolicy(kind="disk", ttl=43_200), 0.5),
        (StorePolicy(ttl=0), 0),
    ],
)
def test_the_lifetime_of_values_depends_on_ttl_and_store_kind(policy: StorePolicy, days: float) -> None:
    assert policy.lifetime == days * 86_400


def test_a_tool_takes_its_upstreams_scopes_and_its_own() -> None:
    free = UpstreamPolicy("u", ENDPOINT)
    overrides = (("git_*", ToolPolicy(required_scopes=("git",))), ("*_push", ToolPolicy(required_scopes=("push",))))
    some = UpstreamPolicy("u", ENDPOINT, overrides=overrides)
    every = UpstreamPolicy("u", ENDPOINT, overrides=overrides, required_scopes=("all",))
    assert [policy.is_scoped for policy in (free, some, every)] == [False, True, True]
    assert [policy.scopes_of("x") for policy in (free, some, every)] == [set(), set(), {"all"}]
    assert some.scopes_of("git_log") == {"git"}
    assert some.scopes_of("git_push") == {"git", "push"}  # a later glob takes away none
    assert every.scopes_of("git_push") == {"all", "git", "push"}


def test_values_of_a_client_replace_the_configured_ones_of_the_same_name() -> None:
    program = StdioEndpoint("server", env={"KEY": "shared", "MODE": "all"}, client_env={"KEY": "X-Key"})
    address = HttpEndpoint("http://x", {"authorization": "shared", "X-Mode": "all"}, {"Authorization": "X-Key"})
    assert UpstreamPolicy("u", program).client_values == {"KEY": "X-Key"}
    assert UpstreamPolicy("u", address).client_values == {"Authorization": "X-Key"}
    assert UpstreamPolicy("u", LocalEndpoint()).client_values == {}
    assert program.with_client_values({"KEY": "own"}).env == {"KEY": "own", "MODE": "all"}
    own = address.with_client_values({"Authorization": "own"})
    assert own.headers == {"X-Mode": "all", "Authorization": "own"}
    assert "own" not in repr((own, program.with_client_values({"KEY": "own"})))
