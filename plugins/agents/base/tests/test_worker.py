"""The thread of an episode: a slow function delays nobody, and a late one keeps the others out."""

from __future__ import annotations

import asyncio
import os
import threading

import pytest
from tests.waiting import HANG_S

from rolemesh_agents.episodes.answers import cut
from rolemesh_agents.episodes.standing import waiting_for
from rolemesh_agents.episodes.worker import LateError, Worker


def test_functions_run_in_one_thread_and_coroutines_in_the_loop() -> None:
    async def several() -> None:
        worker = Worker()

        async def here() -> int:
            return threading.get_ident()

        threads = {await worker.run(5, threading.get_ident) for _ in range(3)}
        assert len(threads) == 1
        assert threads != {threading.get_ident()}
        assert await worker.run(5, here) == threading.get_ident()
        assert await worker.run(5, lambda: here()) == threading.get_ident()
        worker.close()

    asyncio.run(several())


def test_a_late_function_keeps_the_others_out_until_it_returns() -> None:
    async def late() -> None:
        worker, released = Worker(), threading.Event()
        with pytest.raises(LateError, match=r"Event.wait has not returned within 0.05 s; it is in "):
            await worker.run(0.05, released.wait)
        assert worker.busy
        with pytest.raises(LateError):
            await worker.run(0.05, os.getpid)
        released.set()
        assert await worker.run(5, os.getpid) == os.getpid()
        assert not worker.busy
        worker.close()

    asyncio.run(late())


def test_a_late_function_that_waits_for_another_thread_is_where_that_one_is() -> None:
    there_runs, waits_for_it, released = threading.Event(), threading.Event(), threading.Event()

    def waits() -> None:
        def there() -> None:
            there_runs.set()
            released.wait()

        other = threading.Thread(target=there)
        other.start()
        with waiting_for(other.ident or 0):
            waits_for_it.set()
            other.join()

    async def late() -> None:
        worker = Worker()
        running = asyncio.ensure_future(worker.run(0.05, waits))
        await asyncio.sleep(0)
        assert there_runs.wait(HANG_S)  # while the loop is blocked, no limit passes
        assert waits_for_it.wait(HANG_S)
        with pytest.raises(LateError, match=r"waits has not returned .* it is in .*waits.<locals>.there \(.*:\d+\)"):
            await running
        released.set()
        worker.close()

    asyncio.run(late())


def test_a_late_coroutine_is_cancelled() -> None:
    async def late() -> None:
        worker, cancelled = Worker(), []

        async def sleeps() -> None:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled.append(True)
                raise

        with pytest.raises(LateError, match=r"sleeps has not returned within 0.05 s"):
            await worker.run(0.05, sleeps)
        assert cancelled
        assert not worker.busy

    asyncio.run(late())


@pytest.mark.parametrize("error", [KeyError("x"), SystemExit(3), KeyboardInterrupt()])
def test_an_error_of_a_function_is_an_error_of_the_call_only(error: BaseException) -> None:
    async def fails() -> None:
        worker = Worker()

        def function() -> None:
            raise error

        with pytest.raises((KeyError, RuntimeError)):
            await worker.run(5, function)
        assert await worker.run(5, os.getpid) == os.getpid()
        worker.close()

    asyncio.run(fails())


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("short", "short"),
        ("x" * 10, "x" * 10),
        ("x" * 11, "x" * 10 + "\n[1 more bytes are left out]"),
        ("é" * 6, "é" * 5 + "\n[2 more bytes are left out]"),
        ("\ud800", "?"),
    ],
)
def test_a_long_text_is_cut_between_characters(text: str, expected: str) -> None:
    assert cut(text, 10) == expected
