"""Functions that judge a model's text, in a process of their own. The tests need no verifiers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.waiting import until

from rolemesh_agents import AgentError
from rolemesh_processes.facts import children
from rolemesh_verifiers.apart import JudgedApartError, apart


def saying(work: Callable[[], Any]) -> Callable[[], Awaitable[Any]]:
    async def said() -> Any:
        await asyncio.sleep(0)
        return work()

    return said


def test_a_judgement_runs_in_another_process_and_returns_its_value() -> None:
    assert asyncio.run(apart(saying(lambda: {"a": 0.5}))) == {"a": 0.5}
    assert asyncio.run(apart(saying(os.getpid))) != os.getpid()


@pytest.mark.parametrize(
    ("work", "error", "reason"),
    [
        (lambda: os._exit(3), AgentError, "a reward function has ended its process with the exit status 3"),
        (lambda: os.kill(os.getpid(), 11), AgentError, "its process with the signal SIGSEGV"),
        (lambda: exit(2), JudgedApartError, "SystemExit: 2"),
        (lambda: [][1], JudgedApartError, "IndexError: list index out of range"),
        (lambda: object(), AgentError, "a reward function has returned"),
    ],
)
def test_a_judgement_that_ends_or_fails_is_an_error(work: Callable[[], Any], error: Any, reason: str) -> None:
    with pytest.raises(error, match=reason):
        asyncio.run(apart(saying(work)))


@pytest.mark.parametrize("closed", [False, True])
def test_a_judgement_that_hangs_delays_nobody_and_ends_with_its_limit(closed: bool) -> None:
    def hangs() -> None:
        if closed:  # also the socket to the rank
            os.closerange(3, 1000)
        while True:
            pass

    async def both() -> float:
        hanging = asyncio.create_task(asyncio.wait_for(apart(saying(hangs)), 0.5))
        found = await apart(saying(lambda: 1.0))
        with pytest.raises(TimeoutError):
            await hanging
        return float(found)

    others = set(children(os.getpid()))  # of tests before
    assert asyncio.run(both()) == 1.0
    until(lambda: not set(children(os.getpid())) - others)
