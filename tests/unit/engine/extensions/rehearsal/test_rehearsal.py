"""A rehearsal: what may fail, and how far ranks run before it does."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from tests.unit.engine.extensions.agent_process import FakeAgent
from tests.unit.engine.extensions.master_shell import FakeShell, running, told

from rolemesh_durable.extensions.rehearsal.agent import AgentInjector
from rolemesh_durable.extensions.rehearsal.master import InjectAsked, Injected, Released
from rolemesh_durable.extensions.rehearsal.messages import ChildKilled, Inject
from rolemesh_durable.extensions.rehearsal.requests import InjectFault, Release
from rolemesh_durable.extensions.rehearsal.shell import Injector
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_processes.facts import children


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


def test_a_child_of_a_rank_is_killed_when_there_is_one_and_the_master_hears_of_it(tmp_path: Path) -> None:
    agent = FakeAgent(tmp_path)
    injector = AgentInjector(agent.process)
    before = set(children(os.getpid()))
    injector.messages()[Inject](Inject("child", "work", 0))
    child = subprocess.Popen(["sleep", "60"], stdin=subprocess.DEVNULL)
    try:
        assert before | {child.pid} == set(children(os.getpid()))
        injector.look()
        killed = agent.sent(ChildKilled)
        assert killed.pid in before | {child.pid}
        assert (killed.role, killed.rank) == ("work", 0)
        injector.look()
        assert agent.events.empty(), "one order kills one process"
    finally:
        child.kill()
        child.wait()


def test_the_death_of_a_child_is_journalled() -> None:
    effects = running().handle(ChildKilled("work", 0, 7, "python"), 0.5)
    assert effects[0] == e.JournalEntry("child_killed", {"target": "work/0", "pid": 7, "name": "python"})


def test_a_failure_that_hits_nobody_is_refused() -> None:
    shell = FakeShell(running())
    told(shell.machine, 1.0, m.RankReport("work", 0, 0, "done", 100, finished=9))
    assert "work/0 is done" in Injector(shell.shell).requests()[InjectFault](InjectFault("kill", "work/0"))
    fresh = FakeShell(MasterMachine(shell.machine.config))
    assert "has not taken over" in Injector(fresh.shell).requests()[InjectFault](InjectFault("kill", "work/0"))
