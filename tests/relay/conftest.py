"""The combinations of clients and upstreams; each starts once for all tests."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from contexts import kept
from relay_setup import CHOSEN, SAMPLE, Combination, RelaySetup, open_setup

EVERYTHING = ("elicitation", "sampling", "roots")
LIMITS = {"max_input_requests_per_call": 8}


def marks_of(combination: Combination) -> list[pytest.MarkDecorator]:
    """The mark of its group, and `slow` outside of the sample."""
    group = pytest.mark.xdist_group(f"relay-{combination}")
    return [group] if combination in SAMPLE else [group, pytest.mark.slow]


@pytest.fixture(
    scope="session",
    params=[pytest.param(each, id=str(each), marks=marks_of(each)) for each in CHOSEN],
)
def combination(request: pytest.FixtureRequest) -> Combination:
    """One combination of protocol versions and transports."""
    assert isinstance(request.param, Combination)
    return request.param


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def whole(combination: Combination, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RelaySetup]:
    """A client with all capabilities."""
    async with kept(open_setup(combination, tmp_path_factory.mktemp("whole"), EVERYTHING, LIMITS)) as setup:
        yield setup


@pytest.fixture
def setup(whole: RelaySetup) -> RelaySetup:
    """The same, with the user's answers reset."""
    whole.user.requests.clear()
    whole.user.refusal = ""
    whole.user.is_away = False
    return whole


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def reserved(combination: Combination, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[RelaySetup]:
    """A client with elicitation only, and a gateway with a short answer timeout."""
    opening = open_setup(combination, tmp_path_factory.mktemp("reserved"), ("elicitation",), answer_timeout=0.5)
    async with kept(opening) as setup:
        yield setup
