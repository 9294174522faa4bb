"""A simulated agent: the real `AgentMachine`, and what its shell does for it with processes, memory and disk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from tests.simulation.memory import Image, NodeMemory
from tests.simulation.model import GROUPS
from tests.simulation.rank import SimRank

from rolemesh.api.rank_ref import RankRef
from rolemesh_checkpoint.persisting import shared_by_mates
from rolemesh_durable.extensions.checks.messages import Measure, Measured, NodeMeasured
from rolemesh_durable.extensions.hangs.messages import Dump, Stacks
from rolemesh_durable.extensions.replicas.messages import Copying, CopyTo
from rolemesh_durable.extensions.replicas.ring import NextAgent
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.extension_message import Sealed, tag_of

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["SimAgent"]

SAMPLE_S = 0.1
LEASE_S = 10.0


class SimAgent:
    """One incarnation of an agent."""

    def __init__(self, world: World, name: str, node: str, incarnation: int) -> None:
        self.world, self.name, self.node, self.incarnation = world, name, node, incarnation
        self.uid = world.uid()
        self.label = f"{name}#{incarnation}"
        self.alive, self.frozen, self.swept = True, False, False
        self.cut = float("inf")
        self.memory: NodeMemory = world.memory(name, node)
        self.ranks: dict[RankRef, SimRank] = {}
        self.copied: dict[RankRef, tuple[str, int]] = {}
        self.copying: set[RankRef] = set()
        self.persisting: dict[tuple[RankRef, int], str] = {}
        self.generations: dict[RankRef, int] = {}
        self.persisted: dict[tuple[RankRef, int], m.Persisted] = {}
        self.warning = ""
        self.parts: dict[str, Sealed] = {}
        self.next = NextAgent()
        self._measures = False
        self.covered = -1
        self._later: list[ae.Event] = []
        self._cancelled: set[tuple[str, int, int]] = set()
        found = self._take_over()
        self.machine = world.backend.agent_machine(name, node, LEASE_S, incarnation, self.memory, found)
        world.at(world.between(0.0, 0.05), self._sample)

    def _take_over(self) -> list[ae.Found]:
        """Take over the ranks of an earlier incarnation, which is dead; return what this one finds."""
        memory, before = self.memory, self.memory.owner
        if before is not None:
            before.replaced()
        memory.owner = self
        found = []
        for key, rank in memory.ranks.items():
            who = (key, rank.generation)
            exited = None
            if who in memory.ends:
                signal, code = memory.ends[who]
                exited = ae.RankExited(*key, rank.generation, code, signal, snapshots=memory.steps(key))
            elif not rank.alive:
                continue
            self.ranks[key], rank.agent = rank, self
            if exited is None:
                self.generations[key] = rank.generation
            found.append(
                ae.Found(rank.launch, tuple(memory.said.get(who, ())), exited, memory.granted.get(rank.key, -1))
            )
        self.world.note(self.label, f"adopts {[rank.name for rank in self.ranks.values() if rank.alive]}")
        return found

    @property
    def known(self) -> bool:
        """Whether the master has heard of it, or of an earlier incarnation."""
        return self.incarnation > 1 or self.machine._epoch >= 0

    def replaced(self) -> None:
        """Another incarnation takes over: whatever this one is at, it is killed before."""
        self.end("a new incarnation takes over")

    # ------------------------------------------------------------------------------------------------------- events

    def handle(self, event: ae.Event) -> None:
        """An event of the machine, at once or when the process runs again."""
        if not self.alive:
            return
        if self.frozen:
            self._later.append(event)
            return
        checks = self.world.checks
        effects = self.machine.handle(event, self.world.now * self.world.scenario.rates.get(self.name, 1.0))
        if isinstance(event, ae.FromMaster):
            self._look_into(event.message)
            checks.obeyed(self, event.message, effects)
        for effect in effects:
            self._do(effect)

    def _look_into(self, message: m.MasterToAgent) -> None:
        machine = self.machine
        if isinstance(message, m.Watermarks) and machine.advance is not None:
            self.covered = max(self.covered, machine.advance.persisted)
            self.persisted = {at: part for at, part in self.persisted.items() if at[1] > self.covered}
            for snaps in self.memory.snaps.values():
                for step, snap in snaps.items():
                    snap.pinned = snap.pinned and step > self.covered

    def receive(self, message: m.RankToAgent) -> None:
        """A rank's message."""
        self.handle(ae.FromRank(message))

    def from_master(self, message: m.MasterToAgent) -> None:
        """The network brings a message of some master."""
        self.handle(ae.FromMaster(message))

    def thaw(self) -> None:
        """Go on after a SIGSTOP."""
        self.frozen = False
        later, self._later = self._later, []
        for event in later:
            self.handle(event)

    def _sample(self) -> None:
        if not self.alive:
            return
        if self.frozen:
            self.world.at(SAMPLE_S, self._sample)
            return
        self._persist()
        self._replicate()
        status_pages = tuple(self._status_page(rank) for rank in self.ranks.values() if rank.alive)
        left = [
            m.Stored(*key, self.memory.steps(key))
            for key, snaps in self.memory.snaps.items()
            if key not in self.ranks and snaps
        ]
        copies = [m.Stored(*key, tuple(sorted(kept)), copy=True) for key, kept in self.memory.copies.items()]
        stored = (*left, *copies)
        parts = tuple(
            msgspec.structs.replace(part, generation=self.generations.get(key, 0))
            for (key, _), part in self.persisted.items()
        )
        said = self.warning, (), 0, self.memory.failed_at, self.name, tuple(self.parts.values())
        self.handle(ae.Sampled(status_pages, stored, parts, *said))
        self.world.at(SAMPLE_S + self.world.rng.random() * 0.02, self._sample)

    def _status_page(self, rank: SimRank) -> ae.RankSample:
        return ae.RankSample(
            *rank.key, rank.generation, rank.pid, finished=rank.finished, durable=self._durable(rank), step=rank.step,
            op=rank.op, phase=rank.phase, edge=rank.edge, since_s=self.world.now - rank.since, frozen=rank.frozen,
            layout=rank.layout.number, times={-1: self.world.now} if self.world.scenario.scalers else {},
        )  # fmt: skip

    def _durable(self, rank: SimRank) -> int:
        if rank.snapshot < 0 or not self.world.scenario.plan.replicas:
            return rank.snapshot
        return self.next.durable(rank.snapshot, self.copied.get(rank.key, ("", -1))[1])

    # ------------------------------------------------------------------------------------------------------ effects

    def _do(self, effect: ae.Effect) -> None:
        world = self.world
        match effect:
            case ae.ToMaster(message):
                world.deliver(world.backend.to_master, self.name, message)
            case ae.ToRank(role, n, message):
                ref = RankRef(role, n)
                target = self.ranks.get(ref)
                world.checks.commands(self)
                if isinstance(message, m.Watermarks):
                    self.memory.granted[ref] = max(message.granted, self.memory.granted.get(ref, -1))
                world.send(self, target, message)
            case m.ToPart(message=message):
                self._to_part(message)
            case ae.Fork(launch):
                world.at(world.between(0.002, 0.05), self._fork, launch)
            case ae.Fetch(launch):
                world.at(world.between(0.01, 0.3), self._fetch, launch)
            case ae.Kill(role, n, generation):
                rank = self.ranks.get(RankRef(role, n))
                world.checks.commands(self)
                if rank is not None and rank.alive and rank.generation == generation:
                    world.at(world.between(0.0, 0.01), rank.die, 9)
                else:
                    self._cancelled.add((role, n, generation))  # it is on its way: it is not to start
            case ae.RankDied() | ae.Relayout():
                pass
            case ae.Forget():
                self._forget(effect)
            case ae.ReviveMaster():
                world.at(world.between(0.01, 0.5), self._revive)
            case ae.Quit():
                self.end("it was told to end, and leaves its ranks to the next one")
            case ae.CleanUp():
                world.note(self.label, "cleans up and ends")
                self.sweep()
                world.wipe(self.node, self.name)
                self.end("it has ended itself")

    def _to_part(self, message: Sealed) -> None:
        """Do the work of the parts: checks measure once, hang detection takes stacks, replicas have a next agent."""
        world = self.world
        if message.name == tag_of(Measure) and not self._measures:
            self._measures = True
            world.at(world.between(0.01, 2.0), self._measure)
        elif message.name == tag_of(Dump):
            rank = message.opened(Dump).start
            stacks = m.FromPart(Sealed.of(Stacks(*rank, "Thread 0x1")))
            world.at(world.between(0.01, 0.5), self.handle, stacks)
        elif message.name == tag_of(CopyTo) and self.next.take(message.opened(CopyTo)):
            confirmation = self.next.confirmation
            assert confirmation is not None
            self.parts = {**self.parts, tag_of(Copying): Sealed.of(confirmation)}

    def _measure(self) -> None:
        speed = self.world.scenario.speeds.get(self.node, 10.0)
        measured = NodeMeasured((Measured("speed", {"x": speed}),))
        self.parts = {**self.parts, tag_of(NodeMeasured): Sealed.of(measured)}

    def _revive(self) -> None:
        self.handle(ae.MasterRevived(self.world.backend.revive()))

    def _forget(self, effect: ae.Forget) -> None:
        self.world.note(self.label, "forgets what is in memory")
        if effect.timeline <= self.memory.timeline:
            self.world.fail(
                "an agent clears its memory once per timeline", f"{self.label}: timeline {effect.timeline} is here"
            )
        for rank in self.ranks.values():
            if rank.alive:
                self.world.fail("a rank has one process", f"{rank.name} lives while its memory is wiped")
        self.memory.snaps.clear()
        self.memory.logs.clear()
        self.memory.decisions.clear()
        self.memory.calls.clear()
        self.memory.copies.clear()
        self.memory.whole.clear()
        self.memory.items.clear()
        self.memory.sure.clear()
        self.memory.timeline = effect.timeline
        self.copied.clear()
        self.persisted.clear()
        self.persisting.clear()
        self.covered = self.memory.failed_at = -1

    def _fork(self, launch: m.RankLaunch) -> None:
        who = launch.start
        if not self.alive and (self.memory.owner is not self or self.swept or self.world.chance(0.5)):
            return  # its zygote has it to do, or not
        if self.alive:
            self.world.checks.commands(self)
        self.world.checks.starts_on(self.node)
        if who in self._cancelled and self.alive:
            self.handle(ae.RankExited(*who, signal=9, snapshots=self.memory.steps(who.ref)))
            return
        fails = self.world.chance(self.world.scenario.start_failures) and not self.world.calm
        if fails or self.world.starves("rank"):
            self.world.note(self.label, f"cannot start {who}")
            self.handle(ae.RankExited(*who, error="no more processes", snapshots=self.memory.steps(who.ref)))
            return
        self.world.note(self.label, f"starts {who} at {launch.resume} from {launch.restore} {launch.replica}")
        snap = self.memory.snaps.get(who.ref, {}).get(launch.resume) if launch.restore == "memory" else None
        due = self.world.scenario.plan.persisted(launch.resume, self.world.job.steps)
        if snap is not None and due and launch.resume > self.covered:
            snap.pinned = True  # its part of the checkpoint may be unreported, or not on disk
        self.generations[who.ref] = launch.generation
        known: dict[tuple[RankRef, int], Any]
        for known in (self.persisting, self.persisted):
            for key, step in list(known):
                if key == who.ref and step > launch.resume:
                    del known[key, step]
        self.ranks[who.ref] = self.memory.ranks[who.ref] = SimRank(self, launch)

    def _fetch(self, launch: m.RankLaunch) -> None:
        if not self.alive:
            return
        who = launch.start
        other = self.world.backend.agents.get(launch.replica)
        image = other.memory.image(who.ref, launch.resume) if other is not None and other.alive else None
        if image is None:
            self.handle(ae.Fetched(*who, error=f"{launch.replica} does not have it"))
            return
        self.memory.install(who.ref, launch.resume, image)
        self.handle(ae.Fetched(*who))

    def process_ended(self, rank: SimRank, signal: int | None, exit_code: int | None) -> None:
        """A process of this agent is gone."""
        self.memory.ends[rank.key, rank.generation] = signal, exit_code
        if not self.alive:
            return
        steps = self.memory.steps(rank.key)
        said = self.memory.said.get((rank.key, rank.generation), ())
        failure = next((each.failure for each in said if isinstance(each, m.RankFailed)), None)
        exited = ae.RankExited(*rank.key, rank.generation, exit_code, signal, snapshots=steps, failure=failure)
        self.world.at(self.world.between(0.01, 0.05), self.handle, exited)

    # ------------------------------------------------------------------------------------------- disk and replicas

    def _persist(self) -> None:
        world = self.world
        for key in list(self.memory.snaps):
            for step in self.memory.pins(key):
                if (key, step) not in self.persisting and (key, step) not in self.persisted:
                    attempt = self.persisting[key, step] = world.uid()
                    world.at(world.between(0.01, world.scenario.disk_s), self._persisted_to, key, step, attempt)

    def _persisted_to(self, key: RankRef, step: int, attempt: str) -> None:
        if self.persisting.get((key, step)) != attempt:
            return  # its rank, or the job, has gone back meanwhile
        del self.persisting[key, step]
        snap = self.memory.snaps.get(key, {}).get(step)
        if not self.alive or snap is None or not snap.pinned:
            return
        if self.world.chance(self.world.scenario.disk_failures) and not self.world.calm:
            # Its checkpoint cannot become complete any more: the next one is tried.
            self.warning, self.memory.failed_at = "No space left on device", max(step, self.memory.failed_at)
            for other in list(self.memory.snaps):
                self.persisted.pop((other, step), None)
                if step in self.memory.snaps[other]:
                    self.memory.snaps[other][step].pinned = False
            return
        if step > self.memory.failed_at:
            self.warning = ""
        self.world.disk.write(
            step, key, attempt, snap.state, self.memory.logs.get(key, []), self.memory.lines.get(key, {})
        )
        self.persisted[key, step] = m.Persisted(*key, step, {}, self.memory.timeline, attempt=attempt)

    def _replicate(self) -> None:
        world = self.world
        if not world.scenario.plan.replicas:
            return
        partner = world.backend.agents.get(self.next.address)
        if partner is None or not partner.alive or partner.node == self.node:
            return
        for rank, step in self._round():
            if self.copied.get(rank.key) == (partner.label, step):
                continue
            if (image := self.memory.image(rank.key, step)) is not None and step in self.memory.snaps.get(rank.key, {}):
                self.copying.add(rank.key)
                took = world.between(0.01, world.scenario.copy_s)
                world.at(took, self._copied_to, rank, step, image, self.memory.timeline, partner)

    def _round(self) -> list[tuple[SimRank, int]]:
        """Return the ranks and steps to copy next. Mates copy together the newest step that all have."""
        waiting: list[tuple[SimRank, int]] = []
        for key, rank in self.ranks.items():
            mates = [key]
            if self.world.job.kinds[key[0]] in GROUPS:
                mates = [mate for mate, other in self.ranks.items() if mate[0] == key[0] and other.alive]
            step = shared_by_mates(self.ranks[mate].snapshot for mate in mates)
            if rank.alive and step >= 0 and self.copying.isdisjoint(mates):
                waiting.append((rank, step))
        return waiting

    def _copied_to(self, rank: SimRank, step: int, image: Image, timeline: int, partner: SimAgent) -> None:
        """It was held until now."""
        key = rank.key
        self.copying.discard(key)
        if not (self.alive and partner.alive and rank.alive) or self.memory.timeline != timeline:
            return
        partner.memory.keep(key, step, *image)
        self.copied[key] = (partner.label, step)

    # --------------------------------------------------------------------------------------------------------- ends

    def end(self, why: str, node_lost: bool = False) -> None:
        """The process of the agent ends. Its ranks go on, unless the node is lost, or nobody comes for them."""
        if not self.alive:
            return
        self.world.note(self.label, f"ends: {why}")
        self.alive = False
        self.cut = self.world.now
        if node_lost:
            self.sweep()
        else:
            self.world.at(LEASE_S, self._nobody_comes)
        self.world.backend.agent_ended(self, why, node_lost)

    def _nobody_comes(self) -> None:
        """Do the janitor's work."""
        if self.memory.owner is self and not self.swept:
            self.world.note(self.label, "has no next incarnation: its ranks are killed")
            self.sweep()

    def sweep(self) -> None:
        """Everything that an incarnation of this agent has started ends."""
        self.swept = True
        for rank in list(self.memory.ranks.values()):
            rank.die(9)
        self.memory.ranks.clear()


def kills(effects: list[ae.Effect]) -> list[Any]:
    """The effects that do something to ranks or memory: not for a dead master to have."""
    return [e for e in effects if not isinstance(e, ae.ToMaster | ae.ReviveMaster)]
