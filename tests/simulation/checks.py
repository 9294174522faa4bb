"""What must hold in every schedule; a breach is a `Violation` at the moment at which it happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from tests.simulation.model import SHARDS, RankKey, State

from rolemesh.api.observer import Event, StepMetrics
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.master.checkpoint import Checkpoint
from rolemesh_durable.protocol.master.state import JobState

if TYPE_CHECKING:
    from tests.simulation.agent import SimAgent
    from tests.simulation.rank import OutEdge, SimRank
    from tests.simulation.world import World

    from rolemesh_durable.protocol.edge import Kept

__all__ = ["INVARIANTS", "Checks"]

INVARIANTS = (
    "a failed job tells its trail",
    "asks are answered",
    "compaction forgets nothing",
    "each line once",
    "each shard once",
    "generations grow",
    "memory is forgotten once a timeline",
    "no deadlock",
    "no step is skipped",
    "nothing is restored before the commit",
    "nothing restarts without a failure",
    "one epoch acts",
    "one process of a rank",
    "restored from what there is",
    "rolled back to what is whole",
    "sets are of one history",
    "sets are whole",
    "steps are committed once",
    "the job ends as it must",
    "the ladder ends",
    "the smallest restart",
    "the state is the undisturbed run's",
    "what is committed can be restored",
    "what is journalled is what is so",
    "who works comes through",
)
"""What holds in every schedule, by the names under which a violation is reported."""


class Checks:
    """The invariants of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.committed = -1
        self.timeline = 0
        self.epoch = 0
        self.lines: list[int] = []
        self.recoveries = 0
        self.levels: list[str] = []
        self.restarted: list[tuple[str, tuple[str, ...]]] = []
        self.kinds: dict[str, int] = {}
        self.trail: list[str] = []
        self.used: dict[RankKey, tuple[int, ...]] = {}
        self._generations: dict[RankKey, int] = {}
        self._epochs: dict[str, int] = {}
        self._restarts: dict[RankKey, list[tuple[int, int]]] = {}

    # --------------------------------------------------------------------------------------------------- the journal

    def recorded(self, event: Event) -> None:
        """A record has been written."""
        world = self.world
        self.kinds[event.kind] = self.kinds.get(event.kind, 0) + 1
        world.note(f"journal {event.epoch}", f"{event.kind} {brief(event.data)}")
        if event.epoch < self.epoch:
            world.fail("one epoch acts", f"epoch {event.epoch} writes after epoch {self.epoch}")
        self.epoch = event.epoch
        data = event.data
        match event.kind:
            case "committed":
                self._commit(data["step"])
            case "rolled_back":
                self.timeline += 1
                self.committed = data["step"]
                if data["step"] != world.disk.newest():
                    world.fail("rolled back to what is whole", f"step {data['step']} is not the newest set on disk")
            case "recovery_planned":
                self.recoveries += 1
                self.levels.append(data["plan"]["level"])
                if self.recoveries > world.scenario.max_recoveries:
                    world.fail("the ladder ends", f"{self.recoveries} recoveries")
            case "ladder_exhausted":
                self.trail = data["trail"]
            case "recovery_launched":
                for rank in data["ranks"]:
                    self._launched(rank)
            case "recovered":
                self.restarted.append((data["level"], tuple(data["restarted"])))
        world.scenario.nemesis.recorded(world, event)

    def _commit(self, step: int) -> None:
        world = self.world
        if step <= self.committed:
            world.fail("steps are committed once", f"step {step} after step {self.committed}")
        self.committed = step
        for key in world.job.keys:
            kept = {memory.node: (*memory.steps(key), *memory.copies.get(key, ())) for memory in world.memories()}
            best = max((at for steps in kept.values() for at in steps), default=-1)
            if best < step and not world.wiped:
                world.fail("what is committed can be restored", f"{key} has only {best}, {step} is committed")
            on_disk = world.disk.newest() >= step
            if world.scenario.plan.replicas and not on_disk and not world.wiped and len(world.backend.agents) > 1:
                homes = {node for node, steps in kept.items() if any(at >= step for at in steps)}
                if len(homes) < 2:
                    world.fail("what is committed can be restored", f"{key}: step {step} is on {homes} only")

    def complete(self, step: int, parts: tuple[m.Persisted, ...]) -> None:
        """The master has a set completed."""
        for part in parts:
            key = part.role, part.rank
            if part.timeline != self.timeline:
                self.world.fail("sets are of one history", f"{key} at {step} is of timeline {part.timeline}")
            for generation, resume in self._restarts.get(key, ()):
                if generation > part.generation and resume < step:
                    self.world.fail(
                        "sets are of one history",
                        f"{key} at {step} is of generation {part.generation}, {generation} goes on from {resume}",
                    )

    def replayed(self, kept: Checkpoint, whole: Checkpoint) -> None:
        """A new master has read what is kept of the journal; `whole` is what all of it would have told."""
        for name in kept.__struct_fields__:
            if (mine := getattr(kept, name)) != (should := getattr(whole, name)):
                self.world.fail("compaction forgets nothing", f"{name}: {mine} instead of {should}")

    def told(self, master: JobState, journal: JobState) -> None:
        """A master has journalled its turn: who reads the journal must come to the state that the master is in."""
        mine, should = Checkpoint.of(master), Checkpoint.of(journal)
        for name in mine.__struct_fields__:
            if (told := _told(name, getattr(mine, name))) != (read := _told(name, getattr(should, name))):
                self.world.fail("what is journalled is what is so", f"{name}: {told}, the journal tells {read}")

    def _launched(self, rank: dict[str, Any]) -> None:
        key = rank["role"], rank["rank"]
        self._restarts.setdefault(key, []).append((rank["generation"], rank["resume"]))
        if rank["resume"] < self.committed:
            self.world.fail(
                "nothing is restored before the commit",
                f"{rank['role']}/{rank['rank']} goes on from {rank['resume']}, {self.committed} is committed",
            )

    # --------------------------------------------------------------------------------------------------------- agents

    def obeyed(self, agent: SimAgent, message: m.MasterToAgent, effects: list[ae.Effect]) -> None:
        """An agent has acted on a master's message."""
        newest = self._epochs.get(agent.uid, -1)
        acts = [e for e in effects if not isinstance(e, ae.ToMaster | ae.ReviveMaster | ae.RankDied)]
        if message.epoch < newest and acts:
            self.world.fail("one epoch acts", f"{agent.label} obeys epoch {message.epoch} after epoch {newest}: {acts}")
        self._epochs[agent.uid] = max(newest, message.epoch)

    # ---------------------------------------------------------------------------------------------------------- ranks

    def forked(self, rank: SimRank) -> None:
        """A process starts."""
        world = self.world
        self._alone(rank)
        known = self._generations.get(rank.key, -1)
        if rank.generation <= known:
            world.fail("generations grow", f"{rank.name} starts after generation {known}")
        self._generations[rank.key] = rank.generation
        if rank.launch.resume < self.committed and rank.generation == self._generations[rank.key]:
            world.fail("nothing is restored before the commit", f"{rank.name} goes on from {rank.launch.resume}")

    def owns(self, rank: SimRank) -> None:
        """A rank touches its memory."""
        self._alone(rank)

    def _alone(self, rank: SimRank) -> None:
        for other in self.world.processes.values():
            if other is not rank and other.key == rank.key and other.agent.memory is rank.agent.memory and other.alive:
                self.world.fail("one process of a rank", f"{rank.name} and {other.name} live on {rank.agent.name}")

    def restored(self, rank: SimRank) -> None:
        """A rank has its state back."""
        self._as_undisturbed(rank, rank.launch.resume)

    def snapshot(self, rank: SimRank, step: int) -> None:
        """A snapshot is complete."""
        self._as_undisturbed(rank, step)

    def _as_undisturbed(self, rank: SimRank, step: int) -> None:
        expected = self.world.after[step][rank.key] if step >= 0 else State()
        if rank.mind.kind != "stateless" and rank.mind.state != expected:
            self.world.fail(
                "the state is the undisturbed run's",
                f"{rank.name} after step {step}: {rank.mind.state}, not {expected}",
            )

    def done(self, rank: SimRank) -> None:
        """A rank has finished all steps."""
        self.used[rank.key] = tuple(rank.mind.state.seen)
        self._as_undisturbed(rank, self.world.job.steps - 1)

    def answered(
        self, rank: SimRank, way: OutEdge, consumer: int, generation: int, from_step: int, kept: list[Kept[Any]]
    ) -> None:
        """A producer has answered an ask: all it has made and the consumer lacks must be there."""
        if generation < way.state._generations[consumer]:
            return
        job, edge = rank.job, way.edge
        there = {item.step for item in kept}
        floor = max(from_step, rank.launch.origin_step + 1 if rank.launch.restore != "memory" else from_step)
        for step in range(floor, rank.finished + 1):
            if job.activity.consumed(edge, step, job.steps) and step not in there:
                self.world.fail(
                    "asks are answered",
                    f"{rank.name} has no value of step {step} of edge {edge.id} for rank {consumer}, "
                    f"which asks from {from_step} on",
                )

    # ------------------------------------------------------------------------------------------------------- metrics

    def published(self, line: StepMetrics) -> None:
        """A line of metrics has been written."""
        if line.step != len(self.lines):
            self.world.fail("each line once", f"line {line.step} after {len(self.lines)} lines")
        for label, values in line.operators.items():
            if values["n"] > self.world.job.sizes[label.partition(".")[0]]:
                self.world.fail("each line once", f"line {line.step} counts a rank twice: {label} {values}")
        self.lines.append(line.step)

    # ---------------------------------------------------------------------------------------------------------- the end

    def ended(self) -> None:
        """The job is over."""
        world = self.world
        if world.ended not in world.scenario.outcomes:
            world.fail("the job ends as it must", f"{world.ended}: {world.message}")
        if world.ended == "failed":
            if not self.trail:
                world.fail("a failed job tells its trail", repr(world.message))
            return
        self.final_state()
        self.every_shard()
        self.every_line()
        if world.scenario.plan.enabled and self.committed != world.job.steps - 1:
            world.fail("no step is skipped", f"only step {self.committed} is committed")
        world.scenario.expect(world)

    def final_state(self) -> None:
        """What the ranks say of their state at the end."""
        world = self.world
        final = {
            (e.data["role"], e.data["rank"]): e.data["sha256"] for e in world.journal.events if e.kind == "rank_done"
        }
        for key in world.job.keys:
            stateful = world.job.kinds[key[0]] != "stateless"
            expected = repr(world.final[key]) if stateful else ""
            if final.get(key) != expected:
                world.fail("the state is the undisturbed run's", f"{key} ends with {final.get(key)}, not {expected}")

    def every_shard(self) -> None:
        """What has been trained on, in the end."""
        world = self.world
        used = sorted(shard for key, seen in self.used.items() if key[0] in world.scenario.users for shard in seen)
        sources = sum(n for role, n in world.job.sizes.items() if world.job.kinds[role] == "source")
        if world.scenario.users and used != list(range(world.job.steps * SHARDS * sources)):
            world.fail("each shard once", f"{used}")

    def every_line(self) -> None:
        """The lines of metrics."""
        if self.lines != list(range(self.world.job.steps)):
            self.world.fail("each line once", f"the job has ended with lines {self.lines} of {self.world.job.steps}")


def brief(data: dict[str, Any]) -> str:
    """A record's data in one line."""
    text = str({key: value for key, value in data.items() if key not in ("at", "trail", "sha256")})
    return text if len(text) < 400 else text[:400] + "…"


def _told(name: str, value: Any) -> Any:
    """Of a field of a checkpoint what the journal tells: not how far ranks are, and no times, which differ."""
    match name:
        case "ranks":
            return [msgspec.structs.replace(rank, finished=0, durable=0) for rank in value]
        case "recovery" if value is not None:
            return msgspec.structs.replace(value, phase="halting", since=0.0, asked=None, waiting="", begun=0.0)
        case "attempts":
            return [msgspec.structs.replace(each, at=0.0, ended_at=0.0) for each in value]
        case "last" | "refused" | "clock":
            return None
    return value
