"""A coroutine's first step: what never waits is done at once, what waits goes on as if it had been awaited."""

from __future__ import annotations

import asyncio

import pytest

from paritygate.serving.facades.steps import Started


async def add(first: int, *waits: asyncio.Future[int]) -> int:
    for future in waits:
        first += await future
    return first


async def test_what_never_waits_is_done_at_once() -> None:
    begun = Started(add(3))
    assert begun.done
    assert await begun == 3


async def test_what_waits_goes_on_where_it_stopped() -> None:
    loop = asyncio.get_running_loop()
    futures = [loop.create_future() for _ in range(3)]
    for delay, future in enumerate(futures):
        loop.call_later(0.001 * delay, future.set_result, 10**delay)
    begun = Started(add(1000, *futures))
    assert not begun.done
    assert await begun == 1111


async def test_an_error_of_the_first_step_is_raised_at_once() -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        Started(fail())


async def test_an_error_of_a_later_step_is_raised_where_it_is_awaited() -> None:
    future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
    begun = Started(add(1, future))
    future.set_exception(ValueError("later"))
    with pytest.raises(ValueError, match="later"):
        await begun


async def test_a_cancellation_reaches_the_coroutine_which_may_tidy_up_with_more_waiting() -> None:
    tidied = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            await asyncio.sleep(0.001)
            tidied.append(True)

    async def outer() -> None:
        await Started(work())

    task = asyncio.create_task(outer())
    await asyncio.sleep(0.001)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tidied == [True]


async def test_a_timeout_around_it_is_a_timeout_of_the_coroutine() -> None:
    begun = Started(asyncio.sleep(60))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await begun


async def test_what_is_never_awaited_is_closed() -> None:
    closed = []

    async def work() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            closed.append(True)

    begun = Started(work())
    del begun
    assert closed == [True]
