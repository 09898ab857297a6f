"""How often a search finds the tool among 626 tools of 27 real servers, and what a list of tools to search costs."""

import re
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import yaml
from tests.search.collect import HERE, read_definitions

from mcp_mirror.core.catalog import Catalog, CatalogRules, build_catalog
from mcp_mirror.gateway.tool_search import SEARCH_TOOLS, choose_listing, searchable_tools
from mcp_mirror.memory.tools.table import own_tools
from mcp_mirror.settings.policies import MemoryToolsPolicy, MirrorPolicy
from mcp_mirror.settings.upstreams import StdioEndpoint, UpstreamPolicy
from mcp_mirror.system.slices import finish
from mcp_mirror.tokens import expected_estimator


def read(name: str) -> Any:
    """Read a YAML file with the parser in C: the one in Python takes a second for these."""
    return yaml.load((HERE / name).read_text(), yaml.CSafeLoader)


SEARCHES: Final[list[list[str]]] = read("queries.yaml")
MORE: Final[list[list[str]]] = read("more_queries.yaml")
DRAWN: Final[list[list[str]]] = read("drawn_queries.yaml")
DRAWN_HELD_OUT: Final[list[list[str]]] = read("held_out_queries.yaml")
OF_MODEL: Final[dict[str, list[str]]] = read("model_queries.yaml")
TUNED, HELD_OUT = [*SEARCHES[::2], *MORE, *DRAWN], SEARCHES[1::2]
PAGE: Final = Path(__file__).parents[2] / "docs" / "evaluation" / "tool-search.md"


@pytest.fixture(scope="module")
def catalog() -> Catalog:
    listings = [(UpstreamPolicy(one["name"], StdioEndpoint("x")), one["tools"]) for one in read_definitions()]
    return finish(build_catalog(listings, CatalogRules(MirrorPolicy())))


def find_misses(catalog: Catalog, searches: list[list[str]], first: int) -> list[str]:
    """Return the searches without a right tool among the first matches."""
    index = finish(catalog.build_index(searchable_tools(own_tools(MemoryToolsPolicy(), 60))))
    misses = []
    for query, *right in searches:
        found = (catalog.entries[name] for name in index.search(query, first) if name in catalog.entries)
        if not {f"{entry.upstream}/{entry.tool}" for entry in found} & set(right):
            misses.append(query)
    return misses


def test_every_right_tool_exists(catalog: Catalog) -> None:
    known = {f"{entry.upstream}/{entry.tool}" for entry in catalog.entries.values()}
    assert len(known) >= 400
    assert len(SEARCHES) == 100
    assert len(DRAWN_HELD_OUT) == 100
    assert {name for _, *right in (*SEARCHES, *MORE, *DRAWN, *DRAWN_HELD_OUT) for name in right} <= known


@pytest.mark.parametrize(
    ("searches", "first", "most"),
    [(TUNED, 5, 37), (HELD_OUT, 5, 6), (HELD_OUT, 10, 4), (DRAWN_HELD_OUT, 5, 20), (DRAWN_HELD_OUT, 10, 10)],
)
def test_a_search_finds_the_tool(catalog: Catalog, searches: list[list[str]], first: int, most: int) -> None:
    misses = find_misses(catalog, searches, first)
    assert len(misses) <= most, misses


@pytest.mark.parametrize("wordings", [3, 1])
@pytest.mark.parametrize(("searches", "most"), [(TUNED, (1, 9)), (HELD_OUT, (0, 2)), (DRAWN_HELD_OUT, (0, 2))])
def test_a_search_that_a_model_words_finds_the_tool(
    catalog: Catalog, searches: list[list[str]], most: tuple[int, int], wordings: int
) -> None:
    which = 0 if wordings == 3 else 1
    worded = [[OF_MODEL[step][which], *right] for step, *right in searches]
    misses = find_misses(catalog, worded, 5)
    assert len(misses) <= most[which], misses


def test_the_documentation_names_the_misses(catalog: Catalog) -> None:
    page = PAGE.read_text()
    assert set(re.findall(r'^- "(.+)"', page, re.MULTILINE)) == set(find_misses(catalog, HELD_OUT, 5))


def test_the_tools_to_search_500_tools_cost_few_tokens(catalog: Catalog) -> None:
    listing = finish(choose_listing(MirrorPolicy(listing="search"), catalog, SEARCH_TOOLS))
    assert expected_estimator("default")(msgspec.json.encode(listing.adverts)) <= 200
