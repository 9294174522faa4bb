"""Ranks whose own code handles signals: all get the signal at once when the job stops, and their children may end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.engine.extensions.agent_process import FakeAgent
from tests.unit.engine.extensions.master_shell import FakeShell, running

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.signals.agent import Signaller
from rolemesh_durable.extensions.signals.master import SignalAsked
from rolemesh_durable.extensions.signals.messages import Signal
from rolemesh_durable.extensions.signals.requests import SignalJob
from rolemesh_durable.extensions.signals.shell import SignalRequests
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.master import events as e
from rolemesh_processes.signals import REPLACED

LEAVES_A_CHILD = """
import os, signal, time
ready, done = os.pipe()
if os.fork() == 0:
    signal.signal(signal.SIGINT, lambda *_: (time.sleep(0.2), print("saved", flush=True), os._exit(0)))
    os.write(done, b"x")
    time.sleep(60)
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.read(ready, 1)
print("ready", flush=True)
time.sleep(60)
"""

HANDLES = f"""
import os, signal, time
signal.signal(signal.SIGTERM, lambda *_: os.write(1, b"SIGTERM\\n"))  # one signal may interrupt the other's handler
signal.signal({REPLACED}, lambda *_: os.write(1, b"REPLACED\\n"))
print("ready", flush=True)
time.sleep(60)
"""


def signaller(agent: FakeAgent, *roles: str) -> Signaller:
    config: Any = SimpleNamespace(job=SimpleNamespace(own_signals=dict.fromkeys(roles, 60.0)))
    return Signaller(agent.process._replace(config=config))


def test_the_request_names_the_signal_to_each_agent_before_the_job_stops() -> None:
    machine = running()
    shell = FakeShell(machine)
    ask = SignalRequests(shell.shell).requests()[SignalJob]
    assert ask(SignalJob(signal.SIGINT, "Ctrl-C")) == ""
    assert shell.events == [SignalAsked(signal.SIGINT), e.StopAsked("Ctrl-C")]
    sent = [each.message for each in machine.turn(shell.events, 0.5) if isinstance(each, e.ToAgent)]
    assert isinstance(sent[0], m.ToPart)
    assert sent[0].message.opened(Signal) == Signal(signal.SIGINT)
    assert isinstance(sent[1], m.Stop)
    assert (machine.state.status, machine.state.message) == ("interrupted", "Ctrl-C")


@pytest.mark.parametrize("number", [0, 9999])
def test_an_unknown_signal_is_refused(number: int) -> None:
    shell = FakeShell(running())
    assert SignalRequests(shell.shell).requests()[SignalJob](SignalJob(number, "")) == f"there is no signal {number}"
    assert shell.events == []


def test_a_stopping_rank_gets_the_signal_once_and_the_child_that_it_leaves_may_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEAVES_A_CHILD]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
        agent = FakeAgent(tmp_path, rank.pid)
        part = signaller(agent, "work")
        part.messages()[Signal](Signal(signal.SIGINT))
        part.look()
        assert rank.poll() is None, "the job does not stop"
        agent.machine.handle(ae.FromMaster(m.Stop(1, 60.0)), 1.0)
        part.look()
        assert rank.wait() == -signal.SIGINT
        part.look()
        part.close()
        assert rank.stdout.read() == "saved\n"


def test_a_rank_that_a_recovery_replaces_has_time_to_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HANDLES]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
        agent = FakeAgent(tmp_path, rank.pid)
        part, start = signaller(agent, "work"), agent.machine.ranks[RankRef("work", 0)].start
        assert part.ends(start)
        assert part.ends(start), "once is enough"
        part.look()
        assert agent.done == []
        assert {rank.stdout.readline(), rank.stdout.readline()} == {"SIGTERM\n", "REPLACED\n"}
        part._woken = 0.0
        part.look()
        assert rank.stdout.readline() == "REPLACED\n", "it interrupts a system call before which SIGTERM came"
        part._until[start] = 0.0
        part.look()
        assert agent.done == [("kill", start)]
        assert not part.ends(start)
        part.gone(start)
        part._left[rank.pid] = 0.0
        part.look()
        assert rank.wait() == -signal.SIGKILL
        part.look()
        assert part._left == {}
        assert rank.stdout.read() == ""
        assert not signaller(agent, "other").ends(start)


def test_the_child_that_a_replaced_rank_leaves_may_end(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LEAVES_A_CHILD.replace("SIGINT", "SIGTERM")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
        agent = FakeAgent(tmp_path, rank.pid)
        part, start = signaller(agent, "work"), agent.machine.ranks[RankRef("work", 0)].start
        assert part.ends(start)
        rank.wait()
        part.gone(start)
        part.look()
        assert rank.stdout.read() == "saved\n"


def test_a_rank_without_signals_of_its_own_gets_none(tmp_path: Path) -> None:
    got: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: got.append(number))
    try:
        agent = FakeAgent(tmp_path, os.getpid())
        part = signaller(agent, "other")
        agent.machine.handle(ae.FromMaster(m.Stop(1, 60.0)), 1.0)
        part.look()
        part.close()
    finally:
        signal.signal(signal.SIGTERM, before)
    assert got == []
