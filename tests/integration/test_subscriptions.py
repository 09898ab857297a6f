"""Updates are matched to subscribed resources."""

import pytest

from mcp_mirror.gateway.subscriptions import _covers, _list_places


@pytest.mark.parametrize(
    ("watched", "updated", "covered"),
    [
        ("file:///a", "file:///a", True),
        ("file:///a", "file:///a/b", True),
        ("file:///a/", "file:///a/b", True),
        ("file:///a", "file:///a/b/c.txt", True),
        ("file:///a", "file:///ab", False),
        ("file:///a/b", "file:///a", False),
        ("file:///a", "file:///A", False),
        ("file:///a", "", False),
        ("file:///", "file:///a", True),
        ("file:///a/", "file:///a", False),
        ("note:one", "note:one/two", True),
        ("note:one", "note:onetwo", False),
        ("a:b?c", "a:b?c/d", True),
        ("a//", "a/b", True),
        ("a:///", "a:///b//c", True),
    ],
)
def test_an_update_is_of_the_watched_resource_or_of_one_below_it(watched: str, updated: str, *, covered: bool) -> None:
    assert _covers(watched, updated) is covered
    assert covered <= (watched.rstrip("/") in _list_places(updated))
