"""The smallest schedule that breaks the same invariant: fewer failures, a calmer world, fewer steps, fewer events."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

from tests.simulation.reduced import candidates
from tests.simulation.run import run, scenario_of
from tests.simulation.schedule import Schedule
from tests.simulation.world import World

__all__ = ["shrunk"]

STREAMS = 4
"""Number of other streams that each smaller schedule is tried with, after its own draws."""
FINEST = 64
"""Maximum number of parts into which the draws are cut, to make each of them quiet."""


class _Broken(NamedTuple):
    schedule: Schedule
    events: int
    strikes: int
    faults: int
    draws: int


def shrunk(schedule: Schedule, seconds: float = 60.0, told: Callable[[str], None] = lambda line: None) -> Schedule:
    """Return the smallest schedule found within `seconds` of processor time that breaks what `schedule` breaks."""
    until = time.process_time() + seconds
    world, broken = run(scenario_of(schedule))
    invariant = broken.partition(":")[0]
    if not invariant:
        return schedule

    def attempt(tried: Schedule) -> _Broken | None:
        world, broken = run(scenario_of(tried))
        return _found(tried, world) if broken.partition(":")[0] == invariant else None

    best = _found(schedule, world)
    better = True
    while better and time.process_time() < until:
        better = False
        for smaller in _smaller(best):
            if time.process_time() > until:
                break
            found = next(filter(None, map(attempt, _streamed(smaller))), None)
            if found is not None and _size(found) < _size(best):
                told(f"{found.events} events: {found.schedule}")
                best, better = found, True
    parts = 2
    while parts <= FINEST and time.process_time() < until:
        size = -(-best.draws // parts)
        for first in range(0, best.draws, size):
            quiet = best.schedule._replace(without=(*best.schedule.without, f"draws.{first}-{first + size}"))
            if time.process_time() < until and (found := attempt(quiet)) is not None and found.events <= best.events:
                best = found
        parts *= 4
    return best.schedule


def _size(found: _Broken) -> tuple[int, int]:
    """The effort of a reader: the number of faults counts before that of events."""
    return found.faults, found.events


def _found(schedule: Schedule, world: World) -> _Broken:
    return _Broken(schedule, world.events, world.scenario.nemesis.strikes, _faults(world), world.draws)


def _faults(world: World) -> int:
    scenario = world.scenario
    gusts = scenario.weather.gusts - len(scenario.weather.skipped) if scenario.weather else 0
    return len(scenario.nemesis.done) + gusts + (scenario.net.drop > 0)


def _smaller(best: _Broken) -> Iterator[Schedule]:
    """Yield what may be smaller: without a failure, a fault of the weather, an act of somebody; with fewer steps."""
    schedule = best.schedule
    if schedule.weather:
        left = tuple(name for name in schedule.without if not name.startswith(("gust", "drift")))
        yield schedule._replace(weather=False, without=left)
    scenario = scenario_of(schedule)
    names = [name for name in candidates(scenario, best.strikes) if name not in schedule.without]
    names += [f"steps.{steps}" for steps in (2, scenario.steps // 2, scenario.steps - 1) if 1 < steps < scenario.steps]
    yield from (schedule._replace(without=(*schedule.without, name)) for name in names)


def _streamed(schedule: Schedule) -> Iterator[Schedule]:
    yield schedule
    yield from (schedule._replace(streams=((0, number),)) for number in range(1, STREAMS + 1))
