"""Expressions of modules are compiled when they are used, so that the gateway starts faster."""

import importlib
import pkgutil
import re
from collections.abc import Iterator
from contextlib import suppress

import pytest

import mcp_mirror
from mcp_mirror.system.patterns import lazy_pattern


def test_a_lazy_pattern_matches_as_a_compiled_one() -> None:
    lazy, compiled = lazy_pattern(r"(?P<name>a+)b", re.IGNORECASE), re.compile(r"(?P<name>a+)b", re.IGNORECASE)

    assert lazy.pattern == compiled.pattern
    assert lazy.groupindex == compiled.groupindex
    assert lazy.findall("xAABaab") == compiled.findall("xAABaab")
    assert lazy.sub("-", "xAABaab") == compiled.sub("-", "xAABaab")


def test_a_wrong_pattern_fails_at_its_first_use() -> None:
    wrong = lazy_pattern("(")

    with pytest.raises(re.error):
        wrong.search("")


def _find_patterns(thing: object) -> Iterator[re.Pattern[str]]:
    """Find the lazy patterns in the members of a module, also in tuples."""
    if isinstance(thing, tuple):
        for part in thing:
            yield from _find_patterns(part)
    elif type(thing) is type(lazy_pattern("a")):
        yield thing


def test_all_patterns_of_the_product_can_be_compiled() -> None:
    patterns: list[re.Pattern[str]] = []
    for module in pkgutil.walk_packages(mcp_mirror.__path__, "mcp_mirror."):
        if not module.name.endswith("__main__"):
            with suppress(ImportError):  # an extra or a system that is not here
                patterns += _find_patterns(tuple(vars(importlib.import_module(module.name)).values()))

    assert len([pattern.groups for pattern in patterns]) > 200
