"""Many timers on one timer of the event loop."""

import asyncio

from mcp_mirror.system.shared_timer import SharedTimer

BOUND = 10.0


async def test_functions_are_called_once_in_the_order_in_which_they_are_due() -> None:
    timer, called, over = SharedTimer(0.01), list[str](), asyncio.Event()
    timer.start("a", lambda: called.append("a"))
    timer.start("b", lambda: called.append("b"))
    timer.start("a", lambda: called.append("again"))
    timer.start("c", over.set)
    await asyncio.wait_for(over.wait(), BOUND)
    assert called == ["b", "again"]


async def test_a_cancelled_function_is_not_called() -> None:
    timer, called, over = SharedTimer(0.01), list[str](), asyncio.Event()
    timer.start("a", lambda: called.append("a"))
    timer.start("b", lambda: called.append("b"))
    timer.cancel("a")
    timer.cancel("unknown")
    timer.start("c", over.set)
    await asyncio.wait_for(over.wait(), BOUND)
    assert called == ["b"]


async def test_a_function_can_start_its_timer_again() -> None:
    timer, called, over = SharedTimer(0.01), list[float](), asyncio.Event()
    loop = asyncio.get_running_loop()

    def repeat() -> None:
        called.append(loop.time())
        if len(called) < 3:
            timer.start("a", repeat)
        else:
            over.set()

    began = loop.time()
    timer.start("a", repeat)
    await asyncio.wait_for(over.wait(), BOUND)
    assert all(later - earlier >= 0.01 for earlier, later in zip([began, *called], called, strict=False))


async def test_functions_after_one_that_fails_are_called() -> None:
    timer, over, errors = SharedTimer(0.01), asyncio.Event(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context["exception"]))
    error = ValueError("no")

    def fail() -> None:
        raise error

    timer.start("a", fail)
    timer.start("b", over.set)
    await asyncio.wait_for(over.wait(), BOUND)
    assert errors == [error]
