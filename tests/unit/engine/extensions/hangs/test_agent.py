"""Stacks of real processes: computing, blocked in native code, stopped, gone; taken without waiting for them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.unit.engine.extensions.agent_process import FakeAgent
from tests.waiting import until

from rolemesh_durable.extensions.hangs import agent as stacks
from rolemesh_durable.extensions.hangs.agent import StackTaker, take_stacks
from rolemesh_durable.extensions.hangs.messages import Dump, Stacks

COMPUTING = "def computing():\n    while True: pass\n"
BLOCKED = "import os\ndef blocked():\n    os.read(os.pipe()[0], 1)\n"


@pytest.fixture
def start() -> Iterator[Callable[[str, str], int]]:
    """Run a function of some code in another Python; returns its pid once it is about to be called."""
    started: list[subprocess.Popen[str]] = []

    def run(code: str, function: str) -> int:
        code += f"print('here', flush=True)\n{function}()\n"
        process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        return process.pid

    yield run
    for process in started:
        process.kill()
        process.communicate()


def state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.mark.parametrize(("code", "function"), [(COMPUTING, "computing"), (BLOCKED, "blocked")])
def test_a_process_that_computes_or_is_blocked_shows_where_it_is(
    start: Callable[[str, str], int], code: str, function: str
) -> None:
    pid = start(code, function)
    text = ""

    def there() -> bool:
        nonlocal text
        text = take_stacks(pid, 30.0)
        return f"    {function} (<string>:" in text

    until(there)
    assert f"Process {pid}" in text
    assert state(pid) in "RS", "it goes on"


def test_a_process_that_is_stopped_shows_where_it_is_and_stays_stopped(start: Callable[[str, str], int]) -> None:
    pid = start(COMPUTING, "computing")
    os.kill(pid, signal.SIGSTOP)
    until(lambda: state(pid) == "T")
    text = take_stacks(pid, 30.0)
    assert text.startswith("(stopped by a signal)\n")
    assert "<module> (<string>:" in text
    assert state(pid) == "T"


def test_without_stacks_the_text_says_why(start: Callable[[str, str], int]) -> None:
    pid = start("def nothing(): pass\n", "nothing")
    until(lambda: state(pid) == "Z")
    assert take_stacks(pid, 30.0).startswith("no stacks: ")
    assert take_stacks(0) == "no stacks: it has no process yet"


def spy(folder: Path, script: str) -> str:
    """An executable in the place of py-spy."""
    path = folder / "py-spy"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o700)
    return str(path)


def test_a_refusal_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = spy(tmp_path, "echo 'Error: Permission Denied: Try running again with elevated permissions' >&2; exit 1")
    monkeypatch.setattr(stacks, "_find", lambda: refusing)
    text = take_stacks(os.getpid(), 30.0)
    assert text.startswith("no stacks: Error: Permission Denied")
    assert "--cap-add SYS_PTRACE" in text
    assert "kernel.yama.ptrace_scope" in text


def test_a_process_that_cannot_be_paused_is_read_while_it_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pausing = spy(tmp_path, 'if [ "$4" = --nonblocking ]; then echo "Thread 1"; else exec sleep 60; fi')
    monkeypatch.setattr(stacks, "_find", lambda: pausing)
    assert take_stacks(os.getpid(), 1.0) == "(read while it ran)\nThread 1"


def test_without_an_answer_it_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    silent = spy(tmp_path, "exec sleep 60")
    monkeypatch.setattr(stacks, "_find", lambda: silent)
    assert take_stacks(os.getpid(), 0.4).startswith("no stacks: py-spy got no answer in ")


def test_without_py_spy_the_remedy_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stacks, "_find", lambda: None)
    assert take_stacks(os.getpid()) == "no stacks: py-spy is not installed; pip install py-spy"


def test_a_taker_answers_later_and_once_however_often_it_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    waiting = spy(tmp_path, f"read _ < {gate}; echo Thread 1 of $ROLEMESH_JOB")
    monkeypatch.setattr(stacks, "_find", lambda: waiting)
    fake = FakeAgent(tmp_path, ROLEMESH_JOB="job/n0/1")
    take = StackTaker(fake.process).messages()[Dump]
    for generation in (4, 4, 3, 4):
        take(Dump("work", 0, generation))
    take(Dump("other", 0, 4))
    assert fake.events.empty()
    gate.write_text("go\n")
    answer = fake.sent(Stacks)
    assert answer.start == ("work", 0, 4)
    assert answer.text.endswith("Thread 1 of job/n0/1")
    assert fake.events.empty()
