"""Semaphores without files do what those of the system do, and `multiprocessing` works with them."""

from __future__ import annotations

import _multiprocessing  # type: ignore[import-not-found]
import asyncio
import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
from tests.waiting import HANG_S

from rolemesh_processes.confinement import _landlock
from rolemesh_processes.judging import Judges
from rolemesh_processes.semaphores import Semaphore

RECURSIVE, COUNTING = 0, 1
SYSTEM = _multiprocessing.SemLock
STORIES = {
    "lock": (COUNTING, 1, 1, "a A r r a"),
    "counting": (COUNTING, 2, 4, "a a A r r r r r a"),
    "recursive": (RECURSIVE, 1, 1, "a a A r r r r a"),
    "empty": (COUNTING, 0, 3, "A t T r t"),
}


def told(kind: type[Any], story: str) -> list[Any]:
    """Return the answers of a semaphore. a, A: acquire, or only at once; t, T: in 10 ms, or in no time; r: release."""
    which, value, most, steps = STORIES[story]
    made, found = kind(which, value, most, f"/rolemesh-{os.getpid()}", True), list[Any]()
    for step in steps.split():
        try:
            match step:
                case "r":
                    found.append(made.release())
                case "t" | "T":
                    found.append(made.acquire(True, 0.01 if step == "t" else -1.0))
                case _:
                    found.append(made.acquire(False) if step == "A" or made._is_zero() else made.acquire())
        except (AssertionError, ValueError) as error:
            found.append((type(error), str(error)))
        found.append((made._count(), made._is_mine(), made._get_value(), made._is_zero()))
    return [made.kind, made.maxvalue, made.name, *found]


@pytest.mark.parametrize("story", STORIES)
def test_a_semaphore_answers_as_that_of_the_system(story: str) -> None:
    assert told(Semaphore, story) == told(SYSTEM, story)


def test_a_semaphore_of_another_thread_is_waited_for_and_not_owned() -> None:
    made, heard = Semaphore(RECURSIVE, 1, 1, "", True), list[Any]()
    made.acquire()

    def other() -> None:
        heard.append((made._is_mine(), made.acquire(False)))
        heard.append(made.acquire(True, HANG_S))
        made.release()

    thread = threading.Thread(target=other)
    thread.start()
    while not heard:
        time.sleep(0.001)
    made.release()
    thread.join()
    assert heard == [(False, False), True]


def test_a_semaphore_for_spawned_processes_says_what_to_do() -> None:
    with pytest.raises(PermissionError, match="use the start method fork"):
        Semaphore(COUNTING, 1, 1, "/x", False)


def double(number: int) -> int:
    return 2 * number


def add(value: Any, queue: Any) -> None:
    with value.get_lock():
        value.value += 1
    queue.put("added")


def pooled() -> Any:
    with multiprocessing.Pool(2) as pool:
        return pool.map(double, range(5))


def executed() -> Any:
    with ProcessPoolExecutor(2) as executor:
        return [*executor.map(double, range(5))]


def queued() -> Any:
    """The way in which graders of mathematics limit the time of a comparison."""
    value, queue = multiprocessing.Value("i", 0), multiprocessing.Queue()
    children = [multiprocessing.Process(target=add, args=(value, queue)) for _ in range(3)]
    for child in children:
        child.start()
    found = [queue.get() for _ in children]
    for child in children:
        child.join()
    return [found, value.value]


def signalled() -> Any:
    event, barrier = multiprocessing.Event(), multiprocessing.Barrier(1)
    child = multiprocessing.Process(target=event.set)
    child.start()
    found = [event.wait(HANG_S), barrier.wait()]
    child.join()
    return found


@pytest.mark.parametrize("work", [pooled, executed, queued, signalled])
def test_a_judgement_may_use_processes_as_anywhere_else(work: Callable[[], Any]) -> None:
    judges = Judges(lambda: work(), sealed=False)
    try:
        assert judges.judge([()]) == [work()]
    finally:
        judges.close()


def awaited() -> Any:
    """The way in which functions that are not async call coroutines."""
    loop = asyncio.get_event_loop_policy().get_event_loop()
    return loop.run_until_complete(asyncio.sleep(0, 1))


def gathered() -> Any:
    async def both() -> Any:
        return await asyncio.gather(asyncio.sleep(0, 1), asyncio.to_thread(double, 2))

    return asyncio.run(both())


def silenced() -> Any:
    with open(os.devnull, "w", encoding="utf-8") as nothing:
        return print("said", file=nothing)


@pytest.mark.parametrize("sealed", [True, False])
@pytest.mark.parametrize("work", [awaited, gathered, silenced])
def test_a_judgement_has_an_event_loop_and_a_place_for_what_nobody_reads(work: Callable[[], Any], sealed: bool) -> None:
    if sealed and work is silenced and _landlock() < 3:
        pytest.skip("Landlock cannot tell /dev/null from files that are truncated")
    asyncio.run(asyncio.sleep(0))  # a loop that has ended in the rank
    judges = Judges(lambda: work(), sealed=sealed)
    try:
        assert judges.judge([()]) == [{awaited: 1, gathered: [1, 4], silenced: None}[work]]
    finally:
        judges.close()
