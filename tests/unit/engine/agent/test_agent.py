"""An agent with real zygotes and ranks: the failures that it survives, its end, and the files that it leaves."""

from __future__ import annotations

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.engine.agent.conftest import COUNTS, Node
from tests.waiting import HANG_S, until

from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.refs import StartRef
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan
from rolemesh_runtime.metrics import Metrics

FORKLESS = """
import os
import resource
import signal


def refuse(*_):
    "From now on the system refuses this process a fork, as it does where pids.max is reached."
    resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
    os.setresuid(65534, 65534, 0)


def allow(*_):
    os.setresuid(0, 0, 0)


signal.signal(signal.SIGUSR1, refuse)
signal.signal(signal.SIGUSR2, allow)
"""

PARALLEL = """
import torch


def compute():
    torch.set_num_threads(2)
    return torch.arange(1 << 20).sum().item()


compute()
"""
ADDS = """
class Work:
    def __init__(self, ctx):
        pass

    def step(self) -> None:
        from parallel import compute

        assert compute() == (1 << 19) * ((1 << 20) - 1)
"""


def zygote(node: Node) -> int:
    assert node.agent is not None
    (pid,) = node.agent._zygotes.pids()
    return pid


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_an_error_in_an_agents_loop_leaves_all_that_a_kill_would_leave(node: Callable[..., Node]) -> None:
    first = node(COUNTS, {"work": "step"}, stateful=("work",))
    first.launch("work")
    first.run("work", granted=4)
    pid = first.until(
        lambda report: next((r.pid for r in report.ranks if r.durable == 4), 0), "five steps are in memory"
    )
    first.fail_send = True
    first.thread.join(HANG_S)
    assert isinstance(first.error, OSError)
    assert alive(pid)
    kept = {path.name for path in first.shm.iterdir()}
    assert {"snap-work-0.index", "snap-work-0-0"} <= kept
    os.kill(pid, signal.SIGKILL)
    second = node(COUNTS, {"work": "step"}, stateful=("work",), job_id=first.job_id, incarnation=1)
    failed = second.rank("work", "failed")
    assert failed.failure is not None
    assert failed.failure.signal == signal.SIGKILL
    second.deliver(m.Halt(second.epoch, (StartRef("work", 0, 0),)))
    assert second.rank("work", "gone").snapshots[-1] == 4


def orphaned(node: Callable[..., Node], **settings: Any) -> tuple[Node, int]:
    """An agent that has died, and its rank, which has done five steps."""
    first = node(COUNTS, {"work": "step"}, stateful=("work",), **settings)
    first.launch("work")
    first.run("work", granted=4)
    pid = first.until(
        lambda report: next((r.pid for r in report.ranks if r.durable == 4), 0), "five steps are in memory"
    )
    assert first.agent is not None
    first.fail_send = True
    first.thread.join(HANG_S)
    first.agent._channels.close()  # as the system does for a process
    return first, pid


def test_the_next_incarnation_adopts_the_ranks_which_go_on_where_they_are(node: Callable[..., Node]) -> None:
    first, pid = orphaned(node)
    second = node(COUNTS, {"work": "step"}, stateful=("work",), job_id=first.job_id, incarnation=1)
    reports: list[m.Report] = []
    second.until(lambda report: reports.append(report) or len(reports) == 1, "a report")
    (seen,) = reports[0].ranks
    assert (seen.pid, seen.state, seen.addresses != {}) == (pid, "ready", True)
    second.epoch = first.epoch + 1
    second.advance(granted=9)
    lines: dict[int, Metrics] = {}

    def told(report: m.Report) -> bool:
        lines.update((line.step, line) for line in report.metrics)
        return sorted(lines) == list(range(10)) and report.ranks[0].durable == 9

    second.until(told, "the rank goes on, and tells all lines again")
    second.launch("work", generation=1, restore="memory", resume=9)
    assert second.rank("work", "up", generation=1).pid != pid
    assert not alive(pid)
    second.stop(0.0)
    second.thread.join(HANG_S)
    assert not second.shm.exists()


def turn_pages(pid: int) -> set[int]:
    """The pages of turns that a process has open."""
    files = Path(f"/proc/{pid}/fd").iterdir()
    return {os.stat(file).st_ino for file in files if os.readlink(file).startswith("/memfd:rolemesh-turns")}


def test_ranks_that_take_turns_look_at_the_page_that_they_had(node: Callable[..., Node]) -> None:
    members = (("work", 0), ("work", 1))
    first = node(COUNTS, {"work": "step"}, stateful=("work",), size=2)
    first.launch("work", 0, turns=members)
    pid = first.rank("work", "up").pid
    assert first.agent is not None
    first.fail_send = True
    first.thread.join(HANG_S)
    first.agent._channels.close()
    second = node(COUNTS, {"work": "step"}, stateful=("work",), size=2, job_id=first.job_id, incarnation=1)
    second.launch("work", 1, turns=members)
    assert len(turn_pages(pid)) == 1
    assert turn_pages(second.rank("work", "up", 1).pid) == turn_pages(pid)


def test_a_rank_whose_zygote_is_dead_fails_and_the_agent_lives_on(node: Callable[..., Node]) -> None:
    here = node(COUNTS, {"work": "step"}, size=2)
    here.launch("work", 0)
    here.rank("work", "up", 0)
    os.kill(zygote(here), signal.SIGKILL)
    here.launch("work", 1)
    for rank in range(2):
        failed = here.rank("work", "failed", rank)
        assert failed.failure is not None
        assert failed.failure.cause == "start"
        assert "its zygote" in failed.failure.message
    here.launch("work", 1, generation=1)
    here.rank("work", "up", 1, generation=1)


def test_ranks_compute_with_several_threads_though_their_preload_has_done_so_before_the_fork(
    node: Callable[..., Node], tmp_path: Path
) -> None:
    (tmp_path / "parallel.py").write_text(PARALLEL)
    env = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    here = node(ADDS, {"work": "step"}, preload=("parallel",), env=env)
    here.launch("work")
    here.run("work", 1)
    here.until(lambda report: any(rank.finished >= 1 for rank in report.ranks), "the rank has computed twice")


@pytest.mark.skipif(os.geteuid() != 0, reason="gives up root's rights for a moment")
def test_one_failed_fork_is_that_ranks_failure_and_the_others_of_the_zygote_live_on(
    node: Callable[..., Node], tmp_path: Path
) -> None:
    (tmp_path / "forkless.py").write_text(FORKLESS)
    env = {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"}
    here = node(COUNTS, {"work": "step"}, size=2, preload=("forkless",), env=env)
    here.launch("work", 0)
    lives = here.rank("work", "up", 0).pid
    os.kill(zygote(here), signal.SIGUSR1)
    until(lambda: Path(f"/proc/{zygote(here)}").stat().st_uid == 65534, "the zygote has lost its rights")
    here.launch("work", 1)
    failed = here.rank("work", "failed", 1).failure
    assert failed is not None
    assert failed.cause == "start"
    assert "Resource temporarily unavailable" in failed.message
    assert "ulimit -u" in failed.message
    assert alive(lives)
    os.kill(zygote(here), signal.SIGUSR2)
    until(lambda: Path(f"/proc/{zygote(here)}").stat().st_uid == 0, "the zygote has its rights back")
    here.launch("work", 1, generation=1)
    here.rank("work", "up", 1, generation=1)
    assert alive(lives)


def test_a_zygote_that_does_not_read_holds_nobody_up(node: Callable[..., Node]) -> None:
    here = node(COUNTS, {"work": "step"}, size=300)
    here.launch("work", 0)
    here.rank("work", "up", 0)
    os.kill(zygote(here), signal.SIGSTOP)
    try:
        ranks = tuple(m.RankLaunch("work", n, 300, n, 300, 0) for n in range(1, 300))
        here.deliver(m.Launch(1, 0, ranks))
        here.until(lambda report: len(report.ranks) == 300, "the agent goes on reporting")
        seq = here.last.seq if here.last else 0
        here.until(lambda report: report.seq > seq, "and again")
    finally:
        os.kill(zygote(here), signal.SIGKILL)


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a /dev/shm of its own")
def test_an_agent_starts_ranks_although_others_have_filled_shared_memory(node: Callable[..., Node]) -> None:
    here = node(COUNTS, {"work": "step"}, shm="8m", snapshots=SnapshotPlan())
    until(lambda: len(list(here.shm.glob(".spare-*"))) == 64, "the reserve is there")
    ballast = here.shm.parent / "ballast"
    fill(ballast)
    for generation in range(3):
        here.launch("work", 0, generation)
        here.rank("work", "up", 0, generation)
    text = here.until(lambda report: report.warning, "the agent says so")
    assert text.startswith("shared memory is full (/dev/shm/rolemesh-")
    ballast.unlink()
    here.until(lambda report: not report.warning, "there is room again, so the reserve is made again")


def fill(path: Path) -> None:
    """Take all the room that is left where `path` is."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT, 0o600)
    try:
        size = 1 << 20
        while size >= 1 << 12:
            try:
                os.posix_fallocate(fd, os.fstat(fd).st_size, size)
            except OSError:
                size >>= 1
    finally:
        os.close(fd)


def test_an_agent_whose_turn_takes_long_says_that_it_is_at_work_and_an_idle_one_does_not(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = node(COUNTS, {"work": "step"})
    here.until(lambda report: True, "it reports")
    assert here.agent is not None
    status_pages, slow = here.agent._status_pages, threading.Event()

    def start(launch: m.RankLaunch) -> Path:
        slow.wait()
        raise OSError(errno.ENOSPC, "the system took its time")

    monkeypatch.setattr(status_pages, "start", start)
    here.launch("work")
    while not isinstance(here.sent.get(), m.AtWork):
        pass
    slow.set()
    here.rank("work", "failed")

    def silent() -> bool:
        time.sleep(2.5)
        return not any(isinstance(here.sent.get(), m.AtWork) for _ in range(here.sent.qsize()))

    until(silent, "it is idle; on a busy machine a turn may take long once more")
