"""A simulated rank: the loop of a rank's process around the real state machines of its edges."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import greenlet
from tests.simulation.calls import SimCalls
from tests.simulation.effects import Chunk, SimItem, SimLog, SimMail, SimPage, SimWaits, Streamed, effects_of
from tests.simulation.former import SimFormerLog, SimFormerMemory, SimInFlight, origin_of, sizes_of
from tests.simulation.lines import former_lines, meter_of, started_again, stored_line
from tests.simulation.memory import Entry, Part
from tests.simulation.messages import Teller
from tests.simulation.model import Mind, State, Value, chunks_of, cut, gather, initial_of, newest_of
from tests.simulation.sharing import SimRows, make_item
from tests.simulation.snapshots import SimPace, SimSnapshotStore

from rolemesh.api.failures import Cause, Failure
from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import OpCall
from rolemesh_dataplane.transports import TransportError
from rolemesh_durable.extensions.sharing.rank import RankSharing
from rolemesh_durable.extensions.sharing.sharer import Sharer
from rolemesh_durable.extensions.turns.admission import TurnAdmission
from rolemesh_durable.extensions.turns.order import Positions
from rolemesh_durable.extensions.turns.rank import RankTurns
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.delivery import InPort
from rolemesh_durable.protocol.edge import LogLost
from rolemesh_durable.protocol.rank.control import Control
from rolemesh_durable.protocol.rank.effects import Effects, Stopping
from rolemesh_durable.protocol.rank.extension import RankHooks
from rolemesh_durable.protocol.rank.group_barrier import GroupBarrier
from rolemesh_durable.protocol.rank.machine import LOOK_NS, Call, Driver, RankMachine
from rolemesh_durable.protocol.rank.master_mail import MasterMail
from rolemesh_durable.protocol.rank.origin_values import OriginError
from rolemesh_durable.protocol.rank.page import COMPUTING, EDGE, FINISHED, OP, PHASE, SINCE_NS, SNAPSHOT, STEP
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.restoring import Former, restore_edges
from rolemesh_durable.protocol.rank.shape import JobShape
from rolemesh_durable.protocol.rank.snapshots import GroupSnapshots, SnapshotTaker, omission_of
from rolemesh_durable.rank.event_loop import Tasks
from rolemesh_runtime.metrics import Metrics
from rolemesh_runtime.operator_failure import OperatorFailed

if TYPE_CHECKING:
    from tests.simulation.agent import SimAgent

__all__ = ["SimRank"]


class Exited(Exception):
    """The process has ended itself."""


class UserError(Exception):
    """The workload has raised."""


class _Field:
    """A field of the status page, as an attribute."""

    def __init__(self, at: int) -> None:
        self._at = at

    def __get__(self, rank: SimRank, kind: type[SimRank]) -> int:
        return rank.page.fields[self._at]

    def __set__(self, rank: SimRank, value: int) -> None:
        rank.page.fields[self._at] = value


class SimRank:
    """The process of one generation of a rank. Its main thread is a greenlet: it gives way with the seconds that
    something takes, or with what it waits for."""

    finished, step, op = _Field(FINISHED), _Field(STEP), _Field(OP)
    phase, edge, snapshot = _Field(PHASE), _Field(EDGE), _Field(SNAPSHOT)

    def __init__(self, agent: SimAgent, launch: m.RankLaunch) -> None:
        self.agent, self.world, self.launch = agent, agent.world, launch
        self.job = self.world.job
        self.layout = launch.layout
        self.shape = self.job.shaped(launch.layout.sizes)
        self.key = launch.ref
        self.generation = launch.generation
        self.uid = self.world.uid()
        self.pid = self.world.backend.pid()
        self.name = f"{launch.ref}.{launch.generation}"
        self.alive, self.frozen, self.left = True, False, False
        self.cut = float("inf")
        self.mind = Mind(self.job, self.key)
        self.page = SimPage()
        self.page.fields[SINCE_NS] = self.clock_ns
        self.waits = SimWaits(self)
        self.doing = -1
        """The step whose call runs, which may be repeated."""
        self.injected = ""
        self.control = Control(lambda: self._inject("exit"))
        self.control.attend_fault(lambda: self._inject("raise"))
        self.control.on_adopted.append(self._say_again)
        self.master = MasterMail(launch.start, self.control, lambda message: self.world.send(self, self.agent, message))
        self.heard = launch.resume
        """The newest step of which the snapshot has all that others have called for."""
        self.former: list[Metrics] = []
        """Lines of former generations."""
        self.meter, self.ctx = meter_of(self)
        self.timeline = agent.memory.timeline
        self.keeps = self.world.scenario.keeps.get(self.key, 1 << 30)
        self.mail = SimMail(self)
        self.barrier = GroupBarrier(self.mail, self.shape.sizes[self.key[0]]) if launch.collective else None
        self.taker: SnapshotTaker | None = None
        self.machine: RankMachine | None = None
        self.effects: Effects[SimItem] | None = None
        self._ticks = 1 << 60
        self.together = False
        """Whether the group takes its snapshots together, in calls that it begins together."""
        self.before_snapshot: tuple[Callable[[], None], ...] = ()
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
        except Stopping:
            self._leave(0)
        except Exited:
            self.die(None, 3)
        except UserError as error:
            self._failed(str(error))
        except LogLost as error:
            self._failed(str(error), "log_lost")
        except OriginError as error:
            self.world.fail("a producer answers every request", f"{self.name}: {error}")

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
        """Tell the agent and its next incarnations."""
        if not isinstance(message, m.RankMetrics):
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
                    self.world.fail("a producer answers every request", f"{self.name}: {error}")
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
        self.control(message)

    @property
    def stopping(self) -> bool:
        """Whether the agent has said stop."""
        return self.control.stopping is not None

    @property
    def pause(self) -> int:
        """The step after which the layout changes."""
        return self.control.pause

    @property
    def last(self) -> int:
        """The last step of the job, as far as it is known."""
        return self.control.last

    def _inject(self, kind: str) -> None:
        self.injected = kind

    def _say_again(self) -> None:
        """Tell the next incarnation of the agent what the one before may not have passed on."""
        for message in self.agent.memory.said.get((self.key, self.generation), ()):
            self.world.send(self, self.agent, message)

    def open(self) -> None:
        """Take the frames of calls from now on, and those that have come."""
        self.opened = True
        early, self._early = self._early, []
        for frame in early:
            self._frame(frame)

    def relaid(self) -> None:
        """The job has the newest layout now."""
        self.layout = self.control.layout
        self.shape = self.job.shaped(self.layout.sizes)

    def generation_of(self, role: str, rank: int) -> int:
        """The newest generation of a peer that the rank knows."""
        return self.mail.generation(role, rank)

    def send_to(self, key: tuple[str, int], frame: tuple[Any, ...]) -> None:
        """Send a frame to a peer, or to itself."""
        if key == self.key:
            self._inbox.append(frame)
            return
        self.world.send(self, self.world.processes.get(self.mail.peers[key].addresses["sim"]), frame)

    # ------------------------------------------------------------------------------------------------- the main thread

    def _main(self) -> None:
        try:
            self._live()
        except OperatorFailed as failed:
            if not isinstance(failed.error, greenlet.GreenletExit):
                raise failed.error from None

    def _live(self) -> None:
        world, launch = self.world, self.launch
        self.sleep(world.between(0.01, 0.05))
        port = 1000 if launch.collective and launch.rank == 0 else None
        self.report(m.RankHello(*self.key, self.generation, self.pid, {"sim": self.uid}, port))
        self.until(lambda: self.key in self.control.peers)
        self.mail.connect(tuple(self.control.peers.values()))
        admission = TurnAdmission(launch.ref, self.waits, None, self.barrier)
        admission.next(Positions(self.job.graph).setup(launch.role))
        admission.take()
        self.sleep(world.between(0.01, 0.2))
        if self.injected:
            self._fault()
        if launch.collective:
            assert self.control.rendezvous is not None
            group = world.group(self.key[0], self.control.rendezvous.generation)
            group.members[self.key[1]] = self
        self._restore()
        control, ports = self.control, self._open()
        assert self.effects is not None
        driver = Driver(
            operator=lambda op: partial(self._operate, op),
            origin=lambda folder: origin_of(self, control.layout.step),
            repeating=nullcontext,
            began=lambda: self.waits.at(COMPUTING),
            ended=self._ended,
            look=self._look,
            done=self._done,
            close=self.meter.close,
            cut=self.meter.advanced,
            say_again=self.meter.say_again,
            report=lambda message: self.world.send(self, self.agent, message),
            committed=lambda step: None,
            persisted=lambda step: None,
            drain=lambda left_s: world.checks.leaves(self, self.step),
            listens=False,
        )
        turns = [RankTurns(ports, admission)] if launch.collective and self.mind.kind != "apart" else []
        told = [Teller(self)] if world.scenario.family == "messages" else []
        hooks = RankHooks([self.shared, SimRows(self), *turns, self.calls, *told])
        self.before_snapshot = () if self.together else hooks.before_snapshot
        machine = self.machine = RankMachine(
            self.effects, driver, control, hooks, ports=ports, position=SimPosition(self), taker=self.taker
        )
        machine.begin(launch, self.master)
        started_again(self)
        self.report(m.RankReady(*self.key, self.generation, 0.1))
        if (self.key, -1) in world.scenario.says:
            self._finish()
        machine.run(launch.resume + 1)
        if self.stopping:
            raise Stopping
        if self.taker is not None:
            self.taker.end(self.finished)
        self.until(lambda: not self.former or control.advance is not None)
        sha = repr(self.mind.state) if self.mind.kind != "stateless" else ""
        kept, unkept = self._last_state()
        world.checks.done(self)
        self.report(m.RankDone(*self.key, self.generation, self.finished, sha, "", kept, unkept))
        self.until(lambda: False)

    def _ended(self, call: Call, repeated: bool) -> int:
        """The rank looks into its inbox after each operator, as after a long one."""
        self._ticks += LOOK_NS + 1
        return self._ticks

    def _done(self, step: int, now: int) -> None:
        """All calls of a step are over."""
        if (self.key, step) in self.world.scenario.says:
            self._finish()
        self._measure(step)
        if not any(self.job.activity.active(op.id, step) for op in self.job.schedule[self.key[0]]):
            self.meter.flush()  # the machine does not look after a step without calls

    def _look(self, now: int) -> int:
        """Handle what has come, once the step is over; it returns 0 before, so that the machine looks again."""
        if self.finished < self.step:
            return 0
        if self.step % 2 or self.stopping or self.step >= min(self.control.granted, self.last):
            self.meter.flush()
        self.hear()
        self.sleep(self.world.between(0.0, self.world.scenario.pace / 4))
        return now

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
        world.disk.write(step, self.key, attempt, self.mind.state if self.mind.kind != "stateless" else None, [], {})
        return m.Persisted(*self.key, step, {}, self.timeline, self.generation, attempt), ""

    def _measure(self, step: int) -> None:
        """Report for each step that the rank counts once, and in which life of the job it is."""
        label = next((op.label for op in self.job.schedule[self.key[0]]), self.key[0])
        self.ctx.metric(life=float(self.timeline))
        self.ctx.count(n=1.0)
        self.meter.collect(label)
        self.meter.finished(step, 0)

    @property
    def clock_ns(self) -> int:
        """The rank's clock."""
        return round(self.world.now * 1e9)

    @property
    def since(self) -> float:
        """When the phase has begun."""
        return self.page.fields[SINCE_NS] * 1e-9

    def _restore(self) -> None:
        world, launch, memory = self.world, self.launch, self.agent.memory
        world.checks.owns(self)
        state: State | None = None
        match launch.restore:
            case "memory":
                snap = memory.snaps.get(self.key, {}).get(launch.resume)
                if snap is None:
                    world.fail(
                        "ranks restore a snapshot that exists", f"{self.name} finds no snapshot of {launch.resume}"
                    )
                    return
                state = snap.state
                memory.drop_after(self.key, launch.resume)
            case "disk":
                state = self._stored(launch.origin_step)
                memory.drop_after(self.key, -1)
                memory.logs[self.key] = [entry for entry in memory.logs[self.key] if entry.step > launch.resume]
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
            job.graph, dict(self.shape.sizes), job.steps, True, self.keeps, self.world.scenario.plan,
            job.unrepeated, tuple(job.varying),
        )  # fmt: skip
        effects = self.effects = effects_of(self, self.page, self.mail, SimLog(self))
        ports = self.ports = Ports(shape, effects, resume=launch.resume, barrier=self.barrier)
        sharer = Sharer(self.ctx, ports, Tasks(cast("Any", None)), self.meter.record)
        self.shared = RankSharing(sharer, self.mail.open_channel)
        log, origin = SimFormerLog(self), partial(origin_of, self, launch.origin_step)
        former = Former(log, log.records(), log.ours(), SimFormerMemory(self), origin, self._carried, self._keep)
        restore_edges(ports, launch, self.shape.sizes, former)
        control = self.control
        control.end_at(job.steps - 1)
        self.former = former_lines(self)
        if not self.world.scenario.plan.last:
            self.taker = self._snapshots(ports, effects)
        return ports

    def _carried(self) -> tuple[list[SimInFlight], dict[str, int]]:
        there = self.world.disk.complete[self.launch.origin_step]
        return [SimInFlight(entry) for entry in self._crossing(there)], sizes_of(there)

    def _keep(self) -> None:
        state = self.mind.state if self.mind.kind != "stateless" else None
        self.agent.memory.switch(self.key, self.launch.resume, state, False)
        stored_line(self, self.world.disk.complete[self.launch.origin_step])

    def _snapshots(self, ports: Ports[SimItem], effects: Effects[SimItem]) -> SnapshotTaker:
        launch, group = self.launch, None
        role, size = self.key[0], self.shape.sizes[self.key[0]]
        barrier = self.barrier if size > 1 else None
        lockstep = launch.collective and self.mind.kind != "apart"
        if barrier is not None:
            mates = [RankRef(role, n) for n in range(size) if n != launch.rank and launch.local_world_size == size]
            group = GroupSnapshots(role, self.control, [partial(self._snapshot_of, mate) for mate in mates])
        omission = omission_of(ports.job, role, barrier, lockstep=lockstep, may_postpone=True)
        self.together = omission.barrier is not None
        return SimTaker(
            self,
            ports,
            effects,
            SimSnapshotStore(self),
            self.control,
            pace=SimPace(self),
            omission=omission,
            group=group,
            slack=self.keeps,
        )

    def _snapshot_of(self, mate: RankRef) -> int:
        """The newest snapshot of a mate that began with this rank, as its page says."""
        known = self.agent.ranks.get(mate)
        return known.snapshot if known is not None and known.generation == self.generation else -1

    def _crossing(self, there: Mapping[RankRef, Part]) -> Iterator[Entry]:
        """The records of the rank's part of a checkpoint. Ranks of another layout may not have one."""
        part = there.get(self.key)
        if part is not None:
            yield from part[1]

    def _stored(self, step: int) -> State | None:
        """The rank's state in a persisted snapshot, or what is cut for it from those of another layout."""
        there, (role, rank) = self.world.disk.complete[step], self.key
        size = sizes_of(there)[role]
        if size == self.shape.sizes[role]:
            return there[self.key][0]
        states = [there[RankRef(role, n)][0] for n in range(size)]
        return cut([s for s in states if s is not None], rank) if all(states) else None

    def _fault(self) -> None:
        kind, self.injected = self.injected, ""
        if kind == "exit":
            raise Exited
        raise UserError(f"injected failure {self.world.rng.randrange(10**6)}")

    def _operate(self, op: OpCall, **given: Any) -> Any:
        """Run an operator; return its value, or its chunks."""
        world, ports, step = self.world, self.ports, self.doing
        assert ports is not None
        if op.id in self.shared.mates:
            return make_item(self, op, step, given)
        inputs = list(self.values_of(op, given).values())
        self.computes(op, step)
        if op.calls:
            inputs.append(self.calls.ask(op, step))
            self.calls.talk(op, step, f".{self.key[1]}")
        group: tuple[int, ...] = ()
        if self.launch.collective and self.mind.kind != "apart":
            assert self.control.rendezvous is not None
            meeting = world.group(self.key[0], self.control.rendezvous.generation)
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
        count = len(chunks_of(value))
        if op.id not in ports.outputs or (count == 1 and value.h % 2):
            return Chunk(value, 0)
        return self._chunks(value, count)

    def values_of(self, op: OpCall, given: Mapping[str, Any]) -> dict[str, Value]:
        """Return the values that the ports have given an operator."""
        assert self.ports is not None
        ports = self.ports.inputs.get(op.id, [])
        return {param: self._taken(port, given[param], self.doing) for param, port in ports}

    def computes(self, op: OpCall, step: int, factor: int = 1) -> None:
        """Be in an operator for some time."""
        world = self.world
        self.waits.at(COMPUTING)
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
            raise Stopping

    def _taken(self, port: InPort, value: Any, step: int) -> Value:
        """The value that a port has given; a number stands for the initial one."""
        value = self._stream(port, value, step) if isinstance(value, Iterator) else value
        if port.edge.newest:
            return newest_of(port.edge)
        return initial_of(port.edge) if isinstance(value, int) else value

    def _stream(self, port: InPort, chunks: Iterator[Any], step: int) -> Any:
        """Use chunks as they come: they may not be taken again after that."""
        parts: dict[int, list[Value]] = {source: [] for source in port.state.sources}
        for chunk in chunks:
            if not isinstance(chunk, Streamed):
                return chunk
            parts[chunk.source].append(chunk.value)
        made = list(parts.values())
        self.world.checks.used_version(self, port.edge, step, step - port.edge.lag, tuple(parts), made)
        return gather(made)

    def _chunks(self, value: Value, count: int) -> Iterator[Chunk]:
        for index in range(count):
            if index:
                self.sleep(self.world.between(0.0, 0.002))
            yield Chunk(value, index)

    def _nonce(self, op: OpCall, step: int) -> int:
        """Return the randomness of a call: another one each time, but the same in all ranks of a group."""
        if not self.launch.collective:
            return self.world.nonce()
        return self.world.group(self.key[0], self.generation).nonces.setdefault((step, op.id), self.world.nonce())

    def _finish(self) -> None:
        assert self.machine is not None
        self.machine.finish("it has said so")
        self.world.scenario.nemesis.said(self.world, self.agent)

    @property
    def taking(self) -> int:
        """The newest step of which the group takes the snapshot."""
        return self.barrier.taking if self.barrier is not None else -1

    def settle(self) -> None:
        """The rank waits: between two steps, or for memory after an operator."""
        if self.machine is not None:
            self.machine.settle()


class SimTaker(SnapshotTaker):
    """Checks the snapshot after which all ranks are held."""

    def __init__(self, rank: SimRank, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self._rank = rank

    def end(self, step: int) -> None:
        """Have the snapshot of `step` persisted."""
        super().end(step)
        self._rank.world.checks.held(self._rank, step)


class SimPosition:
    """The step at which the rank is."""

    def __init__(self, rank: SimRank) -> None:
        self._rank = rank

    @property
    def step(self) -> int:
        """The step that runs."""
        return self._rank.doing

    @step.setter
    def step(self, step: int) -> None:
        rank = self._rank
        rank.doing = rank.ctx.step = step
        if step > max(rank.finished, rank.step):
            rank.world.checks.begins(rank, step)
            rank.step = step
