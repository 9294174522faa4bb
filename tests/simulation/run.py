"""Runs schedules: one, or many in several processes."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Iterable, Iterator
from functools import partial
from typing import NamedTuple
from unittest.mock import patch

from tests.simulation.backend import Backend
from tests.simulation.master import Journal
from tests.simulation.reduced import changed
from tests.simulation.scenario import Scenario
from tests.simulation.schedule import Schedule
from tests.simulation.world import Violation, World

from rolemesh_durable.protocol.master import progress
from rolemesh_durable.protocol.metrics import line_cuts

__all__ = ["Result", "play", "run", "run_many", "run_seed", "scenario_of"]

MAX_EVENTS = 200_000
LINES_PER_S = 1.0
"""The most lines per second of a simulated job. Its steps take longer than those of a real job with such lines."""


class Result(NamedTuple):
    """A schedule's outcome: `broken` is the invariant that did not hold, or ""."""

    seed: int
    family: str
    broken: str
    events: int
    seconds: float
    recoveries: int
    faults: int
    levels: tuple[str, ...] = ()
    trace: tuple[str, ...] = ()


def play(scenario: Scenario) -> World:
    """Run a schedule to its end. Raises `Violation`."""
    with patch.object(line_cuts, "PER_S", LINES_PER_S), patch.object(progress, "STEPWISE", 0):
        return _play(scenario)


def _play(scenario: Scenario) -> World:
    world = World(scenario)
    world.journal = Journal(world)
    world.backend = Backend(world)
    try:
        world.backend.start_master()
        scenario.nemesis.begin(world)
        if scenario.weather is not None:
            scenario.weather.begin(world)
        scenario.begin(world)
        limit = scenario.deadline
        while not world.ended:
            if not world.turn() or world.now > limit + scenario.nemesis.last or world.events > MAX_EVENTS:
                world.checks.stuck()
                world.fail("no deadlock", f"the job has not ended after {world.now:.1f} s and {world.events} events")
        world.checks.ended()
    except Violation as violation:
        violation.world = world
        raise
    except Exception as error:
        broken = Violation(f"no exception: {traceback.format_exc()}")
        broken.world = world
        raise broken from error
    return world


def scenario_of(schedule: Schedule, *, traced: bool = False) -> Scenario:
    """Return the scenario of a schedule. Raises ValueError if it has not what the schedule takes away."""
    scenario = Scenario(schedule.seed, family=schedule.family, traced=traced)
    changed(scenario, schedule)
    return scenario


def run(scenario: Scenario) -> tuple[World, str]:
    """Play a scenario; return its world with the invariant that did not hold, or ""."""
    try:
        return play(scenario), ""
    except Violation as violation:
        return violation.world, str(violation)


def run_seed(seed: int | Schedule, *, family: str = "", traced: bool = False) -> Result:
    """Run the schedule of `seed`."""
    schedule = seed if isinstance(seed, Schedule) else Schedule(seed, family)
    scenario = scenario_of(schedule, traced=traced)
    world, broken = run(scenario)
    checks, faults = world.checks, len(scenario.nemesis.done)
    return Result(
        schedule.seed, scenario.family, broken, world.events, world.now, checks.recoveries, faults,
        tuple(checks.levels), tuple(world.trace or ()),
    )  # fmt: skip


def run_many(seeds: Iterable[int], *, family: str = "", processes: int = 2) -> Iterator[Result]:
    """Run the schedules of `seeds` in several processes; results come in the order of the seeds.

    They are spawned: a fork of a test run would inherit locks that its other threads hold, such as those of Ray.
    """
    with multiprocessing.get_context("spawn").Pool(processes) as pool:
        yield from pool.imap(partial(run_seed, family=family), seeds, chunksize=50)
