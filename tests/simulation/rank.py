"""A simulated rank: the loop of a rank's process around the real state machines of its edges."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from zlib import crc32

import greenlet
from tests.simulation.calls import SimCalls
from tests.simulation.effects import Chunk, SimItem, SimLog, SimMail, SimPage, SimWaits, Streamed, effects_of
from tests.simulation.memory import Entry, Lines
from tests.simulation.model import Mind, Shape, State, Value, chunks_of, cut, gather, initial_of, newest_of, recut
from tests.simulation.sharing import assembled, shared_call

from rolemesh.api.failures import Cause, Failure
from rolemesh.api.partition import Balanced
from rolemesh.graph.logical import Edge, OpCall
from rolemesh.runs.metrics import Metrics
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.blocks import Block, packed
from rolemesh_durable.protocol.delivery import InPort, delivery_of
from rolemesh_durable.protocol.edge import LogLost, hold_of, last_call
from rolemesh_durable.protocol.owing import by_appointment, may_owe, until_shared
from rolemesh_durable.protocol.persisting import outlasting
from rolemesh_durable.protocol.rank.group_barrier import GroupBarrier
from rolemesh_durable.protocol.rank.page import (
    BLOCKED,
    COMPUTING,
    EDGE,
    FINISHED,
    GATHERING,
    IDLE,
    OP,
    PHASE,
    SINCE_NS,
    SNAPSHOT,
    STEP,
)
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.shape import JobShape
from rolemesh_durable.transports import TransportError

if TYPE_CHECKING:
    from tests.simulation.agent import SimAgent

__all__ = ["SimRank"]


class Stopped(Exception):
    """The agent has said stop."""


class Exited(Exception):
    """The process has ended itself."""


class UserError(Exception):
    """The workload has raised."""


def _field(at: int) -> Any:
    """A field of the status page, as an attribute."""

    def set_(self: SimRank, value: int) -> None:
        self.page.fields[at] = value

    return property(lambda self: self.page.fields[at], set_)


class SimRank:
    """The process of one generation of a rank. Its main thread is a greenlet: it gives way with the seconds that
    something takes, or with what it waits for."""

    finished, step, op = _field(FINISHED), _field(STEP), _field(OP)
    phase, edge, snapshot = _field(PHASE), _field(EDGE), _field(SNAPSHOT)

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
        self.page = SimPage()
        self.page.fields[SINCE_NS] = self.clock_ns
        self.doing = -1
        """The step whose call runs, which may be repeated."""
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
        self.mail = SimMail(self)
        self.barrier = GroupBarrier(self.mail, size) if launch.collective else None
        self.appointments = self.barrier.appointments if apart and self.barrier is not None else None
        self.ports: Ports[SimItem] | None = None
        self.calls = SimCalls(self)
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
                self.mail.flush()
                self._pump(wanted)
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
            self._pump(self._until)
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

    def handle_all(self) -> None:
        """Handle all that is there."""
        self._pump(lambda: False)

    def _pump(self, ready: Callable[[], object]) -> None:
        """Handle what is there; of a group's rank only until what it waits for is so: see `Endpoint.wait`. Raises
        `LogLost`, after which the rank handles nothing more: see `_leave`."""
        inbox = self._inbox
        while inbox and not (self.barrier is not None and ready()):
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
        if self.mail.take(frame):
            return
        if self.opened:
            self.calls.frame(frame)
        else:
            self._early.append(frame)

    def _control(self, message: m.AgentToRank) -> None:
        match message:
            case m.Connect():
                self.wire = message
                if self.ports is not None and self.opened:
                    self.ports.rewire(message.peers)
                    self.calls.rewire()
                else:
                    self.mail.connect(message.peers)
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
        if self.advance is None or self.ports is None:
            return
        memory, ports = self.agent.memory, self.ports
        ports.pin(memory.pins(self.key))
        ports.commit(self.advance.committed)
        self.calls.advanced(self.advance)
        job = self.job
        holds = {e.id: hold_of(e, job.graph, job.activity, job.unrepeated) - e.lag for e in job.graph.edges}
        memory.trim(self.key, self.advance.committed, holds)

    def generation_of(self, role: str, rank: int) -> int:
        """The newest generation of a peer that has been heard of."""
        return self.mail.generation(role, rank)

    def send_to(self, key: tuple[str, int], frame: tuple[Any, ...]) -> None:
        """Send a frame to a peer, or to itself."""
        if key == self.key:
            self._inbox.append(frame)
            return
        self.world.send(self, self.world.processes.get(self.mail.peers[key].addresses["sim"]), frame)

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
        ports = self._open()
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
            self.handle_all()
            if self.stopping:
                raise Stopped
            self.sleep(world.between(0.0, pace / 4))
        self.at(IDLE)
        ports.end(self.finished)
        ports.drain(self.finished)
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

    @property
    def clock_ns(self) -> int:
        """The rank's clock."""
        return round(self.world.now * 1e9)

    @property
    def since(self) -> float:
        """When the phase has begun."""
        return self.page.fields[SINCE_NS] * 1e-9

    def at(self, phase: int, edge: int = -1) -> None:
        """The rank is in `phase` now."""
        self.phase, self.edge, self.page.fields[SINCE_NS] = phase, edge, self.clock_ns

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

    def _open(self) -> Ports[SimItem]:
        job, launch, memory = self.job, self.launch, self.agent.memory
        memory.logs.setdefault(self.key, [])
        shape = JobShape(
            job.graph, job.activity, self.shape.sizes, job.steps, True, self.keeps, self.world.scenario.plan,
            job.unrepeated, job.varying,
        )  # fmt: skip
        log = SimLog(self)
        ports = self.ports = Ports(
            shape, effects_of(self, self.page, self.mail, log), resume=launch.resume, barrier=self.barrier
        )
        self._take_over(ports)
        if launch.origin_step >= 0:
            self._give(ports, launch.origin_step, job.graph.edges)
        self.opened = True
        self._commit()
        ports.open()
        self.calls.open()
        early, self._early = self._early, []
        for frame in early:
            self._frame(frame)
        return ports

    def _take_over(self, ports: Ports[SimItem]) -> None:
        """As `rolemesh_durable.rank.takeover.take_over`."""
        memory, resume, graph, layout = self.agent.memory, self.launch.resume, self.job.graph, self.launch.layout
        chosen, log = memory.choices.setdefault(self.key, {}), memory.logs[self.key]
        ports.choose_again({at: at[1] - made for at, made in chosen.items() if isinstance(made, int)})
        taken = [_Record(edge, at, body=made) for (edge, at), made in chosen.items() if isinstance(made, bytes)]
        taken += [_Record(entry.edge, entry.step, body=entry.item) for entry in log if not entry.consumers]
        ports.take_again(resume, taken)
        whole = memory.whole.get(self.key, {})
        kept = [at for at in whole if at[1] > resume and memory.is_whole(self.key, *at)]
        for op, step in sorted({(graph.edges[edge].src, step) for edge, step in kept}):
            if (out := ports.outputs.get(op)) is not None:
                out.whole(_Record(op, step, body=memory.items.get(self.key, {}).get((op, step), b"")))
        ways = {way.edge.id: way for way in ports.ways}
        for entry in list(log):
            edge = graph.edges[entry.edge]
            void = any(layout.is_void(graph.ops[end].role, entry.step) for end in (edge.src, edge.dst))
            if not entry.consumers or (layout.number and void):
                continue
            way, again = ways[entry.edge], entry.step > resume
            if again and way.made is not None:
                way.made = max(way.made, entry.step)
            if entry.step + way.delivery.soonest >= self.job.steps:
                continue
            made = whole.get((entry.edge, entry.step), -1)
            record = _Record(entry.edge, entry.step, made, entry.chunk, entry.last, entry.consumers)
            item = SimItem(entry.item) if entry.item is not None else None
            ports.outputs[edge.src].take_over(way, item, record, again=again)

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

    def _give(self, ports: Ports[SimItem], step: int, edges: Iterable[Edge]) -> None:
        """Values that were on their way when the snapshot of `step` was persisted."""
        known = {edge.id for edge in edges}
        origin = SimOrigin(self, step)
        for port in ports.ins:
            if port.edge.id in known:
                values = port.given_by(origin, step) if port.first <= step else {}
                port.give({made: value for made, value in values.items() if made >= port.first}, step)

    def _may_begin(self, step: int) -> bool:
        """Whether there is a grant for `step`, and who is at the other ends of the edges is known; or no such step."""
        if step > self.last or step > self.granted or self._is_over():
            return step > self.last
        return self.ports is not None and self.ports.wired

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
        assert self.ports is not None
        edges = self.ports.relayout(layout, changed)
        self.calls.resized({role: layout.sizes[role] for role in changed})
        self._give(self.ports, layout.step, [job.graph.edges[edge] for edge in edges])

    def _repeat(self) -> None:
        """What such a rank must be told again: its last sink calls up to the step it goes on from."""
        if self.key[0] in self.job.unrepeated:
            return
        calls = [op for op in self.job.schedule[self.key[0]] if op.returns is None]
        found = [(last_call(self.job.activity, op.id, self.launch.resume), op) for op in calls]
        for step, op in sorted(((s, op) for s, op in found if s is not None), key=lambda pair: pair[0]):
            self._call(op, step)

    def _fault(self) -> None:
        kind, self.injected = self.injected, ""
        if kind == "exit":
            raise Exited
        raise UserError(f"injected failure {self.world.rng.randrange(10**6)}")

    def _call(self, op: OpCall, step: int) -> None:
        world, ports = self.world, self.ports
        assert ports is not None
        self.op, self.doing = op.id, step
        inputs: list[Value] = []
        for _, port in ports.inputs.get(op.id, []):
            if op.streaming and not port.edge.newest:
                inputs.append(self._stream(port, step))
                continue
            value = port.take(step)
            inputs.append(newest_of(port.edge) if port.edge.newest else _taken(port, value))
        if op.id in ports.mates:
            given = {port.edge.param: value for (_, port), value in zip(ports.inputs[op.id], inputs, strict=True)}
            shared_call(self, op, step, given)
            self._release(op, step)
            return
        if self.together and step > self.finished:
            self._gather(op, step)
        self.computes(op, step)
        if op.calls:
            inputs.append(self.calls.ask(op, step))
            self.at(COMPUTING)
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
        self.at(COMPUTING)
        self.sleep(factor * world.between(0.001, world.scenario.pace) + world.scenario.slow.get((op.id, step), 0.0))
        if self.injected:
            self._fault()
        if (self.key, step) in world.raises:
            raise UserError(f"the workload cannot do step {step}")
        since, needed = world.scenario.needs.get(self.key[0], (step, 0.0))
        if step >= since and self.launch.memory_gb < needed:
            raise UserError("MemoryError")

    def hear(self) -> None:
        """Take what has come."""
        self.handle_all()
        if self.stopping:
            raise Stopped

    def _release(self, op: OpCall, step: int) -> None:
        assert self.ports is not None
        for _, port in self.ports.inputs.get(op.id, []):
            if op.streaming:
                port.release_stream(step)
            else:
                port.release(step)

    def _stream(self, port: InPort, step: int) -> Value:
        """Use chunks as they come: they may not be taken again after that."""
        parts: dict[int, list[Value]] = {source: [] for source in port.state.sources}
        for chunk in port.stream(step):
            if not isinstance(chunk, Streamed):
                return _taken(port, chunk)
            parts[chunk.source].append(chunk.value)
        chunks = list(parts.values())
        self.world.checks.used_version(self, port.edge, step, step - port.edge.lag, tuple(parts), chunks)
        return gather(chunks)

    def _put(self, op: OpCall, step: int, value: Value) -> None:
        assert self.ports is not None
        out, count = self.ports.outputs.get(op.id), len(chunks_of(value))
        if out is None:
            return
        if count == 1 and value.h % 2:
            out.put(step, Chunk(value, 0))
        else:
            out.put_chunks(step, self._chunks(value, count))

    def _chunks(self, value: Value, count: int) -> Iterator[Chunk]:
        for index in range(count):
            if index:
                self.sleep(self.world.between(0.0, 0.002))
            yield Chunk(value, index)

    def _nonce(self, op: OpCall, step: int) -> int:
        """What makes the call come out as it does: something else each time, but the same in all ranks of a group."""
        if not self.launch.collective:
            return self.world.nonce()
        return self.world.group(self.key[0], self.generation).nonces.setdefault((step, op.id), self.world.nonce())

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
            self._await(lambda: told.is_one(step) is not None, BLOCKED)
            if not told.is_one(step):
                return
        if not must and self._may_owe(step, persist):
            self.owed, self.late = step, True
            return
        if not must and self.together:
            assert self.barrier is not None
            self.barrier.want(step)
            self._await(lambda: self.taking >= step, BLOCKED)
        self._take(step, persist)
        self.world.checks.held(self, step)

    def _may_owe(self, step: int, persist: bool) -> bool:
        """Most snapshots are left out, where they may be."""
        if not self.owes:
            return False
        if not self.together or (self.barrier is not None and self.barrier.keeps):
            if crc32(f"{self.key} {step}".encode()) % 4 == 0:
                return False
            waiting = (at for at, snap in self.agent.memory.snaps.get(self.key, {}).items() if snap.pinned)
            apart = 3 ** (crc32(f"{self.key} apart".encode()) % 4)
            outlasts = persist and outlasting((*waiting, step)) == step
            if outlasts and until_shared(step, self.world.scenario.plan.persist_every, apart) == 0:
                return False
        ports = self.ports
        assert ports is not None
        if ports.kept_bytes > self.keeps:
            return False
        if self.together:
            return True
        if not all(way.state.credit for way in ports.ways):
            return False
        for out in ports.outputs.values():
            out.admitted = step + 1
        return True

    @property
    def taking(self) -> int:
        """The newest step of which the group takes the snapshot."""
        return self.barrier.taking if self.barrier is not None else -1

    def _await(self, there: Callable[[], bool], phase: int, edge: int = -1) -> None:
        SimWaits(self).until(there, phase, edge)

    def settle(self) -> None:
        """The rank waits, and no operator has run since the last step."""
        if self.owed >= 0 and self.together and self.barrier is not None and self.barrier.keeps:
            self.barrier.want(self.owed)
        if self.owed >= 0 and (not self.together or self.owed <= self.taking):
            self._take(self.owed, self.world.scenario.plan.persisted(self.owed, self.job.steps))

    def _gather(self, op: OpCall, step: int) -> None:
        """As `extensions.turns.admission.Admission`: the group goes in together, with credits and room."""
        barrier = self.barrier
        assert self.ports is not None
        assert barrier is not None
        if (out := self.ports.outputs.get(op.id)) is not None:
            out.await_credits(step)
        barrier.arrive(step * len(self.job.graph.ops) + op.id)
        self._await(lambda: barrier.open, GATHERING)
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
            self.at(BLOCKED)
            while not self._group_has(wanted):
                self.sleep(0.02)
                self.handle_all()
                if self.stopping:
                    raise Stopped
        self.at(IDLE)
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
            assert self.barrier is not None
            self.barrier.appoint(step + 1 + crc32(f"{self.key} {step}".encode()) % 5)

    def _group_has(self, step: int) -> bool:
        mates = [(self.key[0], n) for n in range(self.shape.sizes[self.key[0]]) if n != self.key[1]]
        known = [self.agent.ranks.get(mate) for mate in mates]
        here = [rank for rank in known if rank is not None and rank.generation == self.generation]
        if len(here) == len(mates) and not self.world.scenario.plan.replicas:
            return all(rank.snapshot >= step for rank in here)
        return self.advance is not None and self.advance.groups.get(self.key[0], -1) >= step


class _Record(NamedTuple):
    """A record that a former generation has logged."""

    edge: int
    step: int
    generation: int = -1
    chunk: int = 0
    last: bool = True
    consumers: tuple[int, ...] = ()
    body: Any = b""


class SimOrigin:
    """A persisted snapshot, as a consuming rank sees it; see `rolemesh_durable.rank.origin.Origin`."""

    def __init__(self, rank: SimRank, step: int) -> None:
        self._rank, self._step = rank, step

    def values(self, edge: Edge) -> dict[int, Any]:
        """The rank's whole values on `edge`, by the step they were made at."""
        rank, step = self._rank, self._step
        job, disk = rank.job, rank.world.disk
        before = Shape(job.graph, _sizes(disk.complete[step]))
        role = job.graph.ops[edge.dst].role
        first = delivery_of(edge).first_needed(job.graph, job.activity, job.unrepeated, step)
        begins = job.activity.first(edge) if edge.initial else 0
        found = {}
        for made in range(max(first, begins), step + 1):
            if job.activity.consumed(edge, made, job.steps):
                whole = partial(self.whole, edge, before, made)
                found[made] = recut(edge, whole, before.sizes[role], rank.key[1], rank.shape.sizes[role])
        return found

    def whole(self, edge: Edge, before: Shape, made: int, consumer: int) -> Value:
        """The value that consumer rank `consumer` of the earlier layout would have got."""
        rank = self._rank
        found = rank.world.disk.crossing(self._step, rank.job.graph, edge.id, consumer)
        parts = [found.get((made, source)) for source in before.sources(edge, consumer)]
        if not all(parts):
            rank.world.fail("asks are answered", f"{rank.name}: step {made} of edge {edge.id} is not on disk")
        chunks = [[e.item for e in sorted(part or (), key=lambda e: e.chunk) if e.item is not None] for part in parts]
        if not isinstance(edge.src_partition, Balanced):
            return gather(chunks)
        value = assembled(rank, edge, made, chunks, *self.there(before, consumer))
        return value if value is not None else Value(0)

    def there(self, before: Shape, consumer: int) -> tuple[Shape, int]:
        """The layout and the rank that a value is put together for."""
        return before, consumer

    def items(self, edge: Edge) -> dict[int, list[Any]]:
        """The items of each step."""
        rank, found = self._rank, dict[int, list[Any]]()
        crossing = rank.world.disk.crossing(self._step, rank.job.graph, edge.id, rank.key[1])
        for (made, _), entries in sorted(crossing.items()):
            found.setdefault(made, []).extend(entry.item for entry in entries if entry.item is not None)
        return found

    def taken(self, edge: Edge, step: int) -> bytes | None:
        """The items that the rank itself had taken, encoded."""
        own = self._rank.world.disk.complete[self._step][self._rank.key][1]
        return next((e.item for e in own if e.edge == edge.id and e.step == step and not e.consumers), None)


def _taken(port: InPort, value: Any) -> Value:
    """The value that a port has given; a number stands for the initial one."""
    return initial_of(port.edge) if isinstance(value, int) else value


def _sizes(ranks: Iterable[tuple[str, int]]) -> dict[str, int]:
    return Counter(role for role, _ in ranks)
