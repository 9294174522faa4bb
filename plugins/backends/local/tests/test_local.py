"""The local backend with real processes: masters and agents come and go, the supervisor and the folder stay."""

from __future__ import annotations

import json
import os
import resource
import secrets
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from tests.waiting import HANG_S, until

from rolemesh_local.question import master_comes
from rolemesh_processes.guard import remove_job, shm_folder


class SmallJob:
    """The processes of ``small_job.py``."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="rmt-"))
        self.job = f"t{secrets.token_hex(3)}"
        command = [sys.executable, str(Path(__file__).with_name("small_job.py")), str(self.folder), self.job]
        self.errors = self.folder / "supervisor.log"
        with self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
        self.context = zmq.Context()

    def ask(self, *command: Any) -> Any:
        """Wait for a master, send it the command, and return its answer."""
        control = self.context.socket(zmq.REQ)
        control.connect(f"ipc://{self.folder}/master")
        control.send(msgspec.msgpack.encode(command))
        try:
            assert control.poll(int(1000 * HANG_S)), f"no answer to {command}: {self.log()}"
            return msgspec.msgpack.decode(control.recv())
        finally:
            control.close(linger=0)

    def tell(self, *command: Any) -> None:
        """Send the master a command that it does not survive."""
        control = self.context.socket(zmq.REQ)
        control.connect(f"ipc://{self.folder}/master")
        control.send(msgspec.msgpack.encode(command))
        control.close(linger=1000)

    def told(self) -> list[list[Any]]:
        """Return the news that masters got so far: ``[attempt, kind, …]`` each."""
        try:
            return [json.loads(line) for line in (self.folder / "told").read_text().splitlines()]
        except FileNotFoundError:
            return []

    def until(self, found: Callable[[list[list[Any]]], Any], what: str) -> Any:
        return until(lambda: found(self.told()), lambda: f"{what}\n{self.log()}")

    def master(self, attempt: int) -> int:
        """Wait until that master is up; return its pid."""
        up = lambda lines: [line[2] for line in lines if line[:2] == [attempt, "up"]]  # noqa: E731
        return int(self.until(up, f"master {attempt} is up")[0])

    def hears(self, attempt: int, agent: str, start: str) -> str:
        """Wait until this master has a message of `agent` that begins with `start`; return the latest."""

        def found(lines: list[list[Any]]) -> list[str]:
            return [
                m
                for a, w, n, m, *_ in ([*line, None, None] for line in lines)
                if (a, w, n) == (attempt, "received", agent) and m.startswith(start)
            ]

        return str(self.until(found, f"master {attempt} hears {agent}: {start}")[-1])

    def losses(self) -> list[list[Any]]:
        return [[attempt, *rest] for attempt, what, *rest in self.told() if what == "lost"]

    def loses(self, agent: str, incarnation: int) -> list[Any]:
        """Wait until a master knows of the loss; return ``[attempt, agent, incarnation, why, node_lost]``."""
        match = lambda _: [loss for loss in self.losses() if loss[1:3] == [agent, incarnation]]  # noqa: E731
        return list(self.until(match, f"{agent}/{incarnation} is lost")[0])

    def log(self) -> str:
        return "\n".join(path.read_text()[-2000:] for path in self.folder.glob("*.log"))

    def started(self, agent: str, incarnation: int = 1, node: str = "node-0", attempt: int = 0) -> int:
        """Start an agent and return its pid."""
        self.ask("start", agent, incarnation, node)
        return int(self.hears(attempt, agent, f"{incarnation} counts").split()[-1])

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.context.destroy(linger=0)
        remove_job(self.job)
        for path in self.folder.iterdir():
            path.unlink()
        self.folder.rmdir()


@pytest.fixture
def job() -> Iterator[SmallJob]:
    small = SmallJob()
    yield small
    small.close()


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root's rights for a moment")
def test_the_supervisor_waits_for_agents_and_masters_if_no_process_can_start(job: SmallJob) -> None:
    def uid() -> int:
        return Path(f"/proc/{job.process.pid}").stat().st_uid

    first = job.master(0)
    survivor = job.started("a")
    job.process.send_signal(signal.SIGUSR1)
    job.until(lambda _: uid() == 65534, "the supervisor has lost its rights")
    job.ask("start", "b", 1, "node-1")
    os.kill(first, signal.SIGKILL)
    job.until(lambda _: gone(first), "the master is reaped")
    job.process.send_signal(signal.SIGUSR2)
    job.master(1)
    job.ask("attach", {"a": [1, "node-0"], "b": [1, "node-1"]})
    job.hears(1, "b", "1 counts")
    assert not gone(survivor)
    assert job.losses() == []


def test_a_killed_master_is_followed_by_another_that_hears_the_same_agents(job: SmallJob) -> None:
    first = job.master(0)
    pid = job.started("a")
    os.kill(first, signal.SIGKILL)
    second = job.master(1)
    assert second != first
    job.ask("attach", {"a": [1, "node-0"]})
    assert job.hears(1, "a", "1 counts").split()[-1] == str(pid)
    job.ask("send", "a", 1, "hello")
    job.hears(1, "a", "1 echoes hello")
    assert not job.losses()
    job.ask("end")
    assert job.process.wait() == 0
    assert gone(pid)
    assert not shm_folder(job.job, "a").exists()


def test_messages_reach_only_the_incarnation_that_is_meant(job: SmallJob) -> None:
    job.master(0)
    job.started("a", 1)
    job.ask("send", "a", 0, "for the dead")
    job.ask("send", "a", 2, "for the unborn")
    job.ask("send", "a", 1, "for the living")
    job.hears(0, "a", "1 echoes for the living")
    assert not [line for line in job.told() if "for the dead" in str(line) or "for the unborn" in str(line)]


def test_a_stopped_master_is_killed_and_followed_by_another(job: SmallJob) -> None:
    first = job.master(0)
    job.started("a")
    os.kill(first, signal.SIGSTOP)
    job.master(1)
    assert gone(first)
    job.hears(1, "a", "1 counts")


def test_a_stopped_agent_is_killed_on_request_and_its_loss_reported(job: SmallJob) -> None:
    job.master(0)
    pid = job.started("a")
    os.kill(pid, signal.SIGSTOP)
    job.ask("kill", "a", 1)
    attempt, _, _, why, node_lost = job.loses("a", 1)
    assert (attempt, node_lost) == (0, False)
    assert f"pid {pid}" in why
    assert "signal 9" in why


def test_an_agent_that_died_with_its_master_is_lost_to_the_next(job: SmallJob) -> None:
    first = job.master(0)
    a, b = job.started("a"), job.started("b", node="node-1")
    os.kill(first, signal.SIGSTOP)
    os.kill(a, signal.SIGKILL)
    os.kill(first, signal.SIGKILL)
    job.master(1)
    job.ask("attach", {"a": [1, "node-0"], "b": [1, "node-1"], "c": [4, "node-2"]})
    assert job.loses("a", 1)[0] == 1
    assert job.loses("c", 4)[3:] == ["it was never started", False]
    assert job.hears(1, "b", "1 counts").split()[-1] == str(b)
    assert len(job.losses()) == 2


def test_agents_that_the_next_master_does_not_know_are_killed(job: SmallJob) -> None:
    first = job.master(0)
    pid = job.started("a", 2)
    os.kill(first, signal.SIGKILL)
    job.master(1)
    job.ask("attach", {"a": [3, "node-0"]})
    job.until(lambda _: gone(pid), "the unknown incarnation is gone")
    assert job.loses("a", 3)[3] == "it was never started"


def test_the_next_incarnation_starts_when_the_stopped_one_before_is_dead_and_has_its_files(job: SmallJob) -> None:
    job.master(0)
    old = job.started("a", 1)
    os.kill(old, signal.SIGSTOP)
    new = job.started("a", 2)
    assert new != old
    assert gone(old)
    files = {path.name for path in shm_folder(job.job, "a").iterdir()}
    assert {"was-here-1", "was-here-2"} <= files
    assert job.loses("a", 1)[3:] == [f"the agent process (pid {old}) was killed by signal 9", False]
    job.ask("start", "a", 2, "node-0")
    job.ask("send", "a", 2, "still you?")
    job.hears(0, "a", "2 echoes still you?")
    assert job.hears(0, "a", "2 counts").split()[-1] == str(new)


def test_a_lost_node_takes_its_agent_and_its_files_and_takes_no_other(job: SmallJob) -> None:
    job.master(0)
    lost, other = job.started("a", node="node-0"), job.started("b", node="node-1")
    job.ask("lose", "node-0")
    assert job.loses("a", 1)[3:] == ["node node-0 is lost", True]
    assert gone(lost)
    assert not shm_folder(job.job, "a").exists()
    assert job.ask("nodes") == ["node-1", "node-2"]
    job.ask("start", "a", 2, "node-0")
    assert job.loses("a", 2)[3:] == ["node node-0 is lost", True]
    assert job.started("c", node="node-2")
    assert not gone(other)
    (job.folder / "lost-node-0").unlink()
    assert job.ask("nodes") == ["node-0", "node-1", "node-2"]
    assert job.started("a", 3, node="node-0")


def test_a_lost_node_stays_lost_for_the_next_master(job: SmallJob) -> None:
    first = job.master(0)
    job.started("a", node="node-0")
    os.kill(first, signal.SIGSTOP)
    (job.folder / "lost-node-0").touch()
    os.kill(first, signal.SIGKILL)
    job.master(1)
    job.ask("attach", {"a": [1, "node-0"]})
    assert job.loses("a", 1)[3:] == ["node node-0 is lost", True]
    assert not shm_folder(job.job, "a").exists()


def test_masters_killed_at_work_are_replaced_however_often(job: SmallJob) -> None:
    for attempt in range(8):
        pid = job.master(attempt)
        job.ask("nodes")
        os.kill(pid, signal.SIGKILL)
    job.ask("end")
    assert job.process.wait() == 0


def test_a_master_that_fails_again_and_again_is_given_up_and_nothing_is_left(job: SmallJob) -> None:
    first = job.master(0)
    pid = job.started("a")
    (job.folder / "fail").touch()
    os.kill(first, signal.SIGKILL)
    assert job.process.wait() == 1
    assert job.process.stdout is not None
    assert job.process.stdout.read().strip() == "the master died 5 times in a row; the last one ended with exit code 1"
    assert gone(pid)
    assert "told to fail" in job.log()


def test_a_master_that_refuses_the_job_is_not_started_again(job: SmallJob) -> None:
    job.master(0)
    job.tell("refuse", "the journal is damaged")
    assert job.process.wait() == 1
    assert job.process.stdout is not None
    assert job.process.stdout.read().strip() == "the journal is damaged"


def test_a_master_that_raises_is_started_again(job: SmallJob) -> None:
    job.master(0)
    job.tell("raise")
    job.master(1)
    job.ask("end")
    assert job.process.wait() == 0


def test_a_master_is_expected_while_one_stands_still_or_starts_and_not_without_a_supervisor(job: SmallJob) -> None:
    first = job.master(0)
    os.kill(first, signal.SIGSTOP)
    assert master_comes(job.folder)
    job.master(1)
    assert master_comes(job.folder)
    job.process.kill()
    job.process.wait()
    assert not master_comes(job.folder)


def test_a_process_that_the_machine_has_no_room_for_is_started_when_there_is(job: SmallJob) -> None:
    first = job.master(0)
    resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE, (3, 1024))
    os.kill(first, signal.SIGKILL)
    job.until(lambda _: "a master cannot be started" in (job.errors.read_text()), "the supervisor has tried")
    resource.prlimit(job.process.pid, resource.RLIMIT_NOFILE, (1024, 1024))
    job.master(1)


def test_a_killed_supervisor_takes_master_and_agents_along(job: SmallJob) -> None:
    master, agent = job.master(0), job.started("a")
    job.process.kill()
    job.process.wait()
    job.until(lambda _: gone(master) and gone(agent), "master and agent are gone")
    job.until(lambda _: not shm_folder(job.job, "a").exists(), "the agent's janitor has given up waiting")


def test_an_agent_that_does_not_end_by_itself_is_killed_at_the_end(job: SmallJob) -> None:
    job.master(0)
    pid, obedient = job.started("a"), job.started("b", node="node-1")
    job.ask("send", "b", 1, "end")
    job.ask("end")
    assert gone(pid)
    assert gone(obedient)
    assert job.process.wait() == 0
    assert not shm_folder(job.job, "a").exists()
    assert not shm_folder(job.job, "b").exists()
