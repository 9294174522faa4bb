"""A rehearsal: what may fail, and how far ranks run before it does."""

from __future__ import annotations

import pytest
from tests.unit.engine.extensions.master_shell import FakeShell, running, told

from rolemesh_durable.extensions.rehearsal.master import InjectAsked, Injected, Released
from rolemesh_durable.extensions.rehearsal.requests import InjectFault, Release
from rolemesh_durable.extensions.rehearsal.shell import Injector
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.machine import MasterMachine


def test_ranks_run_as_far_as_the_rehearsal_lets_them() -> None:
    machine = running(rehearsed=True)
    assert machine.progress.granted == -1
    machine.handle(Released(3), 0.4)
    told(machine, 0.5, m.RankReport("work", 0, 0, "ready", 100, finished=1))
    assert machine.progress.granted == 3
    assert running().progress.granted > 0


def test_a_failure_is_journalled_before_the_agent_hears_of_it() -> None:
    effects = running().handle(InjectAsked("kill", role="work", rank=0), 0.5)
    kinds = [type(effect) for effect in effects]
    assert effects[0] == e.JournalEntry("injected", {"kind": "kill", "target": "work/0"})
    assert e.ToAgent in kinds[1:]


@pytest.mark.parametrize("target", ["nobody/0", "work/x", "work", "", "agent:none", "node:"])
def test_a_misspelled_target_does_not_reach_the_machine(target: str) -> None:
    shell = FakeShell(running())
    assert "to inject a failure into" in Injector(shell.shell).requests()[InjectFault](InjectFault("kill", target))
    assert (shell.events, shell.records) == ([], [])


def test_requests_become_events_and_what_hits_the_master_is_journalled() -> None:
    shell = FakeShell(running())
    answers = Injector(shell.shell).requests()
    wanted = [InjectFault("kill", "work/0"), InjectFault("kill", "agent:a0"), Release(4), InjectFault("kill", "master")]
    assert [answers[type(each)](each) for each in wanted] == [""] * 4
    assert shell.events == [InjectAsked("kill", role="work", rank=0), InjectAsked("kill", agent="a0"), Released(4)]
    assert shell.records == [Injected("kill", "master")]


def test_a_failure_that_hits_nobody_is_refused() -> None:
    shell = FakeShell(running())
    told(shell.machine, 1.0, m.RankReport("work", 0, 0, "done", 100, finished=9))
    assert "work/0 is done" in Injector(shell.shell).requests()[InjectFault](InjectFault("kill", "work/0"))
    fresh = FakeShell(MasterMachine(shell.machine.config))
    assert "has not taken over" in Injector(fresh.shell).requests()[InjectFault](InjectFault("kill", "work/0"))
