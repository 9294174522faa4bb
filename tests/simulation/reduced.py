"""The names in a schedule's `without`: parts of its scenario that are left out, so that a reader has less to follow."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tests.simulation.schedule import Draws, Schedule
from tests.simulation.weather import Weather

if TYPE_CHECKING:
    from tests.simulation.scenario import Scenario

__all__ = ["CALM", "candidates", "changed"]

CALM: dict[str, Any] = {
    "net": (0.0, 0.0, 0.01, 0.002),
    "turn_s": 0.0,
    "disk_failures": 0,
    "start_failures": 0,
    "at_once": 64,
    "disk_s": 0.05,
    "copy_s": 0.05,
    "pace": 0.02,
    "drain_s": None,
}
"""The calmest value of what a scenario draws."""
LISTS = ("asks", "drains", "says", "raises", "slow")
"""Attributes with acts of users and workloads, each of which may be left out."""


def changed(scenario: Scenario, schedule: Schedule) -> None:
    """Change `scenario` as the schedule demands."""
    if schedule.weather:
        scenario.weather = Weather(scenario)
    quiet: list[range] = []
    left_out: dict[str, set[int]] = {}
    for name in schedule.without:
        what, _, which = name.partition(".")
        if what == "draws":
            first, _, last = which.partition("-")
            quiet.append(range(int(first), int(last)))
        elif what == "steps":
            scenario.steps = scenario.job.steps = int(which)
        elif what == "strike":
            scenario.nemesis.skipped.add(int(which))
        elif what in LISTS:
            left_out.setdefault(what, set()).add(int(which))
        elif what == "gust" and scenario.weather is not None:
            scenario.weather.skipped.add(int(which))
        elif what == "drift":
            scenario.rate, scenario.rates = 1.0, {}
        elif what == "net":
            scenario.net = type(scenario.net)(*CALM["net"])
        elif what in CALM:
            setattr(scenario, what, CALM[what])
        else:
            raise ValueError(f"no scenario has {name!r}; it may be without {', '.join((*CALM, *LISTS))}, strike, draws")
    for what, numbers in left_out.items():
        kept = [each for number, each in enumerate(_listed(scenario, what)) if number not in numbers]
        before = getattr(scenario, what)
        setattr(scenario, what, type(before)({at: before[at] for at in kept} if isinstance(before, dict) else kept))
    if schedule.streams or quiet:
        scenario.rng = Draws(schedule.seed, schedule.streams, quiet)
    if schedule.strikes:
        scenario.nemesis.rng = random.Random(schedule.seed * 104729 + schedule.strikes * 7919)


def candidates(scenario: Scenario, strikes: int) -> Iterator[str]:
    """Yield the names of parts that may be left out, the largest first. `strikes`: number of the nemesis' failures."""
    yield from (f"strike.{number}" for number in reversed(range(strikes)))
    if scenario.weather is not None:
        yield "drift"
        yield from (f"gust.{number}" for number in range(scenario.weather.gusts))
    for what in LISTS:
        yield from (f"{what}.{number}" for number in range(len(_listed(scenario, what))))
    for what, calm in CALM.items():
        if getattr(scenario, what) != calm:
            yield what


def _listed(scenario: Scenario, what: str) -> list[Any]:
    return sorted(found) if isinstance(found := getattr(scenario, what), set | dict) else list(found)
