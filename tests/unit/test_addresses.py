"""What the address of an upstream says about its transport."""

import pytest

from mcp_mirror.settings.upstreams import is_sse_address


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://127.0.0.1:8000/sse", True),
        ("https://example.com/team/sse/?key=1", True),
        ("https://example.com/mcp", False),
        ("https://example.com/mcp?next=/sse", False),
        ("https://sse", False),
    ],
)
def test_an_address_that_ends_with_sse_has_that_transport(url: str, expected: bool) -> None:  # noqa: FBT001
    assert is_sse_address(url) is expected
