"""Errors of stores as their callers see them."""

import time
from collections.abc import Awaitable, Collection

import pytest

from mcp_mirror.errors import StoreError


async def time_store_error(use: Awaitable[object], secrets: Collection[str]) -> tuple[str, float]:
    """Return the message of the error that a use of a store raises, and the seconds until it came.

    The message has at most two sentences and none of the secrets.
    """
    started = time.monotonic()
    with pytest.raises(StoreError) as caught:
        await use
    message = str(caught.value)
    assert message.count(". ") <= 1
    assert not any(secret in message for secret in secrets)
    return message, time.monotonic() - started
