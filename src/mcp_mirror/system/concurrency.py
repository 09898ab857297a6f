"""Requests that are made at the same time, because each of them waits for another machine."""

from collections.abc import Awaitable, Callable, Sequence
from typing import Final, TypeVar

import anyio

_AT_ONCE: Final = 16
"""Requests of one caller at the same time."""

T = TypeVar("T")


async def run_concurrently(requests: Sequence[Callable[[], Awaitable[T]]]) -> list[T]:
    """Return the results of requests in their order. A few of the requests are made at the same time.

    If requests fail, raise the error of the first of them, once those that were made at the same time have ended.
    """
    results: dict[int, T] = {}
    errors: dict[int, Exception] = {}

    async def run(place: int) -> None:
        try:
            results[place] = await requests[place]()
        except Exception as error:  # noqa: BLE001  # a task group would wrap it
            errors[place] = error

    for start in range(0, len(requests), _AT_ONCE):
        async with anyio.create_task_group() as tasks:
            for place in range(start, min(start + _AT_ONCE, len(requests))):
                tasks.start_soon(run, place)
        if errors:
            raise errors.pop(min(errors))
    return [results[place] for place in range(len(requests))]
