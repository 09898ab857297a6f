"""Contexts of fixtures that several tests share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

_BOUND: Final = 60.0
"""Seconds that entering or leaving may take."""


@asynccontextmanager
async def kept(context: AbstractAsyncContextManager[Any]) -> AsyncIterator[Any]:
    """Enter and leave a context in one task, as the SDK requires it; fixtures may begin and end in different tasks."""
    entered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    leaving = asyncio.Event()

    async def keep() -> None:
        try:
            async with context as value:
                entered.set_result(value)
                await leaving.wait()
        except BaseException as error:
            if entered.done():
                raise
            entered.set_exception(error)

    task = asyncio.create_task(keep())
    try:
        yield await asyncio.wait_for(asyncio.shield(entered), _BOUND)
    finally:
        leaving.set()
        await asyncio.wait_for(task, _BOUND)
