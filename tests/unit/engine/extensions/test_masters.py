"""The contract of the master's extensions: the core runs without any of them, and with one of a stranger."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from unittest.mock import patch

import msgspec
import pytest
from tests.configs import in_master
from tests.simulation import scenario
from tests.simulation.run import run_seed
from tests.unit.engine.extensions.master_shell import running, told
from tests.unit.engine.protocol.master import test_machine

from rolemesh.api.observer import Event
from rolemesh_durable.api.extensions import ExtensionRecord, MasterExtension, MasterParts, Slice
from rolemesh_durable.extensions import Extension
from rolemesh_durable.extensions.shipped import SHIPPED, Hangs, imported
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.hooks import Handler
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.replay import follow
from rolemesh_durable.protocol.master.state import AgentRecord, JobState

FAMILIES = ("process", "nodes", "master", "shared", "calls")
"""Families of schedules that need no extension."""

CORE_TESTS = [
    test
    for name, test in vars(test_machine).items()
    if name.startswith("test_") and not inspect.signature(test).parameters
]
OF_HANGS = test_machine.test_a_master_that_has_stood_still_takes_nobody_for_dead_late_or_hung
"""A test of the core's clock that lets a rank hang."""


PARTS: dict[type[Extension], type[MasterExtension]] = dict(
    zip((each for each in SHIPPED if each.master), imported("master"), strict=True)
)
"""The classes of the shipped extensions' parts in a master, in order."""


def without(removed: type[Extension]) -> tuple[type[Extension], ...]:
    """The list without this extension, and without those that call it."""
    left: list[type[Extension]] = []
    for each in SHIPPED:
        needs = PARTS[each].needs if each in PARTS else ()
        if each is not removed and set(needs) <= {PARTS[other] for other in left if other in PARTS}:
            left.append(each)
    return tuple(left)


@pytest.fixture(params=PARTS, ids=lambda each: PARTS[each].__name__)
def rest(request: pytest.FixtureRequest) -> Iterator[tuple[type[Extension], ...]]:
    """All extensions but one."""
    left = without(request.param)
    assert request.param not in left
    with patch.object(scenario, "SHIPPED", left), patch.object(test_machine, "SHIPPED", left):
        yield left


def test_an_extension_comes_after_those_that_it_calls() -> None:
    parts = [*PARTS.values()]
    for index, each in enumerate(parts):
        assert set(each.needs) <= set(parts[:index])


@pytest.mark.parametrize("test", CORE_TESTS, ids=lambda test: test.__name__)
def test_the_core_passes_its_own_tests_without_an_extension(
    rest: tuple[type[Extension], ...], test: Callable[[], None]
) -> None:
    if Hangs in rest or test is not OF_HANGS:
        test()


@pytest.mark.parametrize("family", FAMILIES)
def test_schedules_hold_without_an_extension(rest: object, family: str) -> None:
    assert [broken for seed in range(4) if (broken := run_seed(seed, family=family).broken)] == []


def test_the_core_alone_runs_a_job_to_its_end() -> None:
    machine = running(extensions=())
    effects = told(machine, 1.0, m.RankReport("work", 0, 0, "done", 100, finished=9))
    assert "rank_done" in [effect.kind for effect in effects if isinstance(effect, e.JournalEntry)]
    assert machine.state.slices == {}


class Seen(Slice):
    """The reports that a stranger's extension has counted."""

    key = "stranger"

    reports: int = 0


class Counted(ExtensionRecord, frozen=True, tag="counted"):
    """An agent has reported."""

    agent: str

    def apply(self, state: JobState) -> None:
        """Count the report."""
        state.slice(Seen).reports += 1


class Ping(e.ExtensionEvent, frozen=True):
    """Somebody wants an agent to stop."""


class Stranger(MasterExtension):
    """Uses each hook that changes what the core does."""

    records = (Counted,)
    slice = Seen

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self.held = False

    def handlers(self) -> Mapping[type, Handler]:
        return {Ping: self._hold}

    def _hold(self, event: Ping) -> None:
        self.held = True

    def agent_reported(self, agent: AgentRecord, report: m.Report) -> None:
        self._context.tell(Counted(report.agent))

    def limit(self) -> int:
        return 2

    def warnings(self) -> Iterable[str]:
        return ("a stranger is here",) if self.held else ()


def test_a_strangers_extension_limits_warns_and_keeps_its_slice_in_the_journal() -> None:
    machine = running(extensions=(*in_master(), Stranger))
    effects = told(machine, 1.0, m.RankReport("work", 0, 0, "ready", 100, finished=1))
    assert e.JournalEntry("counted", {"agent": "a0"}) in effects
    assert machine.progress.granted == 2
    machine.handle(Ping(), 1.1)
    assert machine.warnings() == ("a stranger is here",)
    head = msgspec.msgpack.encode(machine.state.kept)
    again = msgspec.msgpack.decode(head, type=JobState)
    assert again.slice(Seen).reports == machine.state.slice(Seen).reports > 0
    follow(again, Event(1, 1, 0.0, "counted", {"agent": "a0"}))
    assert again.slice(Seen).reports == machine.state.slice(Seen).reports + 1


def test_a_head_keeps_the_slice_of_an_extension_that_is_not_there() -> None:
    state = MasterMachine(running().config).state
    state.slices["gone"] = {"x": 1}
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(state.kept), type=JobState)
    assert again.slices == {"gone": {"x": 1}}
    assert t.read("kind_of_a_later_version", {}) is None
