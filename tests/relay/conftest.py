"""The combinations of clients and upstreams, each started once for all tests."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from desk import CHOSEN, Combination, Desk, kept, open_desk

EVERYTHING = ("elicitation", "sampling", "roots")
LIMITS = {"max_questions_per_call": 8}


@pytest.fixture(
    scope="session",
    params=[pytest.param(each, id=str(each), marks=pytest.mark.xdist_group(f"relay-{each}")) for each in CHOSEN],
)
def combination(request: pytest.FixtureRequest) -> Combination:
    """Which client is before which upstream."""
    assert isinstance(request.param, Combination)
    return request.param


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def whole(combination: Combination, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """A client that takes whatever an upstream may ask."""
    async with kept(open_desk(combination, tmp_path_factory.mktemp("whole"), EVERYTHING, LIMITS)) as desk:
        yield desk


@pytest.fixture
def desk(whole: Desk) -> Desk:
    """The same, its person as new."""
    whole.person.asked.clear()
    whole.person.refusal = ""
    whole.person.is_away = False
    return whole


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reserved(combination: Combination, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Desk]:
    """A client that takes forms alone, before a gateway that does not wait for answers for long."""
    opening = open_desk(combination, tmp_path_factory.mktemp("reserved"), ("elicitation",), answer_timeout=0.5)
    async with kept(opening) as desk:
        yield desk
