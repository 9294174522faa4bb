"""Schedules of a world that a seed makes: played to their end, from the command line, and with faults put in."""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import pytest
from tests.simulation.storage.world import Violation

__all__ = ["Mutation", "Result", "find", "main", "play", "quiet", "replayable"]


class Result(NamedTuple):
    """How a schedule went; `broken` is the invariant that did not hold, and why, or ""."""

    seed: int
    broken: str
    trace: tuple[str, ...]


class RunSeed(Protocol):
    """Plays one schedule."""

    def __call__(self, seed: int, *, traced: bool = False) -> Result: ...


class Mutation(NamedTuple):
    """A fault: what it is, the invariants that may catch it, and how it is put in.

    The search for a schedule that shows it begins with `first`: 0, or one that is known to, where many do not.
    """

    name: str
    invariants: tuple[str, ...]
    apply: Callable[[], Any]
    first: int = 0


def play(seed: int, world: Any, turns: int) -> Result:
    """Play `turns` steps with faults in `world`, then let it settle."""
    broken = ""
    with world:
        try:
            for turn in range(turns):
                world.step(faults=True)
                if turn % 10 == 0:
                    world.look()
            world.settle()
        except Violation as violation:
            broken = str(violation)
        except Exception:
            broken = f"an error: {traceback.format_exc()}"
        return Result(seed, broken, tuple(world.trace or ()))


def main(run_seed: RunSeed, arguments: list[str]) -> int:
    """``SEED`` plays one schedule again, with its trace; ``FIRST-LAST`` plays many."""
    logging.disable(logging.CRITICAL)
    first, dash, last = arguments[0].partition("-")
    if not dash:
        result = run_seed(int(first), traced=True)
        print("\n".join(result.trace))
        print(result.broken or "all invariants hold")
        return 1 if result.broken else 0
    began, failed = time.monotonic(), 0
    for seed in range(int(first), int(last)):
        if broken := run_seed(seed).broken:
            failed += 1
            print(f"{seed}: {broken.strip().splitlines()[-1][:300]}", flush=True)
    print(f"{int(last) - int(first)} schedules, {failed} broken, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Hide the log of failures, which these tests want."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def replayable(module: str, found: Iterable[Result]) -> list[str]:
    """The schedules in which an invariant did not hold, each with the command that plays it again."""
    return [f"python -m {module} {each.seed}  # {each.broken}" for each in found if each.broken]


def find(mutation: Mutation, run_seed: RunSeed, enough: int) -> None:
    """Fail unless one of the mutation's invariants catches it in `enough` schedules."""
    found: Counter[str] = Counter()
    with mutation.apply():
        for seed in range(mutation.first, mutation.first + enough):
            broken = run_seed(seed).broken
            found[broken.partition(":")[0]] += 1
            if broken.startswith(mutation.invariants):
                return
    pytest.fail(f"{mutation.invariants} hold in {enough} schedules: {dict(found)}")
