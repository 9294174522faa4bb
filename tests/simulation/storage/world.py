"""Agents, ranks and a master around the real code that keeps snapshots, driven step by step by a seed.

A rank's state is a number that no other rank, step, generation or timeline has. The threads of the persister and of the
replicas are steps here, their sockets a link that loses, repeats and reorders; the master is what `MasterMachine` and
`BackgroundTasks` do with the parts of checkpoints, in short.
"""

from __future__ import annotations

import contextlib
import random
import shutil
import tempfile
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import numpy as np
from tests.simulation.storage.filesystem import FileSystem

from rolemesh_checkpoint import disk
from rolemesh_checkpoint import send_log as log
from rolemesh_checkpoint.layout import SnapshotError
from rolemesh_checkpoint.memory import MemorySnapshots, NoRoom
from rolemesh_checkpoint.send_log import SendLog
from rolemesh_dataplane.codec import encode, flatten
from rolemesh_dataplane.transports import TransportError
from rolemesh_durable.agent.persister import Persister
from rolemesh_durable.extensions.replicas.replication import Replication
from rolemesh_durable.protocol.messages import Persisted
from rolemesh_runtime.syncing import sync_folder

__all__ = ["INVARIANTS", "Storage", "Violation"]

INVARIANTS = (
    "a complete checkpoint is intact",
    "a complete checkpoint is of one history",
    "a checkpoint that was completed survives",
    "foreign files stay",
    "nothing ends a thread",
    "nothing wedges",
    "the newest snapshot stays",
    "what is claimed to be replicated is there",
)
ROLE = "work"
EVERY = 4
"""Number of steps between two persisted snapshots."""


class Violation(AssertionError):
    """An invariant does not hold."""


class Life(NamedTuple):
    """A process of a rank."""

    timeline: int
    generation: int
    resume: int


class Rank:
    """One rank: what it has done in each of its lives, and its process now."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.lives = [Life(0, 0, -1)]
        self.step = self.snapshot = -1
        self.tokens: dict[int, int] = {}
        """Step → the state after it, in the present history."""
        self.memory: MemorySnapshots
        self.log: SendLog

    @property
    def life(self) -> Life:
        return self.lives[-1]

    def died(self) -> None:
        """As the process ends; its files stay."""
        for each in (getattr(self, "memory", None), getattr(self, "log", None)):
            if each is not None:
                each.close()


class Agent:
    """One agent's incarnation: the real persister and the real replication over its folder."""

    def __init__(self, world: Storage, number: int) -> None:
        self.world, self.number = world, number
        self.shm = world.files.memory / f"node{number}"
        self.shm.mkdir(exist_ok=True)
        self.timeline = world.timelines[number]
        self.incarnation = world.count()
        self.address = f"agent{number}#{self.incarnation}"
        self.told: set[str] = set()
        """The attempts of which it has told the master."""
        self.persister = Persister(self.shm, world.run_dir, {ROLE: len(world.ranks)}, self.timeline)
        self.replication = Replication(self.shm, self.address, self._send, self.timeline)

    def _send(self, address: str, kind: bytes, body: Any) -> None:
        self.world.link.append((self.address, address, kind, msgspec.msgpack.encode(body), None))

    def died(self) -> None:
        """As the process ends; its files stay."""
        self.persister.close()


class Storage:
    """One schedule. `step` lets somebody act; it raises `Violation`."""

    def __init__(self, seed: int, *, traced: bool = False) -> None:
        self.rng = random.Random(seed)
        self.root = Path(tempfile.mkdtemp(prefix="storage-", dir="/dev/shm"))
        self.files = FileSystem(self.root, self.rng)
        self.files.meanwhile = self._meanwhile
        self.run_dir = self.files.disk / "run"
        self.now = 0.0
        self.trace: list[str] | None = [] if traced else None
        self._count = 0
        self._nested = 0
        self.link: list[tuple[str, str, bytes, bytes, bytes | None]] = []
        self.ranks = [Rank(number) for number in range(self.rng.randint(1, 3))]
        self.apart, self.quick, self.busy = self.rng.choice(((14, 8, (1, 1)), (30, 20, (9, 1))))
        """How far a rank may be ahead of another, how often ranks take steps, and how often each agent's disk."""
        self.timelines = dict.fromkeys(range(2), 0)
        self.agents: dict[int, Agent] = {}
        self.homes = {rank.number: rank.number % 2 for rank in self.ranks}
        self.timeline = 0
        self.parts: dict[int, dict[int, Persisted]] = {}
        self.covered = -1
        self.claimed: dict[int, dict[int, int]] = {}
        """The checkpoints that are complete: what each rank's state in them is."""
        self._history: dict[tuple[int, int], dict[int, tuple[Life, int]]] = {}
        self._working: set[int] = set()

    def __enter__(self) -> Storage:
        self._mounted = contextlib.ExitStack()
        self._mounted.enter_context(self.files.mounted())
        self._mounted.enter_context(patch.object(log, "SEGMENT_BYTES", 4096))  # so that there are several
        names = random.Random(self.rng.random())
        self._mounted.enter_context(patch.object(uuid, "uuid4", lambda: uuid.UUID(int=names.getrandbits(128))))
        disk.snapshots_folder(self.run_dir).mkdir(parents=True)
        self.foreign = [disk.snapshots_folder(self.run_dir) / "notes.txt", self.run_dir / "theirs"]
        for number in self.timelines:
            self.agents[number] = Agent(self, number)
            self.foreign.append(self.agents[number].shm / "snap-notes")
        for path in self.foreign:
            path.write_text("theirs")
        for path in (*self.foreign, *(each.parent for each in self.foreign), self.files.disk):
            if path.is_relative_to(self.files.disk):
                sync_folder(path) if path.is_dir() else _sync(path)
        self._wire()
        for rank in self.ranks:
            self._open(rank)
        return self

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.died()
        for agent in self.agents.values():
            agent.died()
        self._mounted.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def count(self) -> int:
        """A number that nobody else has."""
        self._count += 1
        return self._count

    def note(self, text: str) -> None:
        """A line of the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.now:7.2f} {'  ' * self._nested}{text.replace(str(self.root), '')}")

    def fail(self, invariant: str, why: str) -> None:
        """An invariant does not hold."""
        assert invariant in INVARIANTS, invariant
        self.note(f"VIOLATION {invariant}: {why}")
        raise Violation(f"{invariant}: {why}")

    # --------------------------------------------------------------------------------------------------------- turns

    def step(self, *, faults: bool) -> None:
        """Somebody acts."""
        self.now += self.rng.random() * 0.3
        acts: list[tuple[float, Callable[[], None]]] = [
            (self.quick, self._rank_step),
            (10, self._sample),
            (6, self._work),
            (30, self._deliver),
            (10, self._tick),
        ]
        if faults:
            acts += [(4, self._restart_rank), (0.5, self._restart_agent), (1, self._go_back), (2, self._weather)]
            acts += [(0.3, self._power_cut)]
        weights, calls = zip(*acts, strict=True)
        self.rng.choices(calls, weights)[0]()

    def _meanwhile(self) -> None:
        """A call on the disk takes long: others act before it goes on, also what voids what it is for."""
        if self._nested < 2:
            self._nested += 1
            try:
                acts = [self._rank_step, self._sample, self._work, self._restart_rank, self._go_back, self._deliver]
                for _ in range(self.rng.randint(1, 4)):
                    self.rng.choices(acts, (4, 4, 4, 2, 1, 2))[0]()
            finally:
                self._nested -= 1

    def settle(self) -> None:
        """No more faults: within some turns all is copied, a new checkpoint is complete, and no warning is left."""
        self.files.full.clear()
        self.files.refuses = self.files.slow = 0.0
        began = max(rank.step for rank in self.ranks)
        for _ in range(3000):
            self.step(faults=False)
            warnings = [why for agent in self.agents.values() if (why := agent.persister.warning)]
            if self.covered > began and all(self._copied(rank) > began for rank in self.ranks) and not warnings:
                break
        else:
            copies = [self._copied(rank) for rank in self.ranks]
            self.fail("nothing wedges", f"checkpoint {self.covered}, copies {copies} of {began}, warnings {warnings}")
        self.look()

    # --------------------------------------------------------------------------------------------------------- ranks

    def _agent(self, rank: Rank) -> Agent:
        return self.agents[self.homes[rank.number]]

    def _open(self, rank: Rank) -> None:
        life, shm = rank.life, self._agent(rank).shm
        rank.died()
        rank.memory = MemorySnapshots(shm, ROLE, rank.number)
        rank.memory.drop_after(life.resume)
        rank.log = SendLog(shm, ROLE, rank.number, generation=life.generation, resume=life.resume)
        rank.step = rank.snapshot = life.resume
        rank.tokens = {step: token for step, token in rank.tokens.items() if step <= life.resume}

    def _rank_step(self) -> None:
        rank = self.rng.choice(self.ranks)
        if rank.step > min(other.step for other in self.ranks) + self.apart:
            return
        step, persist = rank.step + 1, (rank.step + 2) % EVERY == 0
        token = self.count()
        header, buffers = encode(np.full(2, token))
        body = flatten(header, [len(buffer) for buffer in buffers], buffers)
        before = rank.memory.steps()
        try:
            rank.log.chunk(0, step, 0, True, 2, (0,), body, len(header), len(buffers))
            rank.step = step
            rank.tokens[step] = token
            self._history.setdefault((rank.number, step), {})[token] = (rank.life, rank.step)
            size = self.rng.choice((64, 64, 64, 5000))
            rank.memory.write(step, {"x": np.full(size, token)}, log=rank.log.position, persist=persist)
            rank.snapshot = step
        except (NoRoom, TransportError, OSError) as error:
            self.note(f"rank {rank.number} has no room at {step}: {error}")
        rank.log.trim(step - 16, step - 16, rank.memory.pinned())
        newest = max(before, default=-1)
        if newest >= 0 and newest not in rank.memory.steps():
            self.fail("the newest snapshot stays", f"rank {rank.number}: {newest} is not in {rank.memory.steps()}")
        for kept in rank.memory.steps():
            if rank.memory.read(kept).state["x"][0] != rank.tokens[kept]:  # type: ignore[index]
                self.fail("the newest snapshot stays", f"rank {rank.number}: {kept} is another")

    def _restart_rank(self) -> None:
        """A rank dies and goes on from a snapshot that it has; sometimes from the older one, as in a group."""
        rank = self.rng.choice(self.ranks)
        steps = [step for step in rank.memory.steps() if step >= 0]
        if steps:
            self._restart(rank, self.rng.choice((steps[0], self.rng.choice(steps))))

    def _restart(self, rank: Rank, step: int) -> None:
        life = Life(self.timeline, rank.life.generation + 1, step)
        self.note(f"rank {rank.number} goes on from {step} as {life}")
        rank.log.close()
        rank.lives.append(life)
        for at, parts in self.parts.items():  # MasterMachine.went_back
            if at > step:
                parts.pop(rank.number, None)
        agent = self._agent(rank)
        agent.persister.restarted(ROLE, rank.number, step, life.generation)
        agent.replication.offers.restarted(ROLE, rank.number, step, life.generation)
        with contextlib.suppress(TransportError, OSError, NoRoom):
            self._open(rank)
            return
        self.files.full.clear()  # a start that finds no room is tried again until there is some
        self._open(rank)

    # -------------------------------------------------------------------------------------------------------- agents

    def _wire(self) -> None:
        first, second = self.agents[0], self.agents[1]
        first.replication.offers.connect(second.address)
        second.replication.offers.connect(first.address)

    def _sample(self) -> None:
        """An agent looks at its ranks, and reports."""
        agent = self.agents[self.rng.randrange(2)]
        for rank in self.ranks:
            if self._agent(rank) is agent and rank.snapshot >= 0 and agent.timeline == self.timeline:
                agent.persister.look(ROLE, rank.number)
                agent.replication.offers.offer(ROLE, rank.number, rank.snapshot)
                self._copied(rank)
        if agent.timeline == self.timeline:
            agent.persister.forget(self.covered)
            told = agent.persister.results()
            agent.told |= (there := {part.attempt for part in told})
            for parts in self.parts.values():
                for number, part in list(parts.items()):
                    if part.attempt in agent.told - there:  # it has given that set up
                        del parts[number]
            for part in told:
                self._persisted(part)

    def _work(self) -> None:
        agent = self.agents[self.rng.choices((0, 1), self.busy)[0]]
        if agent.incarnation in self._working:
            return  # its thread is in the call that takes so long
        self._working.add(agent.incarnation)
        try:
            agent.persister.work()
        except Violation:
            raise
        except Exception as error:
            self.fail("nothing ends a thread", f"persister: {type(error).__name__}: {error}")
        finally:
            self._working.discard(agent.incarnation)

    def _tick(self) -> None:
        for agent in self.agents.values():
            try:
                agent.replication.tick(self.now)
            except Exception as error:
                self.fail("nothing ends a thread", f"replicas: {type(error).__name__}: {error}")

    def _deliver(self) -> None:
        """A message arrives; or is lost, or comes twice, or after later ones."""
        for _ in range(min(len(self.link), 20)):
            at = 0 if self.rng.random() < 0.8 else self.rng.randrange(len(self.link))
            source, target, kind, body, answer = self.link.pop(at)
            agent = next((each for each in self.agents.values() if each.address == target), None)
            if agent is None or (self.rng.random() < 0.03 and self._nested == 0):
                continue
            for _ in range(2 if self.rng.random() < 0.05 else 1):
                try:
                    if answer is not None:
                        agent.replication.answered(kind, body, answer, self.now)
                    elif (data := agent.replication.asked(kind, body, self.now)) is not None:
                        self.link.append((target, source, kind, body, data))
                except Exception as error:
                    self.fail("nothing ends a thread", f"replicas: {type(error).__name__}: {error}")

    def _copied(self, rank: Rank) -> int:
        """How far a rank is copied, as its agent says; what it says must be there."""
        agent, life = self._agent(rank), rank.life
        step = agent.replication.offers.copied(ROLE, rank.number, agent.timeline, life.generation, life.resume)
        if step < 0 or agent.timeline != self.timeline:
            return -1
        other = self.agents[1 - agent.number]
        if other.timeline != self.timeline or agent.replication.offers.next != other.address:
            return step
        kept = [s for stored in other.replication.held if stored.rank == rank.number for s in stored.steps]
        valid = [s for s in kept if s >= step and self._kept_is(other, rank, s)]
        if not valid:
            self.fail("what is claimed to be replicated is there", f"rank {rank.number}: {step} is not in {kept}")
        return step

    def _kept_is(self, agent: Agent, rank: Rank, step: int) -> bool:
        image = agent.replication._store.image(ROLE, rank.number, step)
        if image is None:
            return False
        data = np.frombuffer(agent.replication._store.path(image, "state").read_bytes()[-8:], np.int64)
        return int(data[0]) == rank.tokens.get(step)

    def _restart_agent(self) -> None:
        """An agent dies with its ranks, and the next incarnation takes the folder over."""
        number = self.rng.randrange(2)
        if self.agents[number].incarnation in self._working:
            return
        self.note(f"agent {number} is started again")
        self.agents[number].died()
        self.agents[number] = Agent(self, number)
        self._wire()
        for rank in self.ranks:
            if self.homes[rank.number] == number:
                self._restart(rank, max(rank.memory.steps(), default=-1))

    # -------------------------------------------------------------------------------------------------------- master

    def _persisted(self, part: Persisted) -> None:
        rank = self.ranks[part.rank]
        if (part.timeline, part.generation) != (self.timeline, rank.life.generation) or part.step <= self.covered:
            return
        parts = self.parts.setdefault(part.step, {})
        parts[part.rank] = part
        if len(parts) == len(self.ranks):
            self._complete(part.step, dict(parts))

    def _complete(self, step: int, parts: dict[int, Persisted]) -> None:
        files = {name: at for part in parts.values() for name, at in part.files.items()}
        attempts = {name: part.attempt for part in parts.values() for name in part.files}
        manifest = disk.Manifest("job", "job-1", step, 1000, {ROLE: len(self.ranks)}, files)
        tokens = {rank.number: rank.tokens.get(step, -1) for rank in self.ranks}
        timeline = self.timeline
        try:
            folder = disk.write_manifest(self.run_dir, manifest, attempts)
        except SnapshotError as error:
            self.parts.pop(step, None)
            if not self._nested and not self.files.refuses and disk.newest_complete(self.run_dir) < step:
                self.fail("nothing wedges", f"checkpoint {step}: {error}")
            return
        except OSError as error:
            self.note(f"checkpoint {step} is not complete: {error}")
            self.parts.pop(step, None)
            return
        self.note(f"checkpoint {step} is complete")
        if timeline == self.timeline:
            self.covered = max(step, self.covered)
            self.claimed[step] = tokens
        self.parts = {at: known for at, known in self.parts.items() if at > step}
        with self.files.fair():
            if problems := disk.verify(folder):
                self.fail("a complete checkpoint is intact", f"{step}: {problems}")
            if timeline == self.timeline:
                self._is_of_one_history(folder, step, tokens)
        with contextlib.suppress(OSError):
            disk.prune(self.run_dir, 2)

    def _is_of_one_history(self, folder: Path, step: int, tokens: dict[int, int]) -> None:
        for number, token in tokens.items():
            found = disk.load(folder, ROLE, number, len(self.ranks), lambda: None).state
            if found is None or found["x"][0] != token:
                was = None if found is None else self._history[number, step].get(int(found["x"][0]))
                self.fail("a complete checkpoint is of one history", f"rank {number} at {step}: {was} is not {token}")

    def _go_back(self) -> None:
        """The whole job goes back to the disk; agents hear of it, and ranks start again from there."""
        if self._nested and self.rng.random() < 0.5:
            return
        refuses, self.files.refuses = self.files.refuses, 0.0
        slow, self.files.slow = self.files.slow, 0.0  # nobody takes a step while all ranks are being restored
        found, _ = disk.newest_intact(self.run_dir)
        step = found.step if found is not None else -1
        self.timeline += 1
        self.note(f"the job goes back to {step}, timeline {self.timeline}")
        self.covered = step
        self.parts.clear()
        for number, agent in self.agents.items():
            self.timelines[number] = agent.timeline = self.timeline
            for rank in self.ranks:
                if self._agent(rank) is agent:
                    rank.memory.clear()
            agent.persister.forget_timeline(self.timeline)
            agent.replication.forget(self.timeline)
        for rank in self.ranks:
            rank.tokens = {}
            rank.log.close()
            SendLog.remove(self._agent(rank).shm, ROLE, rank.number)
            self._restart(rank, step)
            if found is not None:
                state = disk.load(found.path, ROLE, rank.number, len(self.ranks), lambda: None).state
                assert state is not None
                rank.tokens[step] = int(state["x"][0])
                with contextlib.suppress(NoRoom):
                    rank.memory.write(step, state, log=rank.log.position, persist=False)
        self.files.refuses, self.files.slow = refuses, slow

    # -------------------------------------------------------------------------------------------------------- faults

    def _weather(self) -> None:
        """The disk, or a node's memory, is full, or refuses, or is slow; or it is well again."""
        rng, files = self.rng, self.files
        match rng.randrange(5):
            case 0:
                files.full ^= {files.disk}
            case 1:
                files.full ^= {self.agents[rng.randrange(2)].shm}
            case 2:
                files.refuses = rng.choice((0.0, 0.05))
            case 3:
                files.slow = rng.choice((0.0, 0.1, 0.4))
            case 4:
                files.full.clear()
        self.note(f"full {sorted(path.name for path in files.full)}, refuses {files.refuses}, slow {files.slow}")

    def _power_cut(self) -> None:
        """All is lost but what is durable on the disk; the job is resumed."""
        if self._nested or self._working:
            return
        self.note("the power is cut")
        expected = max((step for step in self.claimed if step <= self.covered), default=-1)
        self.files.crash()
        full, self.files.full = self.files.full, set()
        slow, self.files.slow = self.files.slow, 0.0
        refuses, self.files.refuses = self.files.refuses, 0.0  # else the job is resumed later
        found, passed_over = disk.newest_intact(self.run_dir)
        self.files.refuses = refuses
        if self.covered in self.claimed and (found is None or found.step < expected):
            newest = found.step if found is not None else None
            self.fail(
                "a checkpoint that was completed survives", f"{expected} is complete, {newest} is there: {passed_over}"
            )
        for number in self.agents:
            self.agents[number].died()
            for path in self.agents[number].shm.iterdir():
                if path.name != "snap-notes":
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            self.agents[number] = Agent(self, number)
        self._wire()
        self._go_back()
        self.files.full, self.files.slow = full, slow

    def look(self) -> None:
        """Check the invariants that hold at all times."""
        for path in self.foreign:
            if not path.exists() or path.read_text() != "theirs":
                self.fail("foreign files stay", str(path.relative_to(self.root)))
        refuses, slow = self.files.refuses, self.files.slow
        self.files.refuses = self.files.slow = 0.0  # who looks is no part of the job
        for each in disk.find_checkpoints(self.run_dir):
            if each.manifest is not None and (problems := disk.verify(each.path)):
                self.fail("a complete checkpoint is intact", f"{each.step}: {problems}")
        self.files.refuses, self.files.slow = refuses, slow


def _sync(path: Path) -> None:
    import os

    fd = os.open(path, os.O_RDONLY)
    os.fsync(fd)
    os.close(fd)
