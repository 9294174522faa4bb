"""A simulated rank: the loop of a rank's process around the real state machines of its edges."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any
from zlib import crc32

import greenlet
from tests.simulation.calls import SimCalls
from tests.simulation.memory import Entry, Lines
from tests.simulation.model import (
    Mind,
    Shape,
    State,
    Value,
    chunks_of,
    cut,
    gather,
    initial_of,
    newest_of,
    part_of,
    recut,
)
from tests.simulation.sharing import First, Mates, assembled, shared_call

from rolemesh.api.failures import Cause, Failure
from rolemesh.api.partition import Balanced
from rolemesh.graph.logical import Edge, OpCall
from rolemesh.graph.routes import Send
from rolemesh.graph.schedule import Period
from rolemesh.runs.metrics import Metrics
from rolemesh_durable.protocol import barrier
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agreement import NOTHING, Agreement
from rolemesh_durable.protocol.blocks import Block, packed
from rolemesh_durable.protocol.edge import InEdgeState, LogLost, OutEdgeState, first_needed, hold_of, last_call
from rolemesh_durable.protocol.newest import NewestChoice
from rolemesh_durable.protocol.owing import Appointments, by_appointment, may_owe, until_shared
from rolemesh_durable.protocol.persisting import outlasting
from rolemesh_durable.protocol.sharing import ItemsIn
from rolemesh_durable.transports import TransportError

if TYPE_CHECKING:
    from tests.simulation.agent import SimAgent

__all__ = ["SimRank"]

IDLE, COMPUTING, WAITING, BLOCKED = range(4)
"""Phases, as `rolemesh_durable.rank.status_page` numbers them."""


class Stopped(Exception):
    """The agent has said stop."""


class Exited(Exception):
    """The process has ended itself."""


class UserError(Exception):
    """The workload has raised."""


class OutEdge:
    """One edge out of this rank; see `rolemesh_durable.rank.out_port.OutEdge`."""

    def __init__(self, rank: SimRank, edge: Edge, sends: tuple[Send, ...]) -> None:
        self.rank, self.edge, self.sends = rank, edge, sends
        job = rank.job
        self.role = job.graph.ops[edge.dst].role
        self.hold = hold_of(edge, job.graph, job.activity, job.unrepeated)
        consumers = [consumer for send in sends for consumer in send.consumers]
        self.state: OutEdgeState[Value] = OutEdgeState(consumers, edge.window, retain=True, hold=self.hold)
        self.pending: dict[int, tuple[int, int, int]] = {}
        self.opened = False
        self.made: int | None = None

    def asked(self, consumer: int, generation: int, from_step: int, released: int) -> None:
        """A consumer asks; one whose address is not known yet has to wait for it."""
        if not self.opened or generation > self.rank.generation_of(self.role, consumer):
            self.pending[consumer] = (generation, from_step, released)
            return
        self._check_used(consumer, from_step)
        kept = self.state.ask(consumer, generation, from_step, released)
        self.rank.world.checks.answered(self.rank, self, consumer, generation, from_step, kept)
        for item in kept:
            self.rank.send_chunk(self, consumer, item.step, item.chunk, item.last, item.item)

    def void(self, step: int) -> None:
        """What former generations have made at `step` and after does not count: who has used it must give it back."""
        self.made = step - 1
        for consumer, from_step in self.state.ahead:
            self._check_used(consumer, from_step)

    def _check_used(self, consumer: int, from_step: int) -> None:
        for step in range(self.made + 1, from_step) if self.made is not None else ():
            if self.rank.job.activity.consumed(self.edge, step, self.rank.job.steps):
                raise LogLost(f"{self.role}/{consumer} has used step {step} of edge {self.edge.id}")

    def acked(self, consumer: int, generation: int, step: int) -> None:
        """A consumer has released everything up to `step`."""
        waiting = self.pending.get(consumer)
        if waiting is not None and waiting[0] == generation:
            self.pending[consumer] = (generation, waiting[1], max(waiting[2], step))
        else:
            self.state.acked(consumer, generation, step)

    def rewire(self) -> None:
        """Addresses have changed."""
        for send in self.sends:
            for consumer in send.consumers:
                self.state.restarted(consumer, self.rank.generation_of(self.role, consumer))
        pending, self.pending = self.pending, {}
        for consumer, ask in pending.items():
            self.asked(consumer, *ask)


class In:
    """One edge into this rank; see `rolemesh_durable.rank.in_port.InPort`."""

    def __init__(self, rank: SimRank, edge: Edge, resume: int) -> None:
        job = rank.job
        self.rank, self.edge = rank, edge
        self.role = job.graph.ops[edge.src].role
        self.sources = rank.shape.sources(edge, rank.key[1])
        first = first_needed(edge, job.graph, job.activity, job.unrepeated, resume)
        self.collates = isinstance(edge.src_partition, Balanced)
        self.state: InEdgeState[Any] = (ItemsIn if self.collates else InEdgeState)(self.sources, first)
        self.state.revocable = self.role in job.varying
        self.released = first - 1
        self.asked = dict.fromkeys(self.sources, -1)
        self.not_before = 0
        begins = job.activity.first(edge) if edge.initial else -edge.lag
        known = rank.chosen()
        again = {step: made for (of, step), made in known.items() if of == edge.id}
        self.choice: Any = NewestChoice(edge.lag, job.activity.periods[edge.dst] or Period(), again)
        self.first = First(rank, edge, resume) if edge.first else None
        if self.first is not None:
            self.choice = self.first.choice
            self.released = self.choice.released
        self.hold = hold_of(edge, job.graph, job.activity, job.unrepeated) - edge.lag
        self.given: dict[int, Value] = {made: initial_of(edge) for made in range(-edge.lag, begins)}
        self.pending = 0

    def ready(self, made: int) -> bool:
        """Whether the whole value has come."""
        if not self.collates or not self.state.ready(made):
            return self.state.ready(made)
        return assembled(self.rank, self.edge, made, self.state.peek(made), *self._here) is not None

    @property
    def _here(self) -> tuple[Shape, int]:
        return self.rank.shape, self.rank.key[1]

    def join(self, made: int, chunks: list[list[Any]], there: tuple[Shape, int] | None = None) -> Value:
        """The value that was made at step `made`, of this rank or of one in an earlier layout."""
        if not self.collates:
            return gather(chunks)
        value = assembled(self.rank, self.edge, made, chunks, *(there or self._here))
        return value if value is not None else Value(0)

    def ask(self) -> None:
        """Ask each producer whose generation is new."""
        for source in self.sources:
            generation = self.rank.generation_of(self.role, source)
            if generation > self.asked[source]:
                self.asked[source] = generation
                first = max(self.state.restart_source(source, generation), self.not_before)
                frame = ("ask", self.edge.id, self.rank.key[1], self.rank.generation, first, self.released)
                self.rank.send_to((self.role, source), frame)

    def flush(self) -> None:
        """Tell the producers what has been released."""
        if self.pending:
            self.pending = 0
            frame = ("ack", self.edge.id, self.rank.key[1], self.rank.generation, self.released)
            for source in self.sources:
                if self.rank.generation_of(self.role, source) >= 0:
                    self.rank.send_to((self.role, source), frame)


class SimRank:
    """The process of one generation of a rank. Its main thread is a greenlet, which gives way with seconds or with what it waits for."""

    def __init__(self, agent: SimAgent, launch: m.RankLaunch) -> None:
        self.agent, self.world, self.launch = agent, agent.world, launch
        self.job = self.world.job
        self.layout = launch.layout
        self.shape = self.job.shaped(launch.layout.sizes)
        self.key = (launch.role, launch.rank)
        self.generation = launch.generation
        self.uid = self.world.uid()
        self.pid = self.world.backend.pid()
        self.name = f"{launch.role}/{launch.rank}.{launch.generation}"
        self.alive, self.frozen, self.stopping, self.left = True, False, False, False
        self.cut = float("inf")
        self.mind = Mind(self.job, self.key)
        self.finished = self.snapshot = self.step = -1
        self.op, self.phase, self.edge, self.since = -1, IDLE, -1, self.world.now
        self.injected = ""
        self.wire: m.Connect | None = None
        self.advance: m.Watermarks | None = None
        self.granted = self.persisted = self.pause = self.paused = -1
        self.last, self.said = self.job.steps - 1, False
        self.heard = launch.resume
        """The newest step of which the snapshot has all that others have called for."""
        self.told: list[Block] = []
        """Lines of metrics that may not be on disk."""
        self._made: Lines = {}
        """Lines that have not been sent."""
        self.records: dict[str, Any] = {}
        """Of the line of the present step."""
        self.timeline = agent.memory.timeline
        self.owed, self.late, self.admitted = -1, False, -1
        self.keeps = self.world.scenario.keeps.get(self.key, 1 << 30)
        size = self.shape.sizes[self.key[0]]
        alone = not launch.collective or size == 1
        self.owes = may_owe(self.job.graph, self.job.activity, self.key[0], together=not alone)
        self.owes &= alone == (not launch.collective)
        self.owes &= self.mind.kind != "apart"
        self.together = self.owes and not alone
        apart = self.mind.kind == "apart" and not alone and by_appointment(self.job.graph, self.key[0])
        self.appointments = Appointments() if apart else None
        self.guard = barrier.Barrier(size) if launch.collective and self.key[1] == 0 else None
        self.agreement = Agreement(size, launch.generation) if launch.collective and self.key[1] == 0 else None
        self.verdict: bool | None = None
        self.former: dict[tuple[int, int], tuple[int, list[Entry]]] = {}
        """Of a group: what the log has of former generations, by call and step, and which of them made it."""
        self.waiting, self.gone, self.taking = -1, False, -1
        """The call that it waits for its group before, whether that goes in, and the newest step of which it takes the
        snapshot."""
        self.peers: dict[tuple[str, int], m.Peer] = {}
        self.ways: dict[int, OutEdge] = {}
        self.ins: dict[int, In] = {}
        self.calls = SimCalls(self)
        self.mates: dict[int, Mates] = {}
        self.opened = False
        self._early: list[tuple[Any, ...]] = []
        self._inbox: deque[Any] = deque()
        self._until: Callable[[], bool] | None = None
        self._thread = greenlet.greenlet(self._main)
        self.world.processes[self.uid] = self
        self.world.checks.forked(self)
        self._run()

    # ------------------------------------------------------------------------------------------------ being a process

    def sleep(self, seconds: float) -> None:
        """Let simulated time pass: the main thread does something that takes as long."""
        self._thread.parent.switch(seconds)

    def until(self, there: Callable[[], object]) -> None:
        """Let the main thread wait, and handle what comes, until `there()`."""
        self._thread.parent.switch(there)

    def _run(self) -> None:
        thread = self._thread
        thread.parent = greenlet.getcurrent()
        try:
            while self.alive:
                wanted = thread.switch()
                if thread.dead:
                    self._leave(0)
                    return
                if isinstance(wanted, float):
                    self.world.at(wanted, self._wake)
                    return
                for port in self.ins.values():
                    port.flush()
                self._pump()
                if self.stopping:
                    self._leave(0)
                    return
                if not wanted():
                    self._until = wanted
                    return
        except Stopped:
            self._leave(0)
        except Exited:
            self.die(None, 3)
        except UserError as error:
            self._failed(str(error))
        except LogLost as error:
            self._failed(str(error), "log_lost")

    def _wake(self) -> None:
        if not self.alive:
            return
        if self.frozen:
            self.world.at(0.05, self._wake)
            return
        self._run()

    def receive(self, frame: Any) -> None:
        """A frame has come."""
        self._inbox.append(frame)
        self.look()

    def look(self) -> None:
        """Something may have changed that the rank waits for."""
        if self._until is None or self.frozen or not self.alive:
            return
        try:
            self._pump()
        except LogLost as error:
            self._failed(str(error), "log_lost")
            return
        if self.stopping:
            self._leave(0)
        elif self._until is not None and self._until():
            self._until = None
            self._run()

    def die(self, signal: int | None, exit_code: int | None = None) -> None:
        """The process ends; what it has sent may be lost on the way from some moment on."""
        if not self.alive:
            return
        self.alive = False
        self._thread.parent = greenlet.getcurrent()
        self._thread.throw()
        if signal is not None and self.world.chance(0.5):
            self.cut = self.world.now + self.world.between(0.0, 0.005)
        self.world.processes.pop(self.uid, None)
        self.world.note(self.name, f"dies (signal {signal}, exit code {exit_code})")
        group = self.world.groups.get((self.key[0], self.generation))
        if group is not None and group.members.get(self.key[1]) is self:
            for mate in group.members.values():
                if mate is not self and mate.alive and self.world.chance(0.5):
                    self.world.at(self.world.between(0.001, 0.3), mate.echo)
        self.agent.process_ended(self, signal, exit_code)

    def echo(self) -> None:
        """A mate has died: a collective that is under way may say so."""
        if self.alive and not self.frozen and self._until is not None and self.phase == COMPUTING:
            self._failed("connection reset by peer")

    def _failed(self, text: str, cause: Cause = "exception") -> None:
        op = self.job.graph.ops[self.op].label if self.op >= 0 else ""
        failure = Failure(cause, *self.key, "", op, self.step, text, text, generation=self.generation)
        self.report(m.RankFailed(failure))
        self._leave(1)

    def _leave(self, exit_code: int) -> None:
        """The main thread has ended: nothing that arrives is handled, while the process is still there for a moment."""
        self.left, self._until = True, None
        self.world.at(0.01, self.die, None, exit_code)

    def report(self, message: m.RankToAgent) -> None:
        """Tell the agent, and whoever comes after it."""
        if isinstance(message, m.RankMetrics):
            self.told += message.blocks
        else:
            self.agent.memory.said.setdefault((self.key, self.generation), []).append(message)
        self.world.send(self, self.agent, message)

    # -------------------------------------------------------------------------------------------------- what comes in

    def _pump(self) -> None:
        """Handle all that is there. Raises `LogLost`, after which the rank handles nothing more: see `_leave`."""
        inbox = self._inbox
        while inbox:
            self.world.checks.acts(self)
            frame = inbox.popleft()
            if type(frame) is tuple:
                try:
                    self._frame(frame)
                except LogLost:
                    raise
                except TransportError as error:
                    self.world.fail("asks are answered", f"{self.name}: {error}")
            else:
                self._control(frame)

    def _frame(self, frame: tuple[Any, ...]) -> None:
        match frame:
            case ("data", edge, source, generation, step, chunk, last, item):
                if not self.opened:
                    self._early.append(frame)
                    return
                port = self.ins[edge]
                if source in port.sources:  # or it was one of an earlier layout
                    new = port.state.accept(source, generation, step, chunk, last, item)
                    if new and port.first is not None and item is not None:
                        port.first.came(step, item)
            case ("ask", edge, consumer, generation, from_step, released):
                if not self.opened:
                    self._early.append(frame)
                    return
                if self._feeds(edge, consumer):
                    self.ways[edge].asked(consumer, generation, from_step, released)
            case ("ack", edge, consumer, generation, step):
                if not self.opened:
                    self._early.append(frame)
                    return
                if self._feeds(edge, consumer):
                    self.ways[edge].acked(consumer, generation, step)
            case ("share", edge, kind, mate, generation, step, item):
                if not self.opened:
                    self._early.append(frame)
                    return
                self.mates[self.job.graph.edges[edge].dst].message(kind, mate, generation, step, item)
            case ("vote", rank, generation, position, vote):
                if self.agreement is not None and generation >= self.generation_of(self.key[0], rank):
                    for each, verdict in self.agreement.heard(rank, position, vote):
                        self.send_to((self.key[0], each), ("voted", self.generation, verdict))
            case ("voted", generation, verdict):
                if generation == self.generation:
                    self.verdict = verdict
            case ("gather", kind, rank, generation, position):
                if generation >= self.generation_of(self.key[0], rank):
                    self._gathering(kind, rank, position)
            case _:
                if not self.opened:
                    self._early.append(frame)
                    return
                self.calls.frame(frame)

    def _gathering(self, kind: int, rank: int, position: int) -> None:
        """As `rolemesh_durable.rank.barrier.GroupBarrier`."""
        if kind in (barrier.ARRIVE, barrier.WANT):
            assert self.guard is not None
            for each, answer in self.guard.heard(rank, kind, position):
                self._say(each, answer, position)
        elif kind == barrier.NEXT:
            assert self.appointments is not None
            self.appointments.announced(position)
        elif kind == barrier.TAKE:
            self.taking = max(self.taking, position)
        elif position == self.waiting:
            self.gone = True

    def _say(self, rank: int, kind: int, position: int) -> None:
        if rank == self.key[1]:
            self._gathering(kind, rank, position)
        else:
            self.send_to((self.key[0], rank), ("gather", kind, self.key[1], self.generation, position))

    def _feeds(self, edge: int, consumer: int) -> bool:
        """Whether it does in the present layout."""
        way = self.ways.get(edge)
        return way is not None and any(consumer in send.consumers for send in way.sends)

    def _control(self, message: m.AgentToRank) -> None:
        match message:
            case m.Connect():
                self.wire = message
                for peer in message.peers:
                    known = self.peers.get((peer.role, peer.rank))
                    if known is None or known.generation < peer.generation:
                        self.peers[peer.role, peer.rank] = peer
                if self.opened:
                    self._rewire()
            case m.Watermarks():
                self.advance = message
                self.granted = max(self.granted, message.granted)
                self.last = message.last if message.last >= 0 else self.last
                self.pause = max(self.pause, message.pause)
                if self.opened:
                    self._commit()
            case m.Stop():
                self.stopping = True
            case m.Adopted():
                published = self.advance.published if self.advance is not None else -1
                self.told = [block for block in self.told if block.last > published]
                lines = m.RankMetrics(*self.key, self.generation, tuple(self.told))
                said = self.agent.memory.said.get((self.key, self.generation), ())
                for message in (*said, lines):
                    self.world.send(self, self.agent, message)
            case m.Fault():
                self.injected = message.kind

    def _commit(self) -> None:
        if self.advance is None:
            return
        memory = self.agent.memory
        pins = memory.pins(self.key)
        for way in self.ways.values():
            way.state.pin(pins)
            way.state.committed(self.advance.committed)
        self.calls.advanced(self.advance)
        for mates in self.mates.values():
            mates.sharing.committed(self.advance.committed)
        memory.trim(self.key, self.advance.committed, {port.edge.id: port.hold for port in self.ins.values()})

    def _rewire(self) -> None:
        for way in self.ways.values():
            way.rewire()
        for port in self.ins.values():
            port.ask()
        self.calls.rewire()
        for mates in self.mates.values():
            mates.rewire()

    def generation_of(self, role: str, rank: int) -> int:
        """The newest generation of a peer that has been heard of."""
        if (role, rank) == self.key:
            return self.generation
        peer = self.peers.get((role, rank))
        return peer.generation if peer is not None else -1

    def chosen(self) -> dict[tuple[int, int], Any]:
        """What the calls of former generations took, by edge and step. A rank that is restored from the disk follows
        none of them: see `rolemesh_durable.rank.takeover.take_over`."""
        return {} if self.launch.restore == "disk" else self.agent.memory.choices.get(self.key, {})

    def send_to(self, key: tuple[str, int], frame: tuple[Any, ...]) -> None:
        """Send a frame to a peer, or to itself."""
        if key == self.key:
            self._inbox.append(frame)
            return
        self.world.send(self, self.world.processes.get(self.peers[key].addresses["sim"]), frame)

    def send_chunk(self, way: OutEdge, consumer: int, step: int, chunk: int, last: bool, item: Value | None) -> None:
        """Send a chunk to one consumer."""
        self.send_to((way.role, consumer), ("data", way.edge.id, self.key[1], self.generation, step, chunk, last, item))

    # ------------------------------------------------------------------------------------------------- the main thread

    def _main(self) -> None:
        world, launch = self.world, self.launch
        pace = world.scenario.pace
        self.sleep(world.between(0.01, 0.05))
        port = 1000 if launch.collective and launch.rank == 0 else None
        self.report(m.RankHello(*self.key, self.generation, self.pid, {"sim": self.uid}, port))
        self.until(lambda: self.wire is not None)
        self.sleep(world.between(0.01, 0.2))
        if self.injected:
            self._fault()
        if launch.collective:
            assert self.wire is not None
            assert self.wire.rendezvous is not None
            group = world.group(self.key[0], self.wire.rendezvous.generation)
            group.members[self.key[1]] = self
        self._restore()
        self._open()
        self.report(m.RankReady(*self.key, self.generation, 0.1))
        if launch.resume >= 0:
            self._tell(self.agent.memory.lines.get(self.key, {}))
        self._repeat()
        schedule = self.job.schedule[self.key[0]]
        if (self.key, -1) in world.scenario.says:
            self._finish()
        while self.finished < self.last:
            step = self.finished + 1
            if step > self.granted:
                self._await(lambda: self._may_begin(step) or self._pauses() or self._crosses(), IDLE)  # noqa: B023 (asked before the next step)
                while not self._may_begin(step):
                    if self._pauses():
                        self.paused = self.finished
                        self._end(self.finished)
                        world.checks.held(self, self.finished)
                    self._cross()
                    self.until(lambda: self._may_begin(step) or self._pauses() or self._crosses())  # noqa: B023 (asked before the next step)
            if step > self.last:
                break
            world.checks.begins(self, step)
            self.step = step
            for op in schedule:
                if self.job.activity.active(op.id, step):
                    self._call(op, step)
            self.calls.finished(step)
            if (self.key, step) in world.scenario.says:
                self._finish()
            self._made[step], self.records = self.records, {}
            self.agent.memory.lines.setdefault(self.key, {})[step] = self._made[step]
            self._boundary(step)
            self.finished = step
            if step % 2 or self.stopping or step >= min(self.granted, self.last):
                made, self._made = self._made, {}
                self._tell(made)
            self._pump()
            if self.stopping:
                raise Stopped
            self.sleep(world.between(0.0, pace / 4))
        self._at(IDLE)
        for port in self.ins.values():
            if port.edge.newest:
                port.released, port.pending = self.finished, 1
                port.flush()
        self.until(
            lambda: not any(way.state.awaits_release(self.finished - way.edge.lag) for way in self.ways.values())
        )
        self._end(self.finished)
        sha = repr(self.mind.state) if self.mind.kind != "stateless" else ""
        kept, unkept = self._last_state()
        world.checks.done(self)
        self.report(m.RankDone(*self.key, self.generation, self.finished, sha, "", kept, unkept))
        self.until(lambda: False)

    def _last_state(self) -> tuple[m.Persisted | None, str]:
        """As `rolemesh_durable.rank.last_state`: the rank's part of the only checkpoint, or why there is none."""
        world, step = self.world, self.finished
        if not world.scenario.plan.last:
            return None, ""
        self.sleep(world.between(0.01, world.scenario.disk_s))
        if world.chance(world.scenario.disk_failures):
            world.checks.unkept = True
            return None, "No space left on device"
        attempt = world.uid()
        world.disk.write(step, self.key, attempt, self.mind.state if self.mind.kind != "stateless" else None, [])
        return m.Persisted(*self.key, step, {}, self.timeline, self.generation, attempt), ""

    def _tell(self, told: Mapping[int, dict[str, Any]]) -> None:
        """Send lines of metrics."""
        label = next((op.label for op in self.job.schedule[self.key[0]]), self.key[0])
        said = {label: {"life": [float(self.timeline), 1.0]}}
        counted = {label: {"n": 1.0}}
        lines = (Metrics(self.key[0], at, 1, 1, [0.0] * 3, said, counted, records) for at, records in told.items())
        self.report(m.RankMetrics(*self.key, self.generation, tuple(packed(lines))))

    def _at(self, phase: int, edge: int = -1) -> None:
        self.phase, self.edge, self.since = phase, edge, self.world.now

    def _restore(self) -> None:
        world, launch, memory = self.world, self.launch, self.agent.memory
        world.checks.owns(self)
        state: State | None = None
        match launch.restore:
            case "memory":
                snap = memory.snaps.get(self.key, {}).get(launch.resume)
                if snap is None:
                    world.fail("restored from what there is", f"{self.name} finds no snapshot of {launch.resume}")
                    return
                state = snap.state
                memory.drop_after(self.key, launch.resume)
            case "disk":
                state, crossing = self._stored(launch.origin_step)
                memory.drop_after(self.key, -1)
                later = [entry for entry in memory.logs[self.key] if entry.step > launch.resume]
                # What crossed this step may cross the next persisted one too.
                memory.logs[self.key] = [*crossing, *later]
                memory.switch(self.key, launch.resume, state, False)
            case "none":
                memory.drop_after(self.key, -1)
        if state is not None:
            self.mind.state = state
        world.checks.restored(self)
        self.finished = self.step = launch.resume
        self.snapshot = launch.resume

    def _open(self) -> None:
        job, launch = self.job, self.launch
        for edge in job.graph.edges:
            src, dst = job.graph.ops[edge.src], job.graph.ops[edge.dst]
            if dst.role == self.key[0]:
                port = self.ins[edge.id] = In(self, edge, launch.resume)
                if job.shared(edge):
                    self.mates[edge.dst] = Mates(self, edge)
                if launch.origin_step >= 0:
                    self._given(port, launch.origin_step)
            if src.role == self.key[0] and (sends := self.shape.sends(edge, self.key[1])):
                self.ways[edge.id] = OutEdge(self, edge, sends)
        memory = self.agent.memory
        unsure = memory.sure.get(self.key, -1) < self.generation - 1 and self.generation > 0
        if self.key[0] in job.varying and unsure:
            for way in self.ways.values():
                steps = (e.step for e in memory.logs.get(self.key, ()) if e.edge == way.edge.id)
                way.made = max(launch.resume, *steps, -1)
        elif not unsure:
            memory.sure[self.key] = self.generation
        for entry in memory.logs.setdefault(self.key, []):
            edge = job.graph.edges[entry.edge]
            if entry.step > launch.resume and self._agrees(job.graph.ops[edge.src]):
                made = memory.whole[self.key][entry.edge, entry.step]
                self.former.setdefault((edge.src, entry.step), (made, []))[1].append(entry)
                continue
            if launch.layout.is_void(job.graph.ops[edge.dst].role, entry.step):
                continue  # for the ranks of an earlier layout
            nbytes = 1 if entry.item is not None else 0
            if (way := self.ways.get(entry.edge)) is None:
                continue  # what the rank itself has taken
            way.state.sent(entry.step, entry.chunk, entry.last, entry.consumers, entry.item, nbytes)
        self.opened = True
        self._commit()
        for way in self.ways.values():
            way.opened = True
        self.calls.open()
        self._rewire()
        early, self._early = self._early, []
        for frame in early:
            self._frame(frame)

    def _stored(self, step: int) -> tuple[State | None, tuple[Entry, ...]]:
        """The rank's part of a persisted snapshot, or what is cut for it of one of another layout."""
        there, (role, rank) = self.world.disk.complete[step], self.key
        size, sizes = self.shape.sizes[role], _sizes(there)
        if sizes[role] != size:
            states = [there[role, n][0] for n in range(sizes[role])]
            return (cut([s for s in states if s is not None], rank) if all(states) else None), ()
        state, crossing = there[self.key]
        ops, edges = self.job.graph.ops, self.job.graph.edges
        peers = {entry.edge: ops[edges[entry.edge].dst].role for entry in crossing}
        same = {edge for edge, peer in peers.items() if sizes[peer] == self.shape.sizes[peer]}
        return state, tuple(entry for entry in crossing if entry.edge in same)

    def _given(self, port: In, step: int) -> None:
        """Values that were on their way when the snapshot of `step` was persisted."""
        job, disk, edge = self.job, self.world.disk, port.edge
        port.not_before = step + 1
        if port.first is not None:
            for (made, _), entries in sorted(disk.crossing(step, job.graph, edge.id, self.key[1]).items()):
                for entry in entries:
                    if entry.item is not None:
                        port.first.came(made, entry.item)
            return
        before = Shape(job.graph, _sizes(disk.complete[step])) if port.released < step else job.shape
        role = job.graph.ops[edge.dst].role

        def whole(made: int, consumer: int) -> Value:
            found = disk.crossing(step, job.graph, edge.id, consumer)
            parts = [found.get((made, source)) for source in before.sources(edge, consumer)]
            if not all(parts):
                self.world.fail("asks are answered", f"{self.name}: step {made} of edge {edge.id} is not on disk")
            return port.join(
                made,
                [[e.item for e in sorted(part or (), key=lambda e: e.chunk) if e.item is not None] for part in parts],
                (before, consumer),
            )

        for made in range(port.released + 1, step + 1):
            if job.activity.consumed(edge, made, job.steps):
                port.given[made] = recut(
                    edge, partial(whole, made), before.sizes[role], self.key[1], self.shape.sizes[role]
                )

    def _may_begin(self, step: int) -> bool:
        """Whether there is a grant for `step`, and who is at the other ends of the edges is known; or no such step."""
        peers = [(port.role, source) for port in self.ins.values() for source in port.sources]
        peers += [(way.role, each) for way in self.ways.values() for send in way.sends for each in send.consumers]
        if step > self.last or step > self.granted or self._is_over():
            return step > self.last
        return all(self.generation_of(*peer) >= 0 for peer in peers)

    def _pauses(self) -> bool:
        """Whether the layout is to change here, and the snapshot of this step is not on its way."""
        return self.pause == self.finished > self.paused

    def _crosses(self) -> bool:
        """Whether the layout has changed, and other roles were resized."""
        layout = self.advance.layout if self.advance is not None else self.layout
        return layout.number > self.layout.number and not self._is_over()

    def _is_over(self) -> bool:
        """Whether its role was resized: it is about to be killed."""
        layout = self.advance.layout if self.advance is not None else self.layout
        return layout.number > self.layout.number and layout.is_void(self.key[0], layout.step)

    def _cross(self) -> None:
        """Take up the new layout: begin again on the edges from and to the roles that were resized."""
        if not self._crosses():
            return
        assert self.advance is not None
        job, layout = self.job, self.advance.layout
        changed = {role for role in layout.sizes if layout.is_void(role, layout.step)}
        self.layout, self.shape = layout, job.shaped(layout.sizes)
        self.peers = {key: peer for key, peer in self.peers.items() if key[0] not in changed}
        for edge in job.graph.edges:
            src, dst = job.graph.ops[edge.src].role, job.graph.ops[edge.dst].role
            if dst == self.key[0] and src in changed:
                port = self.ins[edge.id] = In(self, edge, layout.step)
                self._given(port, layout.step)
            if src == self.key[0] and dst in changed:
                self.ways.pop(edge.id, None)
                if sends := self.shape.sends(edge, self.key[1]):
                    way = self.ways[edge.id] = OutEdge(self, edge, sends)
                    way.opened = True
        self.calls.resized({role: layout.sizes[role] for role in changed})

    def _repeat(self) -> None:
        """What such a rank must be told again: its last sink calls up to the step it goes on from."""
        if self.key[0] in self.job.unrepeated:
            return
        calls = [op for op in self.job.schedule[self.key[0]] if op.returns is None]
        found = [(last_call(self.job.activity, op.id, self.launch.resume), op) for op in calls]
        for step, op in sorted(((s, op) for s, op in found if s is not None), key=lambda pair: pair[0]):
            self.step = step
            self._call(op, step)

    def _fault(self) -> None:
        kind, self.injected = self.injected, ""
        if kind == "exit":
            raise Exited
        raise UserError(f"injected failure {self.world.rng.randrange(10**6)}")

    def _call(self, op: OpCall, step: int) -> None:
        world = self.world
        self.op = op.id
        inputs: list[Value] = []
        for edge in self.job.inputs[op.id]:
            port, made = self.ins[edge.id], step - edge.lag
            if edge.newest:
                port.first.call(step) if port.first is not None else self._newest(port, step)
                inputs.append(newest_of(edge))
                continue
            if made in port.given:
                inputs.append(port.given.pop(made))
                continue
            if op.streaming:
                self._stream(port, made)
            if not port.ready(made):
                self._await(lambda: port.ready(made), WAITING, edge.id)  # noqa: B023 (asked before the next round)
            parts = port.state.take(made)
            world.checks.used_version(self, edge, step, made, parts)
            inputs.append(port.join(made, parts))
        if op.id in self.mates:
            given = {edge.param: value for edge, value in zip(self.job.inputs[op.id], inputs, strict=True)}
            shared_call(self, op, step, given)
            self._release(op, step)
            return
        if self.together and step > self.finished:
            self._gather(op, step)
        self.computes(op, step)
        if op.calls:
            inputs.append(self.calls.ask(op, step))
            self._at(COMPUTING)
        group: tuple[int, ...] = ()
        if self.launch.collective and self.mind.kind != "apart":
            assert self.wire is not None
            assert self.wire.rendezvous is not None
            meeting = world.group(self.key[0], self.wire.rendezvous.generation)
            present = meeting.rounds.setdefault((step, op.id, 0), {})
            present[self.key[1]] = self.mind.contribution(op, inputs)
            if len(present) == meeting.size:
                for mate in meeting.members.values():
                    if mate is not self:
                        world.at(0.0, mate.look)
            self.until(lambda: len(present) == meeting.size)
            group = tuple(present[n] for n in range(meeting.size))
        elif self.mind.kind == "collective":
            group = (self.mind.contribution(op, inputs),)
        value = self.mind.run(op, step, inputs, group)
        if self.key[0] in self.job.varying:
            value = self.mind.vary(value, self._nonce(op, step))
        self._put(op, step, value)
        self._release(op, step)

    def computes(self, op: OpCall, step: int, factor: int = 1) -> None:
        """Be in an operator for some time."""
        world, self.owed = self.world, -1
        self._at(COMPUTING)
        self.sleep(factor * world.between(0.001, world.scenario.pace) + world.scenario.slow.get((op.id, step), 0.0))
        if self.injected:
            self._fault()
        if (self.key, step) in world.raises:
            raise UserError(f"the workload cannot do step {step}")
        since, needed = world.scenario.needs.get(self.key[0], (step, 0.0))
        if step >= since and self.launch.memory_gb < needed:
            raise UserError("MemoryError")

    def waits(self, edge: int) -> None:
        """Be about to wait for what comes along `edge`."""
        self._at(WAITING, edge)

    def hear(self) -> None:
        """Take what has come."""
        self._pump()
        if self.stopping:
            raise Stopped

    def _release(self, op: OpCall, step: int) -> None:
        for edge in self.job.inputs[op.id]:
            port = self.ins[edge.id]
            port.released = step - edge.lag if not edge.newest else max(port.released, port.choice.released)
            port.pending += 1
            if port.pending >= max(1, edge.window // 2):
                port.flush()

    def _newest(self, port: In, step: int) -> None:
        choice, edge = port.choice, port.edge

        def there(made: int) -> bool:
            return made in port.given or port.state.ready(made)

        if not choice.choose(step, there):
            self._at(WAITING, edge.id)
            self.until(lambda: choice.choose(step, there))
        self.world.checks.chose(self, edge, step, choice.made)
        self.agent.memory.choices.setdefault(self.key, {})[edge.id, step] = choice.made
        port.state.forget(choice.made)
        port.state.use(choice.made)
        if choice.made not in port.given:
            self.world.checks.used_version(self, edge, step, choice.made, port.state.peek(choice.made))

    def _stream(self, port: In, made: int) -> None:
        """Use chunks as they come: they may not be taken again after that."""
        self._at(WAITING, port.edge.id)
        for position in range(len(port.sources)):
            index = 0
            while True:
                state = port.state
                self.until(lambda: state.chunk(made, position, index) is not None or state.ended(made, position))  # noqa: B023
                if state.chunk(made, position, index) is None:
                    break
                index += 1

    def credits(self, op: OpCall, step: int) -> list[OutEdge]:
        """The ways that want the value of `step`, when they may take it."""
        found = []
        for edge in self.job.outputs[op.id]:
            way = self.ways.get(edge.id)
            if way is None or not self.job.activity.consumed(edge, step, self.job.steps):
                continue
            if not way.state.admits(step) and step != self.admitted:
                self._at(BLOCKED, edge.id)
                self.until(lambda: way.state.admits(step))  # noqa: B023 (asked before the next round)
            found.append(way)
        self._room(step)
        return found

    def _put(self, op: OpCall, step: int, value: Value) -> None:
        edges = [e for e in self.job.outputs[op.id] if self.job.activity.consumed(e, step, self.job.steps)]
        if self.key[0] in self.job.varying:
            ways = [self.ways[e.id] for e in edges if e.id in self.ways]
            if self._agrees(op):
                self._put_together(op, step, value, ways)
            else:
                self._put_whole(step, value, ways)
            return
        self._room(step)
        for edge in edges:
            way = self.ways.get(edge.id)
            if way is None:
                continue
            if not way.state.admits(step) and step != self.admitted:
                self._at(BLOCKED, edge.id)
                self.until(lambda: way.state.admits(step))  # noqa: B023 (asked before the next round)
            for send in way.sends:
                chunks = chunks_of(part_of(value, send.selection))
                marked = value.h % 2 == 0
                for number, chunk in enumerate(chunks):
                    last = not marked and number == len(chunks) - 1
                    self.emit(way, step, number, last, send.consumers, chunk)
                    if number:
                        self.sleep(self.world.between(0.0, 0.002))
                if marked:
                    self.emit(way, step, len(chunks), True, send.consumers, None)

    def _put_whole(self, step: int, value: Value, ways: list[OutEdge]) -> None:
        """One version: see `rolemesh_durable.rank.version_port.VersionPort`."""
        if self._is_made(step, ways):
            return
        staged = self._staged(step, value, ways)
        self.log_whole(step, staged)
        self.show_whole(staged)

    def log_whole(self, step: int, staged: list[tuple[Any, ...]]) -> None:
        """Log all that a call has made."""
        memory = self.agent.memory
        for way, *rest in staged:
            self.world.checks.owns(self)
            memory.logs[self.key].append(Entry(way.edge.id, *rest, way.hold))
            self.sleep(self.world.between(0.0, 0.001))
        memory.say_whole(self.key, {way.edge.id for way, *_ in staged}, step, self.generation)

    def show_whole(self, staged: list[tuple[Any, ...]]) -> None:
        """Send what is in the log."""
        for way, *rest in staged:
            self._show(way, *rest)
            self.sleep(self.world.between(0.0, 0.002))

    def _put_together(self, op: OpCall, step: int, value: Value, ways: list[OutEdge]) -> None:
        """One version of what a group makes: see `rolemesh_durable.rank.version_port.GroupPort`."""
        staged = self._staged(step, value, ways)
        made, former = self.former.pop((op.id, step), (self.generation, []))
        if not former:
            self._log(step, staged)
        vote = made + 1 if former or staged else NOTHING
        while not (self._voted(op, step, vote)):
            for way in ways:
                way.void(step)
            self.all_have_said()
            former, vote = [], self.generation + 1 if staged else NOTHING
            self._log(step, staged)
        self.show_whole([(self.ways[e.edge], *e[1:-1]) for e in former] or staged)

    def _voted(self, op: OpCall, step: int, vote: int) -> bool:
        self.verdict = None
        position = step * len(self.job.graph.ops) + op.id
        self.send_to((self.key[0], 0), ("vote", self.key[1], self.generation, position, vote))
        self._at(BLOCKED)
        self.until(lambda: self.verdict is not None)
        return bool(self.verdict)

    def _log(self, step: int, staged: list[tuple[Any, ...]]) -> None:
        """Log what the group has made. What a former generation has made there counts until all of it is there."""
        memory = self.agent.memory
        self.sleep(self.world.between(0.0, self.world.scenario.pace if staged else 0.0))  # large parts take their time
        self.world.checks.owns(self)
        edges = {way.edge.id for way, *_ in staged}
        memory.logs[self.key] = [e for e in memory.logs[self.key] if e.step != step or e.edge not in edges]
        memory.logs[self.key] += [Entry(way.edge.id, *rest, way.hold) for way, *rest in staged]
        memory.say_whole(self.key, edges, step, self.generation)

    def _agrees(self, op: OpCall) -> bool:
        """Whether a group makes what this call sends, which is something else each time."""
        return self.launch.collective and op.role in self.job.varying and bool(self.job.outputs[op.id])

    def _nonce(self, op: OpCall, step: int) -> int:
        """What makes the call come out as it does: something else each time, but the same in all ranks of a group."""
        if not self.launch.collective:
            return self.world.nonce()
        return self.world.group(self.key[0], self.generation).nonces.setdefault((step, op.id), self.world.nonce())

    def all_have_said(self) -> None:
        """Wait until all consumers have said what they have used, where that may be what is in no log."""
        for way in self.ways.values():
            if way.made is not None:
                self._at(BLOCKED, way.edge.id)
                self.until(lambda: not way.state.unheard)  # noqa: B023 (asked before the next round)
        for way in self.ways.values():
            way.made = None
        self.agent.memory.sure[self.key] = self.generation

    def _staged(self, step: int, value: Value, ways: list[OutEdge]) -> list[tuple[Any, ...]]:
        """All that is to be sent of a value, when there are credits for it."""
        staged: list[tuple[Any, ...]] = []
        self.all_have_said()
        self._room(step)
        for way in ways:
            if not way.state.admits(step) and step != self.admitted:
                self._at(BLOCKED, way.edge.id)
                self.until(lambda: way.state.admits(step))  # noqa: B023 (asked before the next round)
            for send in way.sends:
                chunks: list[Value | None] = [*chunks_of(part_of(value, send.selection))]
                chunks += [None] if value.h % 2 == 0 else []
                for number, chunk in enumerate(chunks):
                    staged.append((way, step, number, number == len(chunks) - 1, send.consumers, chunk))
        return staged

    def _is_made(self, step: int, ways: list[OutEdge]) -> bool:
        return any(self.agent.memory.is_whole(self.key, way.edge.id, step) for way in ways)

    def emit(
        self, way: OutEdge, step: int, chunk: int, last: bool, consumers: tuple[int, ...], item: Any | None
    ) -> None:
        """Log a chunk, and send it to those who have asked."""
        self.world.checks.owns(self)
        self.agent.memory.logs[self.key].append(Entry(way.edge.id, step, chunk, last, consumers, item, way.hold))
        self._show(way, step, chunk, last, consumers, item)

    def _show(
        self, way: OutEdge, step: int, chunk: int, last: bool, consumers: tuple[int, ...], item: Value | None
    ) -> None:
        for consumer in way.state.sent(step, chunk, last, consumers, item, 1 if item is not None else 0):
            self.send_chunk(way, consumer, step, chunk, last, item)

    def _finish(self) -> None:
        self.said = True
        self.report(m.RankFinish(*self.key, self.generation, "it has said so"))
        self.world.scenario.nemesis.said(self.world, self.agent)

    def _boundary(self, step: int) -> None:
        """The snapshot after `step`, if there is one."""
        plan, steps = self.world.scenario.plan, min(self.job.steps, self.last + 1)
        if self.advance is not None and step == self.pause and self.agent.node in self.advance.draining:
            self.world.checks.leaves(self, step)
        if self.said:
            self._await_journal()
        if plan.last:
            return
        must = step in (self.pause, steps - 1)
        persist = must or plan.persisted(step, steps)
        if not (must or self.late or plan.due(step, steps)):
            return
        if not must and (told := self.appointments) is not None:
            self._at(BLOCKED)
            self.until(lambda: told.is_one(step) is not None)
            if not told.is_one(step):
                return
        if not must and self._may_owe(step, persist):
            self.owed, self.late = step, True
            return
        if not must and self.together:
            self._say(0, barrier.WANT, step)
            self._at(BLOCKED)
            self.until(lambda: self.taking >= step)
        self._take(step, persist)
        self.world.checks.held(self, step)

    def _may_owe(self, step: int, persist: bool) -> bool:
        """Most snapshots are left out, where they may be."""
        if not self.owes:
            return False
        if not self.together or self.guard is not None:
            if crc32(f"{self.key} {step}".encode()) % 4 == 0:
                return False
            waiting = (at for at, snap in self.agent.memory.snaps.get(self.key, {}).items() if snap.pinned)
            apart = 3 ** (crc32(f"{self.key} apart".encode()) % 4)
            outlasts = persist and outlasting((*waiting, step)) == step
            if outlasts and until_shared(step, self.world.scenario.plan.persist_every, apart) == 0:
                return False
        if len(self._kept()) > self.keeps:
            return False
        if self.together:
            return True
        if not all(way.state.credit for way in self.ways.values()):
            return False
        self.admitted = step + 1
        return True

    def _kept(self) -> list[int]:
        return [kept.step + way.hold for way in self.ways.values() for kept in way.state.kept]

    def _room(self, step: int) -> None:
        """As `rolemesh_durable.rank.edges.Ports.waits_for_room`."""

        def full() -> bool:
            kept, reachable = self._kept(), self.world.scenario.plan.boundary(min(step, self.snapshot + 1))
            return len(kept) > self.keeps and min(kept) <= reachable

        if step != self.admitted and full():
            self._await(lambda: not full(), BLOCKED)

    def _await(self, there: Callable[[], bool], phase: int, edge: int = -1) -> None:
        """Wait until `there()`; what is owed is settled meanwhile."""
        while not there():
            self._settle()
            self._at(phase, edge)
            self.until(lambda told=self.taking: there() or self.taking > told)

    def _settle(self) -> None:
        """The rank waits, and no operator has run since the last step."""
        if self.owed >= 0 and self.together and self.guard is not None:
            self._say(0, barrier.WANT, self.owed)
        if self.owed >= 0 and (not self.together or self.owed <= self.taking):
            self._take(self.owed, self.world.scenario.plan.persisted(self.owed, self.job.steps))

    def _gather(self, op: OpCall, step: int) -> None:
        """As `rolemesh_durable.rank.call_start.Admission`: the group goes in together, with credits and room."""
        self._room(step)
        for edge in self.job.outputs[op.id]:
            if (way := self.ways.get(edge.id)) is not None and self.job.activity.consumed(edge, step, self.job.steps):
                self._await(lambda: way.state.admits(step), BLOCKED, edge.id)
        self.admitted, self.waiting, self.gone = step, step * len(self.job.graph.ops) + op.id, False
        self._say(0, barrier.ARRIVE, self.waiting)
        self._await(lambda: self.gone, BLOCKED)
        if 0 <= self.owed <= self.taking:
            self._take(self.owed, self.world.scenario.plan.persisted(self.owed, self.job.steps))

    def _await_journal(self) -> None:
        self.until(lambda: self.advance is not None and self.advance.finishing)

    def _end(self, step: int) -> None:
        """`step` was the last one, which may not have been known by then."""
        plan, memory = self.world.scenario.plan, self.agent.memory
        if plan.last:
            return
        if self.owed == step:
            self._take(step, True)
        if plan.persisted(step, self.job.steps) or self.persisted == step:
            return
        if self.advance is not None and self.advance.persisted >= step:
            return
        if step in memory.steps(self.key):
            memory.snaps[self.key][step].pinned = True
            self._commit()
        else:
            self._take(step, True)

    def _take(self, step: int, persist: bool) -> None:
        memory = self.agent.memory
        self.owed, self.late = -1, False
        if self.launch.collective and len(memory.steps(self.key)) > 1:
            wanted = self.snapshot
            self._at(BLOCKED)
            while not self._group_has(wanted):
                self.sleep(0.02)
                self._pump()
                if self.stopping:
                    raise Stopped
        self._at(IDLE)
        self.heard = self.heard if self.calls.behind(step) else step
        self.world.checks.owns(self)
        memory.make_room(self.key)
        self.sleep(self.world.between(0.0, 0.01))
        self.world.checks.owns(self)
        state = self.mind.state if self.mind.kind != "stateless" else None
        memory.switch(self.key, step, state, persist)
        self.snapshot = step
        self.persisted = step if persist else self.persisted
        self.world.checks.snapshot(self, step)
        self._commit()
        if self.appointments is not None and self.appointments.taken(step) and self.key[1] == 0:
            for rank in range(self.shape.sizes[self.key[0]]):
                self._say(rank, barrier.NEXT, step + 1 + crc32(f"{self.key} {step}".encode()) % 5)

    def _group_has(self, step: int) -> bool:
        mates = [(self.key[0], n) for n in range(self.shape.sizes[self.key[0]]) if n != self.key[1]]
        known = [self.agent.ranks.get(mate) for mate in mates]
        here = [rank for rank in known if rank is not None and rank.generation == self.generation]
        if len(here) == len(mates) and not self.world.scenario.plan.replicas:
            return all(rank.snapshot >= step for rank in here)
        return self.advance is not None and self.advance.groups.get(self.key[0], -1) >= step


def _sizes(ranks: Iterable[tuple[str, int]]) -> dict[str, int]:
    return Counter(role for role, _ in ranks)
