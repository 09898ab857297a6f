"""The share of a store that one principal may use."""

from dataclasses import replace

from mcp_mirror.settings.policies import StorePolicy


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
