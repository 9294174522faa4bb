"""A simulated master: the real `MasterMachine`, a journal that is compacted, and a shell's work."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec
from tests.simulation.model import RESIZABLE
from tests.simulation.witness import examine

from rolemesh.api.observer import Event
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.scaling.master import AskScaler, ScalerSaid
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master import events as me
from rolemesh_durable.protocol.master.clocks import by_another_clock
from rolemesh_durable.protocol.master.machine import MasterMachine
from rolemesh_durable.protocol.master.replay import follow
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.master.transitions import Move
from rolemesh_durable.protocol.metrics.merge import LineAssembler
from rolemesh_durable.scalers import Wanted

if TYPE_CHECKING:
    from tests.simulation.world import World

__all__ = ["Journal", "SimMaster", "Stale"]

TICK_S = 0.2
ONE = {"memory_gb": 1.0}
"""Memory of ranks to which no recovery has given more."""
COMPACTED = 0.2
"""How likely the journal is compacted after a turn."""


class Stale(Exception):
    """A newer master has taken the journal over."""


class Journal:
    """Events of all masters; a turn's are written together or not at all, and only by the newest epoch."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.epoch = 0
        self.events: list[Event] = []
        self.committed: int | None = None
        self._rng = random.Random(world.scenario.seed * 15485863 + 3)
        self.state = world.scenario.master_machine(0, "").state
        self._head = b""
        self._head_seq = 0

    def open(self) -> int:
        """A new master takes over; its epoch."""
        self.epoch += 1
        return self.epoch

    def append(self, epoch: int, effects: list[me.Effect], committed: int) -> None:
        """Write a turn, after which step `committed` is. Raises `Stale`."""
        if epoch != self.epoch:
            raise Stale
        for effect in effects:
            if isinstance(effect, me.JournalEntry):
                event = Event(len(self.events) + 1, epoch, self.world.wall, effect.kind, effect.data)
                self.events.append(event)
                follow(self.state, event)
                self.world.checks.recorded(event)
            elif isinstance(effect, me.Committed):
                told = Event(len(self.events), epoch, self.world.wall, "committed", {"step": effect.step})
                self.world.checks.recorded(told)
        self.committed = committed
        self.state.commit(committed)
        if self._rng.random() < COMPACTED:
            self._head, self._head_seq = msgspec.msgpack.encode(self.state.kept), len(self.events)

    def replay(self, machine: MasterMachine, now: float) -> None:
        """Bring a new master's machine to where the journal ends, from what is kept of it."""
        kept, whole = machine.state, self.world.scenario.master_machine(0, "").state
        if self._head:
            kept.become(msgspec.msgpack.decode(self._head, type=JobState))
        self._apply(kept, self.events[self._head_seq :])
        self._apply(whole, self.events)
        self.world.checks.replayed(kept.kept, whole.kept)
        by_another_clock(kept, machine.config.clock, now, self.world.wall)

    def _apply(self, state: JobState, events: list[Event]) -> None:
        for event in events:
            follow(state, event)
        if self.committed is not None:
            state.commit(self.committed)


class SimMaster:
    """One epoch of the master."""

    def __init__(self, world: World) -> None:
        self.world, self.journal = world, world.journal
        self.epoch = self.journal.open()
        self.alive, self.frozen, self.stalled = True, False, False
        self.dies_at = ""
        self.clock = world.clock = world.between(-500.0, 500.0) if world.chance(0.2) else world.clock
        self.machine = world.scenario.master_machine(self.epoch, f"boot {self.clock}")
        self.lines = LineAssembler(world.job.graph, world.job.sizes, len(world.checks.lines) - 1)
        self._later: list[me.Event] = []
        self._queue: list[me.Event] = []
        self._waiting = False
        self._advances: dict[tuple[str, int], me.ToAgent] = {}
        self._origins = 0

    @property
    def time(self) -> float:
        """Its monotonic clock."""
        return self.world.now * self.world.scenario.rate + self.clock

    def begin(self) -> None:
        """Take up the job where the journal ends."""
        world = self.world
        world.note(f"master {self.epoch}", f"begins after {len(self.journal.events)} events")
        self.journal.replay(self.machine, self.time)
        self.lines.resized(self.machine.state.sizes)
        self.lines.moved(self.machine.state.homes)
        self.machine.progress.published = max(self.machine.progress.published, len(world.checks.lines) - 1)
        self.handle(me.Begin())
        world.at(TICK_S, self._tick)

    def _tick(self) -> None:
        if self.alive and not self.world.ended:
            self.handle(me.Tick())
            self.world.at(TICK_S, self._tick)

    def handle(self, event: me.Event) -> None:
        """An event: a turn of its own, or part of one that takes all events of a moment."""
        if not self.alive or self.world.ended:
            return
        if self.frozen or self.stalled:
            if not isinstance(event, me.Tick):
                self._later.append(event)
            return
        self._queue.append(event)
        if not self._waiting:
            self._waiting = True
            if self.world.scenario.turn_s:
                self.world.at(self.world.between(0.0, self.world.scenario.turn_s), self._turn)
            else:
                self._turn()

    def _turn(self) -> None:
        """The effects of what has come: journal first."""
        self._waiting = False
        events, self._queue = self._queue, []
        if not self.alive or self.world.ended:
            return
        if self.frozen or self.stalled:
            self._later += [event for event in events if not isinstance(event, me.Tick)]
            return
        effects = self.machine.turn(events, self.time)
        examine(self, any(isinstance(event, me.Begin) for event in events))
        if not self.machine.state.settled:
            self.lines.unsettled(self.machine.now)
        records = [effect for effect in effects if isinstance(effect, me.JournalEntry | me.Committed)]
        kinds = [effect.kind if isinstance(effect, me.JournalEntry) else "committed" for effect in records]
        dies = self.dies_at if records else ""
        if dies == "before":
            self.world.note(f"master {self.epoch}", f"is killed before {kinds} is written")
            self._killed()
            return
        if records:
            try:
                self.journal.append(self.epoch, effects, self.machine.state.committed)
                self.world.checks.told(self.machine.state, self.journal.state)
            except Stale:
                self.world.note(f"master {self.epoch}", "is no longer the master")
                self.die()
                return
        if "layout_changed" in kinds:
            self.lines.resized(self.machine.state.sizes)
        if {"replanned", "layout_changed"} & set(kinds):
            self.lines.moved(self.machine.state.homes)
        if dies:
            others: list[me.Effect] = [
                effect for effect in effects if not isinstance(effect, me.JournalEntry | me.Committed)
            ]
            effects = others[: len(others) // 2] if dies == "within" else []
            self.world.note(f"master {self.epoch}", f"is killed {dies} the effects of {kinds}")
        for effect in effects:
            self._do(effect)
        if dies:
            self._killed()

    def _killed(self) -> None:
        self.die()
        self.world.at(self.world.between(0.1, 1.5), self.world.backend.start_master)

    def die(self) -> None:
        """The process ends."""
        if self.alive:
            self.alive = False
            self.world.note(f"master {self.epoch}", "dies")

    def has_newer(self, agent: str, report: m.Report) -> bool:
        """Whether the master has taken a newer report of this incarnation of the agent."""
        known = self.machine.state.agents.get(agent)
        last = known.report if known is not None else None
        return last is not None and last.incarnation == report.incarnation and last.seq >= report.seq

    def thaw(self) -> None:
        """Go on after a SIGSTOP, or when the store answers again."""
        self.frozen = self.stalled = False
        later, self._later = self._later, []
        for event in later:
            self.handle(event)

    def stall(self) -> None:
        """Let the store not answer: no turn until `thaw`, and the master repeats its last `Watermarks`."""
        self.stalled = True
        self._repeat()

    def _repeat(self) -> None:
        if self.alive and self.stalled and not self.world.ended:
            if not self.frozen:
                for said in self._advances.values():
                    self.world.backend.send(said.agent, said.incarnation, said.message)
            self.world.at(1.0, self._repeat)

    def _do(self, effect: me.Effect) -> None:
        world, backend = self.world, self.world.backend
        match effect:
            case me.StartAgents(agents):
                backend.start(agents)
            case me.Attach(agents):
                backend.attach(agents)
            case me.KillAgent(agent, incarnation):
                backend.kill(agent, incarnation)
            case me.ToAgent(agent, incarnation, message):
                if isinstance(message, m.Watermarks):
                    self._advances[agent, incarnation] = effect
                backend.send(agent, incarnation, message)
            case me.Publish(agent, metrics):
                lines = self.lines.add(agent, metrics, self.machine.now, self.machine.state.committed, wall=world.wall)
                if lines and self.epoch != self.journal.epoch:
                    world.note(f"master {self.epoch}", "is no longer the master")
                    self.die()
                    return
                for line in lines:
                    world.checks.published(line)
                self.handle_soon(me.Published(self.lines.published))
            case me.JournalEntry(kind="rolled_back", data=data):
                self.lines.rolled_back(data["step"])
            case me.Places(sizes=sizes):
                world.at(world.between(0.01, 0.3), self._find_layout if sizes else self._replan, effect)
            case AskScaler(index):
                role, wish = world.rng.choice(list(world.scenario.ranges)), world.rng.randrange(7)
                said = ScalerSaid(index, Wanted({role: wish}, "the load"))
                world.at(world.between(0.01, 0.3), self.handle, said)
            case me.FindOrigin():
                self._origins += 1
                world.at(world.between(0.01, 0.3), self._find_origin)
            case me.FindCheckpoints(after):
                if world.disk.newest() > after:
                    world.at(world.between(0.01, 0.3), self.handle, me.CheckpointCommitted(world.disk.newest(), ""))
            case me.CommitCheckpoint(step, parts):
                world.checks.complete(step, parts)
                attempts = {p.ref: p.attempt for p in parts}
                world.at(world.between(0.01, 0.3), self._complete, step, attempts, self._origins)
            case me.End(status, message):
                world.note(f"master {self.epoch}", f"ends the job: {status} {message}")
                world.ended, world.message = status, message

    def handle_soon(self, event: me.Event) -> None:
        """An event that this turn leads to."""
        self.world.at(0.0, self.handle, event)

    def _complete(self, step: int, attempts: dict[RankRef, str], origins: int) -> None:
        if self.alive and self.epoch == self.journal.epoch:
            if self._origins > origins:
                self.handle(me.CheckpointCommitted(-1))  # of before the job went back to the disk
            else:
                self.handle(me.CheckpointCommitted(step, self.world.disk.seal(step, attempts)))

    def _find_origin(self) -> None:
        step = self.world.disk.newest()
        if self.alive:
            self.handle(me.OriginFound(f"step-{step}" if step >= 0 else "", step))

    def _find_layout(self, wanted: me.Places) -> None:
        world, state = self.world, self.machine.state
        if not self.alive:
            return
        step = wanted.at_step
        if fixed := [role for role in wanted.sizes if world.job.kinds[role] not in RESIZABLE]:
            self.handle(me.PlacesFound(wanted, f"{fixed} keep what belongs to their ranks"))
            return
        if step >= 0 and step not in world.disk.complete:
            self.handle(me.PlacesFound(wanted, f"there is no snapshot of {step}"))
            return
        nodes = [n for n in world.scenario.nodes_now(world.now) if n not in world.dead_nodes and n not in wanted.away]
        agents = {a.place.node: name for name, a in state.agents.items() if not a.node_lost}
        homes = {key: state.agents[record.agent].place.node for key, record in state.ranks.items()}
        there = (RankRef(role, rank) for role, n in wanted.sizes.items() for rank in range(n))
        found = {ref: homes.get(ref, "") for ref in there}
        if not wanted.others_stay:
            found |= {key: home for key, home in homes.items() if key[0] not in wanted.sizes and home not in nodes}
        others = {key: home for key, home in homes.items() if key not in found and key[0] not in wanted.sizes}
        if not nodes or (world.scenario.family == "shrink" and not self._seated(nodes, others, found)):
            self.handle(me.PlacesFound(wanted, "there is no room", gone=self._gone()))
            return
        moves: list[Move] = []
        places: dict[str, AgentPlace] = {}
        for (role, rank), home in found.items():
            node = home if home in nodes else world.rng.choice(nodes)
            if node not in agents:
                agents[node] = f"node{len(state.agents) + len(places)}"
            if agents[node] not in state.agents or state.agents[agents[node]].state != "up":
                places[node] = AgentPlace(agents[node], node, {"cpu": 1.0})
            moves.append(Move(role, rank, agents[node], 0, 1))
        self.handle(
            me.PlacesFound(
                wanted, moves=tuple(moves), places=tuple(places.values()), folder=f"step-{step}" if step >= 0 else ""
            )
        )

    def _gone(self) -> tuple[str, ...]:
        """Nodes that are lost, of which the master has not heard it."""
        places = [agent.place.node for agent in self.machine.state.agents.values() if agent.state in ("starting", "up")]
        return tuple(node for node in places if node in self.world.dead_nodes)

    def _seated(self, nodes: list[str], others: dict[RankRef, str], found: dict[RankRef, str]) -> bool:
        """Whether there is room on `nodes` for all ranks in `found`, beside `others`; who has none there gets some."""
        scenario = self.world.scenario
        room = {node: scenario.rooms.get(node, scenario.room) for node in nodes}
        for key, home in {**others, **found}.items():
            if home in room and scenario.needs_room(key):
                room[home] -= 1
        for key, home in found.items():
            if home not in room:
                node = max(room, key=lambda n: room[n])
                if scenario.needs_room(key):
                    if room[node] < 1:
                        return False
                    room[node] -= 1
                found[key] = node
        return True

    def _replan(self, wanted: me.Places) -> None:
        """Move what is on the lost nodes to nodes with room."""
        world, machine, lost = self.world, self.machine, wanted.away
        if not self.alive:
            return
        scenario = world.scenario
        nodes = [n for n in scenario.nodes_now(world.now) if n not in world.dead_nodes and n not in lost]
        room = {node: scenario.rooms.get(node, scenario.room) for node in nodes}
        moving = []
        for key, rank in machine.state.ranks.items():
            node = machine.state.agents[rank.agent].place.node
            if node in lost or key[0] in wanted.resources:
                moving.append(key)
            elif node in room and scenario.needs_room(key):
                room[node] -= 1
        homes: dict[tuple[str, int], str] = {}
        answer = me.PlacesFound(wanted, gone=self._gone())
        has = self.machine.state.resources | wanted.resources
        memory = dict.fromkeys(nodes, scenario.memory)
        for key, rank in machine.state.ranks.items():
            if key not in moving and (node := machine.state.agents[rank.agent].place.node) in memory:
                memory[node] -= has.get(key[0], ONE)["memory_gb"]
        for key in moving:
            wants = has.get(key[0], ONE)["memory_gb"]
            home = machine.state.agents[machine.state.ranks[key].agent].place.node
            fit = {n: room[n] for n in room if memory[n] >= wants}
            node = home if home in fit else max(fit, key=lambda n: fit[n], default="")
            needed = scenario.needs_room(key)
            if not node or (needed and room[node] < 1 and not wanted.resources):
                why = f"{key[0]}/{key[1]} needs a slot, none is free"
                self.handle(msgspec.structs.replace(answer, why=why))
                return
            room[node] -= needed
            memory[node] -= wants
            homes[key] = node
        agents = {a.place.node: name for name, a in machine.state.agents.items() if not a.node_lost}
        taken = len(machine.state.agents)
        for node in homes.values():
            if node not in agents:
                agents[node] = f"node{taken}"
                taken += 1
        moves = tuple(Move(*key, agents[node], 0, 1) for key, node in homes.items())
        places = tuple(AgentPlace(agents[node], node, {"cpu": 1.0}) for node in dict.fromkeys(homes.values()))
        self.handle(msgspec.structs.replace(answer, moves=moves, places=places))
