"""The search: what it changes, what leads it, and what it tells."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest
from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import run, run_seed, scenario_of
from tests.simulation.scenario import FAMILIES
from tests.simulation.schedule import Draws, Schedule
from tests.simulation.search.corpus import Corpus
from tests.simulation.search.player import Played
from tests.simulation.search.shrink import shrunk
from tests.simulation.search.story import story


def test_a_schedule_is_a_text_that_plays_it_again() -> None:
    schedule = Schedule(3, "resize calm", True, ((5, 1), (9, 2)), 3, ("net", "strike.1"))
    assert Schedule.parsed([str(schedule)]) == schedule
    assert run_seed(schedule, traced=True) == run_seed(Schedule.parsed(str(schedule).split()), traced=True)


def test_draws_are_those_of_the_seed_up_to_another_stream() -> None:
    plain, same, other = random.Random(5), Draws(5), Draws(5, ((20, 1),))
    first = [plain.random() for _ in range(20)]
    assert first == [same.random() for _ in range(20)] == [other.random() for _ in range(20)]
    assert [plain.choice("abcdef") for _ in range(20)] == [same.choice("abcdef") for _ in range(20)]
    assert other.random() != Draws(5).random()
    assert {Draws(5, quiet=[range(30)]).random() for _ in range(20)} == {0.5}


def test_without_weather_a_schedule_is_what_its_seed_alone_makes_it() -> None:
    assert run_seed(Schedule(11), traced=True) == run_seed(11, traced=True)
    assert run_seed(Schedule(11, weather=True), traced=True).trace != run_seed(11, traced=True).trace


@pytest.mark.parametrize("family", FAMILIES)
def test_every_invariant_holds_while_disk_and_clocks_fail(family: str) -> None:
    schedules = [Schedule(seed, family, weather=True) for seed in range(3)]
    assert not [f"{schedule}: {broken}" for schedule in schedules if (broken := run_seed(schedule).broken)]


@pytest.mark.parametrize("schedule", ["70000126 last weather", "71000158 calls resize weather"])
def test_schedules_that_broke_hold(schedule: str) -> None:
    """The last checkpoint is torn after the end; clocks of two speeds give a ban two ages."""
    assert not run_seed(Schedule.parsed([schedule])).broken


def test_a_schedule_that_breaks_becomes_small_and_a_story() -> None:
    mutation = next(each for each in MUTATIONS if each.name == "a moved rank counts on both nodes")
    with mutation.apply():
        schedule = Schedule(94, mutation.family)
        world, _ = run(scenario_of(schedule))
        small = shrunk(schedule, seconds=10.0)
        less, broken = run(scenario_of(small))
        told = story(small)
    assert broken.startswith(mutation.invariant)
    assert less.events < world.events
    assert len(less.scenario.nemesis.done) < len(world.scenario.nemesis.done)
    assert told.startswith(f"Broken: {mutation.invariant}")
    assert f"python -m tests.simulation {small}" in told


def played(family: str, *new: int, broken: str = "") -> Played:
    return Played(Schedule(1, family), broken, frozenset(("m", each, 1) for each in new), 10, 0.1)


def test_a_search_prefers_families_that_find(tmp_path: Path) -> None:
    corpus = Corpus(("dull", "rich"), tmp_path, 0, random.Random(0))
    for _ in range(20):
        corpus.next()
    for number in range(50):
        corpus.add(played("dull"))
        corpus.add(played("rich", number))
    chosen = [corpus.next().family for _ in range(200)]
    assert chosen.count("rich") > 150
    again = Corpus(("dull", "rich"), tmp_path, 0, random.Random(0))
    assert [again.next().family for _ in range(50)] == ["rich"] * 50


def test_a_search_tells_each_broken_invariant_once(tmp_path: Path) -> None:
    corpus = Corpus(("all",), tmp_path, 0, random.Random(0))
    assert corpus.add(played("all", broken="no call is lost: trainer/0"))
    assert not corpus.add(played("all", broken="no call is lost: trainer/1"))
    assert (tmp_path / "broken.txt").read_text() == "1 all  # no call is lost: trainer/0\n"


COUNTED = """
from tests.simulation.search import blocks
blocks.install()
from rolemesh_durable.protocol.master.own_time import OwnTime
time = OwnTime()
time.turn(1.0)
print(sorted(line for module, line, _ in blocks.features() if module.endswith("own_time")))
blocks.reset()
time.turn(2.0)
print(sorted(line for module, line, _ in blocks.features() if module.endswith("own_time")))
"""


def test_both_outcomes_of_a_branch_are_blocks() -> None:
    done = subprocess.run([sys.executable, "-c", COUNTED], capture_output=True, text=True, check=True)
    first, second = done.stdout.splitlines()
    assert first != second
    assert len(second.split(",")) == 2
