"""The price of input that a provider has cached."""

from mcp_mirror.settings.policies import PricePolicy


def test_cached_input_costs_a_tenth_unless_configured() -> None:
    assert PricePolicy("a", 3.0).cached == 0.3
    assert PricePolicy("a", 3.0, 0.75).cached == 0.75
