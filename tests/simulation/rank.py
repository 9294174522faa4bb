"""A simulated rank: the loop of a rank's process around the real state machines of its edges."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterable
from typing import TYPE_CHECKING, Any

from tests.simulation.memory import Entry
from tests.simulation.model import Mind, State, Value, chunks_of, gather, part_of

from rolemesh.api.failures import Failure
from rolemesh.errors import TransportError
from rolemesh.graph.logical import Edge, OpCall
from rolemesh.graph.routes import Send
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.edge import InEdgeState, OutEdgeState, first_needed, hold_of, last_call

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
        self.hold = hold_of(edge, job.graph, job.activity, job.stateful)
        consumers = [consumer for send in sends for consumer in send.consumers]
        self.state: OutEdgeState[Value] = OutEdgeState(consumers, edge.window, retain=True, hold=self.hold)
        self.pending: dict[int, tuple[int, int, int]] = {}
        self.opened = False

    def asked(self, consumer: int, generation: int, from_step: int, released: int) -> None:
        """A consumer asks; one whose address is not known yet has to wait for it."""
        if not self.opened or generation > self.rank.generation_of(self.role, consumer):
            self.pending[consumer] = (generation, from_step, released)
            return
        kept = self.state.ask(consumer, generation, from_step, released)
        self.rank.world.checks.answered(self.rank, self, consumer, generation, from_step, kept)
        for item in kept:
            self.rank.send_chunk(self, consumer, item.step, item.chunk, item.last, item.item)

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

    def __init__(self, rank: SimRank, edge: Edge) -> None:
        job = rank.job
        self.rank, self.edge = rank, edge
        self.role = job.graph.ops[edge.src].role
        self.sources = job.sources(edge, rank.key[1])
        first = first_needed(edge, job.graph, job.activity, job.stateful, rank.launch.resume)
        self.state: InEdgeState[Value] = InEdgeState(self.sources, first)
        self.released = first - 1
        self.asked = dict.fromkeys(self.sources, -1)
        self.not_before = 0
        self.given: dict[int, Value] = {}
        self.pending = 0

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
            for source in self.sources:
                frame = ("ack", self.edge.id, self.rank.key[1], self.rank.generation, self.released)
                self.rank.send_to((self.role, source), frame)


class SimRank:
    """The process of one generation of a rank. `life` is its main thread: it yields seconds, or what it waits for."""

    def __init__(self, agent: SimAgent, launch: m.RankLaunch) -> None:
        self.agent, self.world, self.launch = agent, agent.world, launch
        self.job = self.world.job
        self.key = (launch.role, launch.rank)
        self.generation = launch.generation
        self.uid = self.world.uid()
        self.pid = self.world.backend.pid()
        self.name = f"{launch.role}/{launch.rank}.{launch.generation}"
        self.alive, self.frozen, self.stopping = True, False, False
        self.cut = float("inf")
        self.mind = Mind(self.job, self.key)
        self.finished = self.snapshot = self.step = -1
        self.op, self.phase, self.edge, self.since = -1, IDLE, -1, self.world.now
        self.injected = ""
        self.wire: m.Connect | None = None
        self.advance: m.Watermarks | None = None
        self.granted = -1
        self.peers: dict[tuple[str, int], m.Peer] = {}
        self.ways: dict[int, OutEdge] = {}
        self.ins: dict[int, In] = {}
        self.opened = False
        self._early: list[tuple[Any, ...]] = []
        self._inbox: deque[Any] = deque()
        self._until: Callable[[], bool] | None = None
        self._life = self._main()
        self.world.processes[self.uid] = self
        self.world.checks.forked(self)
        self._run()

    # ------------------------------------------------------------------------------------------------ being a process

    def _run(self) -> None:
        try:
            while self.alive:
                wanted = next(self._life)
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
        except StopIteration:
            self._leave(0)

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
        self._pump()
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
        self._life.close()
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

    def _failed(self, text: str) -> None:
        op = self.job.graph.ops[self.op].label if self.op >= 0 else ""
        failure = Failure("exception", *self.key, "", op, self.step, text, text, generation=self.generation)
        self.report(m.RankFailed(failure))
        self._leave(1)

    def _leave(self, exit_code: int) -> None:
        self._until = None
        self.world.at(0.01, self.die, None, exit_code)
        self._life = _gone()

    def report(self, message: m.RankToAgent) -> None:
        """Tell the agent."""
        self.world.send(self, self.agent, message)

    # -------------------------------------------------------------------------------------------------- what comes in

    def _pump(self) -> None:
        inbox = self._inbox
        while inbox:
            frame = inbox.popleft()
            if type(frame) is tuple:
                try:
                    self._frame(frame)
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
                self.ins[edge].state.accept(source, generation, step, chunk, last, item)
            case ("ask", edge, consumer, generation, from_step, released):
                if not self.opened:
                    self._early.append(frame)
                    return
                self.ways[edge].asked(consumer, generation, from_step, released)
            case ("ack", edge, consumer, generation, step):
                if not self.opened:
                    self._early.append(frame)
                    return
                self.ways[edge].acked(consumer, generation, step)

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
                if self.opened:
                    self._commit()
            case m.Stop():
                self.stopping = True
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
        memory.trim(self.key, self.advance.committed)

    def _rewire(self) -> None:
        for way in self.ways.values():
            way.rewire()
        for port in self.ins.values():
            port.ask()

    def generation_of(self, role: str, rank: int) -> int:
        """The newest generation of a peer that has been heard of."""
        if (role, rank) == self.key:
            return self.generation
        peer = self.peers.get((role, rank))
        return peer.generation if peer is not None else -1

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

    def _main(self) -> Generator[Any, None, None]:
        world, launch = self.world, self.launch
        pace = world.scenario.pace
        yield world.between(0.01, 0.05)
        port = 1000 if launch.collective and launch.rank == 0 else None
        self.report(m.RankHello(*self.key, self.generation, self.pid, {"sim": self.uid}, port))
        yield lambda: self.wire is not None
        yield world.between(0.01, 0.2)
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
            self._tell(self.agent.memory.lines.get(self.key, ()))
        yield from self._repeat()
        schedule = self.job.schedule[self.key[0]]
        for step in range(launch.resume + 1, self.job.steps):
            if step > self.granted:
                self._at(IDLE)
                yield lambda: step <= self.granted  # noqa: B023 (asked before the next step)
            self.step = step
            for op in schedule:
                if self.job.activity.active(op.id, step):
                    yield from self._call(op, step)
            self.agent.memory.lines.setdefault(self.key, []).append(step)
            yield from self._boundary(step)
            self.finished = step
            self._tell((step,))
            self._pump()
            if self.stopping:
                raise Stopped
            yield world.between(0.0, pace / 4)
        self._at(IDLE)
        yield lambda: not any(way.state.under_way for way in self.ways.values())
        sha = repr(self.mind.state) if self.mind.kind != "stateless" else ""
        world.checks.done(self)
        self.report(m.RankDone(*self.key, self.generation, self.job.steps - 1, sha))
        yield lambda: False

    def _tell(self, steps: Iterable[int]) -> None:
        """Send lines of metrics."""
        label = self.job.schedule[self.key[0]][0].label
        lines = tuple(m.Metrics(self.key[0], at, 1, 1, [0.0] * 3, sums={label: {"n": 1.0}}) for at in steps)
        self.report(m.RankMetrics(*self.key, self.generation, lines))

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
                state, crossing = world.disk.complete[launch.origin_step][self.key]
                memory.clear(self.key)
                # What crossed this step may cross the next persisted one too.
                memory.logs[self.key] = list(crossing)
                memory.switch(self.key, launch.resume, state, False)
            case "none":
                memory.clear(self.key)
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
                port = self.ins[edge.id] = In(self, edge)
                if launch.origin_step >= 0:
                    port.not_before = launch.origin_step + 1
                    self._given(port)
            if src.role == self.key[0] and (sends := job.sends(edge, self.key[1])):
                self.ways[edge.id] = OutEdge(self, edge, sends)
        for entry in self.agent.memory.logs.setdefault(self.key, []):
            nbytes = 1 if entry.item is not None else 0
            way = self.ways[entry.edge]
            way.state.sent(entry.step, entry.chunk, entry.last, entry.consumers, entry.item, nbytes)
        self.opened = True
        self._commit()
        for way in self.ways.values():
            way.opened = True
        self._rewire()
        early, self._early = self._early, []
        for frame in early:
            self._frame(frame)

    def _given(self, port: In) -> None:
        """Values that were on their way when the snapshot was persisted."""
        step, first = self.launch.origin_step, port.released + 1
        found = self.world.disk.crossing(step, self.job.graph, port.edge.id, self.key[1])
        for made in range(first, step + 1):
            if not self.job.activity.consumed(port.edge, made, self.job.steps):
                continue
            parts = [found.get((made, source)) for source in port.sources]
            if not all(parts):
                self.world.fail("asks are answered", f"{self.name}: step {made} of edge {port.edge.id} is not on disk")
            port.given[made] = gather(
                [[e.item for e in sorted(part or (), key=lambda e: e.chunk) if e.item is not None] for part in parts]
            )

    def _repeat(self) -> Generator[Any, None, None]:
        """What a stateless rank must be told again: its last sink calls up to the step it goes on from."""
        if self.mind.kind != "stateless":
            return
        calls = [op for op in self.job.schedule[self.key[0]] if op.returns is None]
        found = [(last_call(self.job.activity, op.id, self.launch.resume), op) for op in calls]
        for step, op in sorted(((s, op) for s, op in found if s is not None), key=lambda pair: pair[0]):
            self.step = step
            yield from self._call(op, step)

    def _fault(self) -> None:
        kind, self.injected = self.injected, ""
        if kind == "exit":
            raise Exited
        raise UserError(f"injected failure {self.world.rng.randrange(10**6)}")

    def _call(self, op: OpCall, step: int) -> Generator[Any, None, None]:
        world = self.world
        self.op = op.id
        inputs: list[Value] = []
        for edge in self.job.inputs[op.id]:
            port, made = self.ins[edge.id], step - edge.lag
            if made in port.given:
                inputs.append(port.given.pop(made))
                continue
            if op.streaming:
                yield from self._stream(port, made)
            if not port.state.ready(made):
                self._at(WAITING, edge.id)
                yield lambda: port.state.ready(made)  # noqa: B023 (asked before the next round)
            inputs.append(gather(port.state.take(made)))
        self._at(COMPUTING)
        yield world.between(0.001, world.scenario.pace) + world.scenario.slow.get((op.id, step), 0.0)
        if self.injected:
            self._fault()
        if (self.key, step) in world.raises:
            raise UserError(f"the workload cannot do step {step}")
        group: tuple[int, ...] = ()
        if self.launch.collective:
            assert self.wire is not None
            assert self.wire.rendezvous is not None
            meeting = world.group(self.key[0], self.wire.rendezvous.generation)
            present = meeting.rounds.setdefault((step, op.id, 0), {})
            present[self.key[1]] = self.mind.contribution(op, inputs)
            if len(present) == meeting.size:
                for mate in meeting.members.values():
                    if mate is not self:
                        world.at(0.0, mate.look)
            yield lambda: len(present) == meeting.size
            group = tuple(present[n] for n in range(meeting.size))
        value = self.mind.run(op, step, inputs, group)
        yield from self._put(op, step, value)
        for edge in self.job.inputs[op.id]:
            port = self.ins[edge.id]
            port.released = step - edge.lag
            port.pending += 1
            if port.pending >= max(1, edge.window // 2):
                port.flush()

    def _stream(self, port: In, made: int) -> Generator[Any, None, None]:
        """Use chunks as they come: they may not be taken again after that."""
        self._at(WAITING, port.edge.id)
        for position in range(len(port.sources)):
            index = 0
            while True:
                state = port.state
                yield lambda: state.chunk(made, position, index) is not None or state.ended(made, position)  # noqa: B023
                if state.chunk(made, position, index) is None:
                    break
                index += 1

    def _put(self, op: OpCall, step: int, value: Value) -> Generator[Any, None, None]:
        for edge in self.job.outputs[op.id]:
            way = self.ways.get(edge.id)
            if way is None or not self.job.activity.consumed(edge, step, self.job.steps):
                continue
            if not way.state.credit:
                self._at(BLOCKED, edge.id)
                yield lambda: way.state.credit  # noqa: B023 (asked before the next round)
            for send in way.sends:
                chunks = chunks_of(part_of(value, send.selection))
                marked = value.h % 2 == 0
                for number, chunk in enumerate(chunks):
                    last = not marked and number == len(chunks) - 1
                    self._emit(way, step, number, last, send.consumers, chunk)
                    if number:
                        yield self.world.between(0.0, 0.002)
                if marked:
                    self._emit(way, step, len(chunks), True, send.consumers, None)

    def _emit(
        self, way: OutEdge, step: int, chunk: int, last: bool, consumers: tuple[int, ...], item: Value | None
    ) -> None:
        self.world.checks.owns(self)
        self.agent.memory.logs[self.key].append(Entry(way.edge.id, step, chunk, last, consumers, item, way.hold))
        for consumer in way.state.sent(step, chunk, last, consumers, item, 1 if item is not None else 0):
            self.send_chunk(way, consumer, step, chunk, last, item)

    def _boundary(self, step: int) -> Generator[Any, None, None]:
        """The snapshot after `step`."""
        plan, memory = self.world.scenario.plan, self.agent.memory
        if not plan.due(step, self.job.steps):
            return
        if self.launch.collective and len(memory.steps(self.key)) > 1:
            wanted = self.snapshot
            self._at(BLOCKED)
            while not self._group_has(wanted):
                yield 0.02
                self._pump()
                if self.stopping:
                    raise Stopped
        self._at(IDLE)
        self.world.checks.owns(self)
        memory.make_room(self.key)
        yield self.world.between(0.0, 0.01)
        self.world.checks.owns(self)
        state = self.mind.state if self.mind.kind != "stateless" else None
        memory.switch(self.key, step, state, plan.persisted(step, self.job.steps))
        self.snapshot = step
        self.world.checks.snapshot(self, step)
        self._commit()

    def _group_has(self, step: int) -> bool:
        mates = [(self.key[0], n) for n in range(self.job.sizes[self.key[0]]) if n != self.key[1]]
        here = [self.agent.ranks.get(mate) for mate in mates]
        if all(here) and not self.world.scenario.plan.replicas:
            return all(r is not None and r.generation == self.generation and r.snapshot >= step for r in here)
        return self.advance is not None and self.advance.groups.get(self.key[0], -1) >= step


def _gone() -> Generator[Any, None, None]:
    yield lambda: False
