"""A job that runs in the background while a benchmark kills parts of it, and what comes of that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.running import ROOT, BenchmarkError
from benchmarks.status_pages import StatusPages
from rolemesh.api.observer import Event, JobStatus
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.control.asking import ask
from rolemesh_durable.control.client import ControlClient, MasterGoneError
from rolemesh_durable.control.living import LivingRun
from rolemesh_durable.extensions.rehearsal.requests import InjectFault
from rolemesh_durable.extensions.relayout.requests import DrainNode, ResizeRequest
from rolemesh_durable.journal.event_log import EventLog
from rolemesh_durable.rank.status_page import Position

__all__ = ["AgentKill", "Disturbed", "Drain", "MasterKill", "RankKill", "Resize", "disturbed"]

LOOK_S = 0.001
"""Between two looks at the status pages."""
JOURNAL_S = 0.01
"""Between two looks at the journal, whose events have times of their own."""
WAIT_S = 120.0
CALM_STEPS = 10
"""Number of committed steps between two kills."""

T = TypeVar("T")


@dataclass(frozen=True)
class RankKill:
    """`seconds` from SIGKILL until every rank that went down with it has finished a step that it had not finished.

    `load_s`: the longest `setup` of the restarted ranks; `restarted`: the ranks that have another process than before.
    """

    seconds: float
    load_s: float
    restarted: tuple[RankRef, ...]


@dataclass(frozen=True)
class MasterKill:
    """Seconds from SIGKILL to ``master_recovered`` in the journal and to the first ``committed`` after it.

    `steps` were finished by every rank until then (`recovered_s`); `restarted` have another process than before.
    """

    recovered_s: float
    committed_s: float
    steps: int
    restarted: tuple[RankRef, ...]


@dataclass(frozen=True)
class AgentKill:
    """Seconds from SIGKILL to the next incarnation's ``agent_up``; `restarted` have another process than before."""

    controlled_s: float
    restarted: tuple[RankRef, ...]


@dataclass(frozen=True)
class Resize:
    """Seconds from asking until the new layout's ranks run, and for how long of these everybody was held at one step;
    `restarted` are ranks of other roles that have another process than before."""

    seconds: float
    paused_s: float
    restarted: tuple[RankRef, ...]


@dataclass(frozen=True)
class Drain:
    """Seconds from asking until the node's ranks step elsewhere, and for how long of these nobody stepped at all.

    `lost` steps were run again; `restarted` are ranks of other nodes that have another process than before.
    """

    seconds: float
    paused_s: float
    lost: int
    restarted: tuple[RankRef, ...]


@contextmanager
def disturbed(job: Path, *overrides: str, backend: Sequence[str] = ("--backend", "local")) -> Iterator[Disturbed]:
    """``rolemesh run`` in the background, given over when the job runs; ends it and removes its folder afterwards."""
    with tempfile.TemporaryDirectory(prefix="rolemesh-bench-") as folder:
        command = [sys.executable, "-m", "rolemesh.cli", "run", str(job), *overrides, *backend, "--runs-dir", folder]
        log = Path(folder, ".driver.log")
        with log.open("wb") as out:
            driver = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=out, start_new_session=True)
        try:
            running = Disturbed(driver, Path(folder), log)
            try:
                yield running
            finally:
                running.close()
        finally:
            if driver.poll() is None:
                driver.send_signal(signal.SIGINT)
            try:
                driver.wait(60)
            except subprocess.TimeoutExpired:
                driver.kill()
                driver.wait()


class Disturbed:
    """A job that runs. Times are taken from its ranks' status pages, in shared memory, and from its journal."""

    def __init__(self, driver: subprocess.Popen[bytes], folder: Path, log: Path) -> None:
        self._driver, self._log = driver, log
        self.run = LivingRun(self._until("a run's folder", lambda: self._folder(folder)))
        self._until("the job runs", lambda: (status := self.status()) is not None and status.state == "running")
        self.store: EventLog = self.run.store()
        self.status_pages = StatusPages(self.run.job_id())

    def close(self) -> None:
        """Let go of the job."""
        self.status_pages.close()
        self.store.close()

    def status(self) -> JobStatus | None:
        """The master's picture, None while there is no master."""
        return self.run.status(1.0)

    def inject(self, kind: Any, target: str) -> None:
        """Have the master let something fail; tried again while there is no master."""

        def ask() -> bool:
            try:
                with ControlClient(self.run.path, 1.0) as client:
                    client.ask(InjectFault(kind, target))
            except MasterGoneError:
                return target == "master"
            return True

        self._until(f"{kind} {target}", ask)

    def result(self, limit_s: float = 600.0) -> dict[str, Any]:
        """Wait for the job's end, at most `limit_s`. Raises `BenchmarkError` if it is not done."""
        found = self._until("the job's end", self.run.result, limit_s)
        if found["status"] != "done":
            raise BenchmarkError(f"the job {found['status']}: {found['message']}")
        return found

    def kill_rank(self, role: str, rank: int, *, group: bool = False) -> RankKill:
        """SIGKILL a rank; `group`: all of its role is brought back with it."""
        since = self._calm()
        before = self.status_pages.look()
        down = [key for key in before if key == (role, rank) or (group and key[0] == role)]
        began = time.monotonic()
        os.kill(before[role, rank].pid, signal.SIGKILL)
        had = max(position.finished for position in self._same(before, down))

        def stepping() -> bool:
            now = self.status_pages.look()
            return all(now[key].generation > before[key].generation and now[key].finished > had for key in down)

        self._until(f"{role}/{rank} steps again", stepping)
        seconds = time.monotonic() - began
        self._calm()
        events = self.store.events(since)
        loads = [event.data["setup_s"] for event in events if event.kind == "rank_ready"]
        return RankKill(seconds, max(loads), self._changed(before))

    def kill_master(self) -> MasterKill:
        """SIGKILL the master's process, and watch."""
        since = self._calm()
        before = self.status_pages.look()
        control = self.run.control()
        assert control is not None
        wall = time.time()
        os.kill(control.pid, signal.SIGKILL)
        trail = [(wall, self.status_pages.look())]
        found: list[Event] = []
        step: int | None = None

        def committed() -> float | None:
            """When a step was seen to be committed that was not when the new master began."""
            nonlocal found, step
            trail.append((time.time(), self.status_pages.look()))
            found = self.store.events(since)
            if not any(event.kind == "master_recovered" for event in found):
                return None
            now = self.store.read().committed
            step = now if step is None else step
            return time.time() if now > step else None

        first = self._until("a master commits again", committed, look_s=JOURNAL_S)
        recovered = next(event for event in found if event.kind == "master_recovered")
        then = max((seen for seen in trail if seen[0] <= recovered.time), key=lambda seen: seen[0], default=trail[0])[1]
        steps = min(then[key].finished - trail[0][1][key].finished for key in then)
        self._calm()
        return MasterKill(recovered.time - wall, first - wall, steps, self._changed(before))

    def kill_agent(self) -> AgentKill:
        """SIGKILL the first agent's process; its ranks go on."""
        since = self._calm()
        before, status = self.status_pages.look(), self.status()
        assert status is not None
        wall = time.time()
        os.kill(status.agents[0].pid, signal.SIGKILL)

        def under_control() -> float | None:
            return next((event.time for event in self.store.events(since) if event.kind == "agent_up"), None)

        up = self._until("an agent is up again", under_control, look_s=JOURNAL_S)
        self._calm()
        return AgentKill(up - wall, self._changed(before))

    def resize(self, role: str, size: int) -> Resize:
        """Resize a role to this number of ranks, as ``rolemesh scale`` does."""
        self._calm()
        before, began = self.status_pages.look(), time.monotonic()
        reason = f"benchmark, at {began}"
        told = ask(self.run.path, ResizeRequest({role: size}, reason), lambda: self._driver.poll() is not None)
        seconds = time.monotonic() - began
        if told is None or told.kind != "resized":
            raise BenchmarkError(f"{role}={size}: {told}\n{self._trail()}")
        self._calm()
        others = tuple(key for key in self._changed(before) if key[0] != role)
        return Resize(seconds, told.data["seconds"], others)

    def drain(self, role: str) -> Drain:
        """Have the node of a role's rank 0 left, as ``rolemesh drain`` does, and take it back."""
        since = self._calm()
        before, status = self.status_pages.look(), self.status()
        assert status is not None
        node = next(rank.node for rank in status.ranks if rank.ref == (role, 0))
        leaving = [rank.ref for rank in status.ranks if rank.node == node]
        began = held_at = time.monotonic()
        low = -1
        with ControlClient(self.run.path, 1.0) as client:
            client.ask(DrainNode(node, f"benchmark, at {began}"))

        def stepping() -> bool:
            nonlocal held_at, low
            now = self.status_pages.look()
            if all(now[key].generation == before[key].generation for key in now):
                slowest = min(position.finished for position in now.values())
                low, held_at = (slowest, time.monotonic()) if slowest > low else (low, held_at)
            return all(now[key].generation > before[key].generation and now[key].finished > low for key in leaving)

        self._until(f"the ranks of {node} step elsewhere", stepping)
        ended = time.monotonic()
        self._until("it is drained", lambda: "drained" in [event.kind for event in self.store.events(since)])
        events = self.store.events(since)
        step = next(event.data["step"] for event in events if event.kind == "stop_point")
        launched = next(event.data["ranks"] for event in events if event.kind == "recovery_launched")
        with ControlClient(self.run.path, 1.0) as client:
            client.ask(DrainNode(node, f"benchmark, back at {ended}", back=True))
        self._calm()
        others = tuple(key for key in self._changed(before) if key not in leaving)
        return Drain(ended - began, ended - held_at, step - min(rank["resume"] for rank in launched), others)

    def last_event(self) -> int:
        """The number of the journal's last event."""
        events = self.store.events()
        return events[-1].seq if events else 0

    def _calm(self) -> int:
        """Wait until nothing is being brought back and `CALM_STEPS` more steps are committed; the journal's length."""
        begun: int | None = None

        def calm() -> bool:
            nonlocal begun
            status = self.status()
            if status is None or status.state != "running" or any(r.state != "running" for r in status.ranks):
                return False
            begun = status.committed if begun is None else begun
            kinds = [e.kind for e in self.store.events() if e.kind in ("failure", "recovery_planned", "regained")]
            return status.committed >= begun + CALM_STEPS and (not kinds or kinds[-1] == "regained")

        self._until("the job is calm", calm, look_s=JOURNAL_S)
        return self.last_event()

    def _same(self, before: dict[RankRef, Position], keys: Sequence[RankRef]) -> list[Position]:
        """Return the present steps of these ranks if they are still those of `before`, else the steps before."""
        now = self.status_pages.look()
        return [now[key] if now[key].generation == before[key].generation else before[key] for key in keys]

    def _changed(self, before: dict[RankRef, Position]) -> tuple[RankRef, ...]:
        now = self.status_pages.look()
        return tuple(key for key in before if (now[key].pid, now[key].generation) != before[key][:2])

    def _until(
        self, what: str, condition: Callable[[], T | None], limit_s: float = WAIT_S, look_s: float = LOOK_S
    ) -> T:
        deadline = time.monotonic() + limit_s
        while not (value := condition()):
            ended = self._driver.poll()
            if ended or time.monotonic() > deadline:
                why = f"its driver ended with {ended}" if ended else f"not within {limit_s:g} s"
                raise BenchmarkError(f"{what}: {why}\n{self._log.read_text()[-4000:]}\n{self._trail()}")
            time.sleep(look_s)
        return value

    def _trail(self) -> str:
        try:
            events = self.store.events()
        except AttributeError:
            return ""
        return "\n".join(f"{e.seq} {e.time:.3f} {e.kind} {e.data}" for e in events[-40:])

    @staticmethod
    def _folder(runs: Path) -> Path | None:
        return next((path for path in runs.iterdir() if (path / "control.json").exists()), None)
