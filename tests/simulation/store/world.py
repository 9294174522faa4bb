"""Masters one after the other, and agents that hold lines for them, driven step by step by a seed.

Masters are killed at any call, also within a commit or a write; or they are frozen, and go on when another has taken
over. The journal has a job's recoveries, one after the other, each with data that no other has.
"""

from __future__ import annotations

import contextlib
import gc
import json
import random
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
from tests.configs import master_config
from tests.simulation.storage.filesystem import FileSystem
from tests.simulation.storage.world import Violation
from tests.simulation.store.database import Database
from tests.simulation.store.master import Killed, Master, Report

from rolemesh.api.observer import Event
from rolemesh.graph.logical import LogicalGraph, OpCall
from rolemesh.runs import jsonl
from rolemesh_durable.journal.event_log import EventLog, Stored
from rolemesh_durable.master import journal, publication
from rolemesh_durable.master.history import History, read_head
from rolemesh_durable.master.journal import Claimed
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.snapshot_plan import SnapshotPlan
from rolemesh_runtime.metrics import Metrics
from rolemesh_runtime.syncing import sync_folder

__all__ = ["INVARIANTS", "Masters"]

INVARIANTS = (
    "each line once, in order and whole",
    "nothing ends a master",
    "nothing wedges",
    "reading passes over what is torn",
    "the journal is bounded",
    "the journal is what was acknowledged",
    "what is told is durable",
)
KEPT = 12
AHEAD = 16
DELIVERED_S = 5.0
"""Within this, what an agent says has reached the master; the master waits for twice as long."""


class Agent:
    """An agent that keeps its rank's lines until it learns of their publication."""

    def __init__(self, name: str, bit: int) -> None:
        self.name, self.bit = name, bit
        self.reached = -1
        self.lines: dict[int, Metrics] = {}
        self.link: list[tuple[float, Report]] = []

    def step(self, now: float) -> None:
        """The rank finishes a step."""
        self.reached += 1
        sums = {"work.do": {"ranks": float(self.bit)}}
        line = Metrics("work", self.reached, 1, 1, [0.0, 0.0, 0.0], {}, sums)
        self.lines[self.reached] = line
        # How far a rank is, and so what is committed, may be known before its line.
        self.link += [(now, (self.name, self.reached, ())), (now, (self.name, self.reached, (line,)))]

    def connect(self, now: float) -> None:
        """There is a new master: it hears all that is kept."""
        self.link = [(now, (self.name, self.reached, tuple(self.lines.values())))]


class Masters:
    """One schedule. `step` lets somebody act; it raises `Violation`."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.rng = random.Random(seed)
        self.root = Path(tempfile.mkdtemp(prefix="store-", dir="/dev/shm"))
        self.files = FileSystem(self.root, self.rng)
        self.run_dir = self.files.disk / "run"
        self.database = Database(self.root / "state.sqlite", self.rng)
        self.url = f"sqlite:///{self.database.path}"
        self.files.meanwhile = self.database.passing = self._passing
        self.now, self._wall = 1000.0, 1e9
        self.graph = LogicalGraph("g", (OpCall(0, "work", "do", "work.do", None),), ())
        self.agents = {f"a{i}": Agent(f"a{i}", 1 << i) for i in range(2)}
        self.masters: list[Master] = []
        self.newest = 0
        """The newest epoch."""
        self.every: list[Event] = []
        """The journalled events: acknowledged ones, and those that a master found after it claimed the journal."""
        self._committed = -1
        self._deadly = 0.0
        self._power = False
        self.trace: list[str] | None = [] if traced else None

    def __enter__(self) -> Masters:
        self._mounted = contextlib.ExitStack()
        for each in (
            self.files.mounted(),
            self.database.mounted(),
            patch.object(time, "time", self.wall),
            patch.object(time, "monotonic", lambda: self.now),
            patch.object(journal, "KEPT", KEPT),
            patch.object(publication, "MOST_WAITING", 24),
        ):
            self._mounted.enter_context(each)
        self.run_dir.mkdir()
        sync_folder(self.files.disk)
        sync_folder(self.run_dir)
        gc.freeze()  # what there is already need not be looked at after each death
        return self

    def __exit__(self, *_: object) -> None:
        self.files.slow = self.files.refuses = 0.0
        for master in list(self.masters):
            self._died(master, "is over")
        gc.unfreeze()
        self._mounted.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def note(self, text: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now:8.2f} {text.replace(str(self.root), '')}")

    def fail(self, invariant: str, why: str) -> None:
        """An invariant does not hold."""
        assert invariant in INVARIANTS, invariant
        self.note(f"VIOLATION {invariant}: {why}")
        raise Violation(f"{invariant}: {why.replace(str(self.root), '')}")

    def wall(self) -> float:
        """The time of day, as the machine has it."""
        return self.now + self._wall

    def fresh(self) -> JobState:
        """The state that the job's first master begins with."""
        places = (AgentPlace("a0", "n0", {"cpu": 1.0}),)
        launches = {"a0": tuple(m.RankLaunch("work", i, 2, i, 2, 0) for i in range(2))}
        return JobState.of(master_config(self.graph, launches, places, snapshots=SnapshotPlan(enabled=False)))

    def records(self, seq: int) -> list[tuple[str, dict[str, Any]]]:
        """Return the events of the job after event `seq`."""
        count = self.rng.randint(1, 7) if self.rng.random() < 0.5 else 0
        return [self._record(seq + i) for i in range(count)]

    def _record(self, number: int) -> tuple[str, dict[str, Any]]:
        if number < 2:
            job = {"name": "job", "steps": 10, "agents": ["a0"], "ranks": 2, "clock": "boot"} if number == 0 else {}
            return ("job_started", "job_running")[number], {**job, "at": self.now}
        count, part = divmod(number - 2, 7)
        rank, common = {"role": "work", "rank": 0, "generation": count}, {"number": count, "at": self.now}
        says = f"killed {self.rng.random()} " + "x" * self.rng.choice((0, 0, 3000))
        plan = {"level": "process", "restart": [["work", 0]], "source": "memory", "reason": says}
        told = {"failures": [says], "were": [["work", 0, count]], "attempt": 1, "causes": ["signal"], "trail": []}
        launched = [rank | {"agent": "a0", "resume": -1, "restore": "none", "replica": ""}]
        failure = {"cause": "signal", "role": "work", "rank": 0, "message": says}
        return (
            ("failure", {"failure": failure, "silent_s": 0.0, "at": self.now}),
            ("recovery_planned", common | {"plan": plan} | told),
            ("recovery_launched", common | {"ranks": launched}),
            ("rank_up", rank | {"pid": count, "node": "n0"}),
            ("rank_ready", rank | {"setup_s": self.rng.random()}),
            ("recovered", common | {"level": "process", "restarted": ["work/0"], "seconds": 0.1}),
            ("regained", common),
        )[part]

    # ---------------------------------------------------------------------------------------------------------- turns

    def step(self, *, faults: bool) -> None:
        """Somebody acts."""
        self.now += self.rng.random() * 0.3
        acts: list[tuple[float, Callable[[], None]]] = [
            (10, self._agent_step),
            (10, self._deliver),
            (30, self._act),
            (3, self._start),
        ]
        if faults:
            acts += [(2, self._weather), (1, self._step_clock), (0.5, self._stall), (0.7, self._freeze)]
            acts += [(0.4, self._kill), (0.3, self._cut_power)]
        weights, calls = zip(*acts, strict=True)
        self.rng.choices(calls, weights)[0]()

    def _agent_step(self) -> None:
        agent = self.rng.choice(list(self.agents.values()))
        if agent.reached < min(other.reached for other in self.agents.values()) + 4 and len(agent.lines) < AHEAD:
            agent.step(self.now)

    def _deliver(self) -> None:
        agent = self.rng.choice(list(self.agents.values()))
        if agent.link and (leader := self._leader) is not None:
            leader.inbox.append(agent.link.pop(0)[1])

    @property
    def _leader(self) -> Master | None:
        """The master that agents listen to."""
        return next((master for master in self.masters if master.epoch == self.newest > 0), None)

    def _act(self) -> None:
        awake = [master for master in self.masters if not master.frozen]
        if not awake:
            return
        master = self.rng.choice(awake)
        for agent in self.agents.values():
            while master is self._leader and agent.link and agent.link[0][0] < self.now - DELIVERED_S:
                master.inbox.append(agent.link.pop(0)[1])
        self._deadly = self.rng.choice((0.0, 0.0, 0.02)) if self._faulty else 0.0
        ended = ""
        try:
            self.rng.choice((master.turn, master.write, master.publish))()
        except Killed as why:
            ended = str(why.__cause__ or "within a call")
        finally:
            self._deadly = 0.0
        # Only after the handler: the exception's traceback holds cursors, and so the dead master's connection.
        if ended and self._power:
            self._cut_power()
        elif ended:
            self._died(master, f"is killed: {ended}")

    _faulty = True

    def _passing(self) -> None:
        """A call of a master, which may end there."""
        if self._deadly and self.rng.random() < self._deadly:
            self._power = self.rng.random() < 0.3
            raise Killed

    def _start(self) -> None:
        """The supervisor finds no master that answers."""
        if not self.masters or self.masters[-1].frozen:
            self.note("a master starts")
            self.masters.append(Master(self))

    def _died(self, master: Master, how: str) -> None:
        self.note(f"master {master.epoch} {how}")
        self.masters.remove(master)
        if self.masters:
            self.database.calm = True
            master.died()
            self.database.calm = False
            return
        with self.database.abandoned(power_cut=self._power):
            master.died()

    # --------------------------------------------------------------------------------------------------------- faults

    def _weather(self) -> None:
        rng, files, base = self.rng, self.files, self.database
        match rng.randrange(8):
            case 0:
                files.full ^= {files.disk}
            case 1:
                files.refuses = rng.choice((0.0, 0.1))
            case 2:
                files.tears = rng.choice((0.0, 0.3))
            case 3:
                base.full = not base.full
            case 4:
                base.refuses = rng.choice((0.0, 0.1))
            case 5:
                base.locked = not base.locked
            case _:
                self._clear()
        self.note(
            f"disk: full {bool(files.full)}, refuses {files.refuses}; "
            f"database: full {base.full}, refuses {base.refuses}, locked {base.locked}"
        )

    def _clear(self) -> None:
        self.files.full.clear()
        self.files.refuses = self.database.refuses = 0.0
        self.database.full = self.database.locked = False

    def _step_clock(self) -> None:
        """Somebody sets the time of day."""
        self._wall += self.rng.uniform(-1e5, 1e5)
        self.note(f"the time of day is {self.wall():.0f}")

    def _stall(self) -> None:
        """The machine sleeps."""
        self.now += self.rng.choice((20.0, 400.0))
        self.note("the machine wakes up")

    def _freeze(self) -> None:
        if self.masters:
            master = self.rng.choice(self.masters)
            master.frozen = not master.frozen
            self.note(f"master {master.epoch} {'stops' if master.frozen else 'goes on'}")

    def _kill(self) -> None:
        if self.masters:
            self._died(self.rng.choice(self.masters), "is killed between calls")

    def _cut_power(self) -> None:
        self.note("the power is cut")
        self._power = True
        for master in list(self.masters):
            self._died(master, "loses its power")
        self._power = False
        self.files.crash()
        self.look()

    # --------------------------------------------------------------------------------------------------------- checks

    def claimed(self, master: Master, found: Claimed) -> None:
        """Check that a new master has found all acknowledged events, and knows the state that follows from them."""
        if found.epoch < self.newest:
            return  # it was stopped in the middle of it, and will be refused
        self.newest = found.epoch
        self.note(f"master {found.epoch} takes over after {master.journal.history.seq} events")
        for event in found.stored.events:
            self._is_journalled(event)
        if master.journal.history.seq != len(self.every):
            self.fail(
                "the journal is what was acknowledged", f"{master.journal.history.seq} events of {len(self.every)}"
            )
        if found.stored.committed < self._committed:
            self.fail("the journal is what was acknowledged", f"{found.stored.committed} < {self._committed}")
        whole = History(self.fresh, Stored(found.stored.committed, 0, "", self.every))
        if read_head(whole.head()) != read_head(master.journal.history.head()):
            self.fail("the journal is what was acknowledged", "what is kept tells another story than all of it")
        for agent in self.agents.values():
            agent.connect(self.now)

    def acknowledged(self, master: Master, events: list[Event], committed: int) -> None:
        """A master goes on, since this is journalled."""
        for event in events:
            self._is_journalled(event)
        self._committed = max(self._committed, committed)

    def _is_journalled(self, event: Event) -> None:
        if event.seq == len(self.every) + 1:
            self.every.append(event)
        elif event.seq > len(self.every) or event != self.every[event.seq - 1]:
            self.fail("the journal is what was acknowledged", f"event {event.seq} of {len(self.every)} is another")

    def told(self, step: int) -> None:
        """Agents hear that lines up to `step` are published: they keep them no longer."""
        for agent in self.agents.values():
            agent.lines = {at: line for at, line in agent.lines.items() if at > step}

    def durable(self, name: str, key: str, number: int) -> None:
        """Check that the line `number` is on the disk, since the master has announced it."""
        lines = self.files.durable(self.run_dir / name).splitlines(keepends=True)
        if not lines or not lines[-1].endswith(b"\n") or json.loads(lines[-1])[key] < number:
            self.fail("what is told is durable", f"{name} has {len(lines)} lines, not {number}")

    def look(self) -> None:
        """Check the invariants that hold at all times."""
        weather = self.files.full, self.files.refuses
        self.files.full, self.files.refuses = set(), 0.0
        for name, key, first in (("events.jsonl", "seq", 1), ("metrics.jsonl", "step", 0)):
            try:
                lines = self._lines(name)
                numbers = [line[key] for line in lines]
            except (ValueError, KeyError) as error:
                self.fail("each line once, in order and whole", f"{name}: {error}")
            if numbers != list(range(first, first + len(numbers))):
                self.fail("each line once, in order and whole", f"{name}: {numbers}")
            for line in lines:
                if key == "step" and line.get("ranks") != 3.0:
                    self.fail("each line once, in order and whole", f"step {line['step']} has {line.get('ranks')}")
                if key == "seq" and line != msgspec.to_builtins(self.every[line["seq"] - 1]):
                    self.fail("each line once, in order and whole", f"event {line['seq']} was never journalled")
        try:
            read = [line.step for line in jsonl.read_metrics(self.run_dir / "metrics.jsonl")]
        except Exception as error:
            self.fail("reading passes over what is torn", repr(error))
        if read != numbers:
            self.fail("reading passes over what is torn", f"{read} is not {numbers}")
        self.files.full, self.files.refuses = weather

    def _lines(self, name: str) -> list[dict[str, Any]]:
        path = self.run_dir / name
        data = path.read_bytes() if path.exists() else b""
        return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]

    def settle(self) -> None:
        """No more faults: within some turns all that has happened is journalled and published."""
        self._clear()
        self.files.slow = self.files.tears = 0.0
        self._faulty = False
        for master in self.masters:
            master.frozen = False
        reached = min(agent.reached for agent in self.agents.values()) + 1
        until = len(self.every) + 3 * KEPT
        for turn in range(2000):
            self.step(faults=False)
            if turn % 20 == 0 and len(self.every) >= until and len(self._lines("metrics.jsonl")) >= reached:
                break
        else:
            lines = len(self._lines("metrics.jsonl"))
            self.fail("nothing wedges", f"{len(self.every)} events of {until}, {lines} lines of {reached}")
        self.look()
        told, missing = len(self._lines("events.jsonl")), len(self.every) - self.masters[-1].publication.told
        if told + missing != len(self.every):
            self.fail("nothing wedges", f"{told} events are told, {missing} wait, of {len(self.every)}")
        self.database.calm = True
        with EventLog.open(self.url, self.run_dir, "job") as store:
            kept = len(store.events())
        if kept > 2 * KEPT + 24 + 14:
            self.fail("the journal is bounded", f"{kept} events are kept")
        self.database.calm = False
