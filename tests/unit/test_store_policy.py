"""The share of a store that one principal may use, and the calls that it may make."""

from msgspec.structs import replace

from mcp_mirror.settings.access import AuthPolicy
from mcp_mirror.settings.limits import PrincipalLimits, TrafficPolicy, find_limits
from mcp_mirror.settings.policies import Config, WirePolicy
from mcp_mirror.settings.store import StorePolicy


def test_one_principal_of_several_gets_a_quarter_by_default() -> None:
    policy = StorePolicy(max_bytes=1001, max_values=2).shared()
    assert (policy.share_bytes, policy.share_values) == (251, 1)


def test_a_share_that_the_user_chose_stays() -> None:
    policy = StorePolicy(namespace_bytes=7, namespace_values=8)
    assert policy.shared() == policy
    assert (policy.share_bytes, policy.share_values) == (7, 8)


def test_a_single_user_may_use_the_whole_store() -> None:
    policy = StorePolicy(max_bytes=10, max_values=20)
    assert (policy.share_bytes, policy.share_values) == (10, 20)
    assert replace(policy, max_bytes=11).share_bytes == 11


def test_single_principals_have_other_shares() -> None:
    own = (PrincipalLimits("alice", namespace_bytes=5), PrincipalLimits("bob", namespace_values=6))
    policy = StorePolicy(namespace_bytes=1, namespace_values=2, principals=own)
    shares = {name: policy.for_namespace(f'["token", "{name}"]') for name in ("alice", "bob", "carol")}
    assert {name: (one.share_bytes, one.share_values) for name, one in shares.items()} == {
        "alice": (5, 2),
        "bob": (1, 6),
        "carol": (1, 2),
    }
    assert replace(policy, principals=()).for_namespace("alice") == replace(policy, principals=())


def test_single_principals_have_other_quotas() -> None:
    own = (PrincipalLimits("alice", calls_per_day=0), PrincipalLimits("bob", calls_per_month=7))
    traffic = TrafficPolicy(calls_per_day=1)
    quotas = [traffic.quota_for(find_limits(own, f'["token", "{name}"]')) for name in ("alice", "bob", "carol")]
    assert quotas == [(0, 0), (1, 7), (1, 0)]
    assert find_limits((), "alice") is None
    config = Config(limits=WirePolicy(traffic=traffic), auth=AuthPolicy(principals=own))
    assert config.call_quota_of('["token", "bob"]') == (1, 7)
    limits = WirePolicy(traffic=traffic)
    assert Config(limits=limits).has_call_quotas
    assert Config(auth=AuthPolicy(principals=own)).has_call_quotas
    assert not Config(auth=AuthPolicy(principals=own[:1])).has_call_quotas
