"""The files of the listing cache, which several gateways write and remove at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import anyio

from mcp_mirror.security.redaction import Redactor
from mcp_mirror.settings.upstreams import HttpEndpoint, UpstreamPolicy
from mcp_mirror.upstreams.listing import Listing, ListingCache

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

LISTING = Listing((), None, "2025-11-25", "server")


async def test_listings_that_others_remove_are_no_failure(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = tmp_path / "listings"
    folder.mkdir(mode=0o700)
    for number in range(220):  # more than are kept
        file = folder / f"{number:040x}.json"
        file.touch(0o600)

    async def save_many(gateway: int) -> None:
        cache = ListingCache(folder)
        for number in range(40):
            endpoint = HttpEndpoint(url=f"https://{gateway}.example.com/{number}")
            await cache.save(UpstreamPolicy("one", endpoint), Redactor(endpoint), {}, LISTING)

    async with anyio.create_task_group() as gateways:
        for gateway in range(6):
            gateways.start_soon(save_many, gateway)
    assert not caplog.messages
    assert 200 <= len(list(folder.glob("*.json"))) <= 206
