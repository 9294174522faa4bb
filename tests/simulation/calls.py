"""Calls between simulated ranks: the real state machines of both ends, with hashes as requests and answers."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace
from tests.simulation.conversations import Line, Talks, hold_conversations
from tests.simulation.memory import CallLog, Decision
from tests.simulation.model import Job, Value, answer_of, asked_by
from tests.simulation.outcomes import Heard, Place, packed_outcome, unpacked_outcome

from rolemesh.api.rank_ref import RankRef
from rolemesh.api.service import ServiceSpec
from rolemesh.graph.logical import OpCall
from rolemesh_durable.extensions.calls.frames import ANSWER, LATE, LOST, UNCERTAIN, key_of
from rolemesh_durable.extensions.calls.history import ASKED, BEGUN, ENDED, CallHistory, Session, asked
from rolemesh_durable.extensions.calls.phases import CALLING, FOLLOWING, position_of
from rolemesh_durable.extensions.calls.states import (
    CalleeState,
    CallerState,
    Known,
    OpenCall,
    edges_of_calls,
    hold_of_call,
)
from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.protocol.rank.extension import RankExtension

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["SimCalls", "with_calls"]


def with_calls(job: Job, rng: random.Random, *, own: bool = False) -> Job:
    """The job with a role that some of its operators call: one that is only called, or with `own` maybe one that has
    operators of its own."""
    ops = job.graph.ops
    callers = {op.id for op in rng.sample(ops, rng.randint(1, min(3, len(ops))))}
    others = [role for role in job.graph.roles if role not in {ops[op].role for op in callers}]
    box = rng.choice(others) if own and others and rng.random() < 0.5 else "box"
    graph = replace(
        job.graph,
        ops=tuple(replace(op, calls=(box,)) if op.id in callers else op for op in ops),
        services={box: {"do": ServiceSpec("do", rng.choice((1, 1, 2)))}},
    )
    if box != "box":
        return Job(graph, job.sizes, job.kinds, job.steps)
    return Job(graph, job.sizes | {"box": rng.choice((1, 2, 3))}, job.kinds | {"box": "stateless"}, job.steps)


class _Ask(NamedTuple):
    """A request: its content `h`, its step, and the step after which a callee may forget it.

    `life`: the only life that may run it; -1 for any. `place` and `log` are for the witness.
    """

    step: int
    until: int
    h: int
    method: str
    place: Place
    log: CallLog
    life: int = -1


class SimCalls(RankExtension):
    """The calls of one simulated rank; the shipped class is `rolemesh_durable.extensions.calls.rank.RankCalls`."""

    def __init__(self, rank: SimRank) -> None:
        self.rank, self.world = rank, rank.world
        job = rank.job
        role, _ = rank.key
        known = edges_of_calls(job.graph)
        self._to = [pair.callee for pair in known if pair.caller == role]
        self._from = [pair.caller for pair in known if pair.callee == role]
        self._calling: CallerState[_Ask] = CallerState({to: rank.shape.sizes[to] for to in self._to})
        callers = [RankRef(caller, n) for caller in self._from for n in range(rank.shape.sizes[caller])]
        plan = rank.world.scenario.plan
        services = job.graph.services.get(role, {})
        self._serving: CalleeState[_Ask, Heard] = CalleeState(
            callers, {name: spec.concurrency for name, spec in services.items()},
            keeps=plan.enabled, every=plan.every, max_bytes=rank.world.scenario.call_bytes,
            once=[name for name, spec in services.items() if not spec.repeatable],
        )  # fmt: skip
        self._met: dict[tuple[str, int], int] = {}
        self._finished = rank.launch.resume
        self._history, self._log = CallHistory(), CallLog()
        self._given_up: dict[tuple[Any, bytes], int] = {}
        """The generation in which a caller gave up a call, by caller and key."""
        self._cancelled: set[Known[_Ask, Heard]] = set()
        self.early: dict[tuple[int, int, str], Talks] = {}
        """The conversations of items whose step has not begun, by operator, step and path."""
        self.outcomes: dict[bytes, Heard] = {}
        """The outcomes that operators have not taken yet, by key."""

    @property
    def waits(self) -> list[Any]:
        """The calls that are not answered."""
        return [(call.role, call.item.method, call.item.place) for call in self._calling.open.values()]

    def opened(self, resume: int) -> None:
        """The rank is restored, and knows its peers."""
        self._finished = resume
        self._log = self.rank.agent.memory.calls.setdefault(self.rank.key, CallLog())
        self._history = CallHistory(lambda scope: [one for one in self._log.decisions if one.scope == scope])
        self.rewired()
        self.rank.open()

    def rewired(self) -> None:
        """Addresses have changed."""
        for to in self._to:
            for n in range(self.rank.shape.sizes[to]):
                life = self.rank.generation_of(to, n)
                if life > self._met.get((to, n), -1):
                    self._met[to, n] = life
                    self._lost(self._calling.lives(RankRef(to, n), life))
                    self._tell((to, n))
            self._leave(to)
        for caller in self._from:
            for n in range(self.rank.shape.sizes[caller]):
                for known in self._serving.met(RankRef(caller, n), self.rank.generation_of(caller, n)):
                    self._answer(known)

    def relaid(self, sizes: Mapping[str, int]) -> None:
        """Roles have other ranks now, of which nobody is up yet."""
        self.rank.relaid()
        self._met = {key: life for key, life in self._met.items() if key[0] not in sizes}
        for to in [to for to in self._to if to in sizes]:
            self._lost(self._calling.resized(to, sizes[to]))
        for caller in [caller for caller in self._from if caller in sizes]:
            self._serving.resized(caller, sizes[caller])

    def advanced(self, advance: Watermarks) -> None:
        """How far everything is, and who is dead."""
        for role, n, life in advance.away:
            if role in self._to:
                self._lost(self._calling.died(RankRef(role, n), life))
                self._leave(role)
        self._serving.committed(advance.committed)
        self._begin()

    def _lost(self, calls: list[OpenCall[_Ask]]) -> None:
        for call in calls:
            self._hear(call, Heard(UNCERTAIN if call.uncertain else LOST, 0))

    def frame(self, frame: tuple[Any, ...]) -> None:
        """A call, an answer, a call that is given up, or how far a caller is."""
        match frame:
            case ("call", caller, generation, key, ask):
                if generation > self._given_up.get((caller, key), generation):
                    del self._given_up[caller, key]
                known = self._serving.asked(caller, generation, key, ask.step, ask.until, ask.method, ask)
                if known is not None:
                    self._answer(known)
                self._begin()
            case ("give up", caller, generation, key):
                self._given_up[caller, key] = generation
                self._cancel(self._serving.gives_up(caller, generation, key))
            case ("answer", key, source, heard):
                call = self._calling.answered(key, *source)
                if call is not None:
                    self.world.witness.takes(self.rank, (call.rank, call.sent_to), source)
                    self._answered(call, heard)
                    self._leave(call.role)
            case ("finished", caller, generation, step):
                for known in self._serving.has_finished(caller, generation, step):
                    self._cancel(known)
                self._begin()

    def _answered(self, call: OpenCall[_Ask], heard: Heard) -> None:
        if heard.kind == LOST and call.once:
            heard = Heard(UNCERTAIN, 0)
        if heard.kind != LOST and self._spec(call.role, call.item.method).logged:
            self._decide(ENDED, call.item, packed_outcome(call.key, heard))
        self._hear(call, heard)

    def _hear(self, call: OpenCall[_Ask], heard: Heard) -> None:
        self.world.witness.hears(self.rank, self._log, call.item.place, call.key, heard)
        self.outcomes[call.key] = heard

    def _decide(self, scope: str, ask: _Ask, body: bytes) -> None:
        self._log.decisions.append(Decision(scope, ask.step, ask.until - ask.step, body))

    def _spec(self, role: str, method: str) -> ServiceSpec:
        return self.rank.job.graph.services[role][method]

    def begin(self, line: Line, method: str, h: int, session: str = "", *, abandoned: bool = False) -> bytes:
        """Make a call, and return its key in `outcomes`. `abandoned`: its task is cancelled after a while."""
        op, step, at = line.op, line.step, line.next()
        (role,) = op.calls
        spec, place = self._spec(role, method), (op.id, step, at)
        key = key_of(op.id, step, at, role, f"{method} {session}", str(h).encode(), ())
        hold = hold_of_call(op, self.rank.job.activity, self.rank.job.unrepeated)
        ask = _Ask(step, step + hold, h, method, place, self._log)
        if (known := self._history.outcome(key)) is not None:
            self._hear(OpenCall(key, role, ask), unpacked_outcome(known))
            return key
        call = self._history.open(key, spec, Session.parse(session) if session else None, role, ask)
        call.item = ask._replace(life=call.life)
        if not self._calling.ask(call):
            self._lost([call])
        elif abandoned or (method in ("turn", "send") and self.world.chance(0.1)):
            self.world.at(2 * self.world.between(0.0, self.world.scenario.pace), self._give_up, key, abandoned)
        self._leave(role)
        return key

    def session(self, line: Line) -> str:
        """Begin a session, the same as a former life."""
        op, step, at = line.op, line.step, line.next()
        (role,) = op.calls
        key = key_of(op.id, step, at, role, "", b"", ())
        name = self._history.session(key)
        if name is None:
            self.until(lambda: bool(self._calling.up(role)))
            n = self.world.rng.choice(self._calling.up(role))
            name = Session(role, n, self._calling.life(RankRef(role, n))).named(f"{self.rank.key}-{step}{at}")
            hold = hold_of_call(op, self.rank.job.activity, self.rank.job.unrepeated)
            self._log.decisions.append(Decision(BEGUN, step, hold, key + name.encode()))
        self.world.witness.hears(self.rank, self._log, (op.id, step, at), key, name)
        return name

    def drop(self) -> None:
        """Forget the calls for which no conversation waits: their operator ends."""
        kept = {key for talks in self.early.values() for key in talks.waits.values()}
        for key in [key for key in self._calling.open if key not in kept]:
            self._calling.close(key)

    def _give_up(self, key: bytes, cancelled: bool) -> None:
        """Give up a call: the operator has waited for too long, or cancels the task. A timeout is an outcome."""
        rank, call = self.rank, self._calling.open.get(key)
        if call is None or not rank.alive or rank.left or rank.frozen or rank.stopping:
            return
        if not cancelled:
            self._decide(ENDED, call.item, packed_outcome(key, Heard(LATE, 0)))
            self._hear(call, Heard(LATE, 0))
        self._calling.close(key)
        if call.sent_to >= 0:
            rank.send_to((call.role, call.rank), ("give up", rank.key, rank.generation, key))
        self._leave(call.role)
        rank.look()

    def ask(self, op: OpCall, step: int) -> Value:
        """Make the calls of an operator, some after others, and wait for the answers."""
        line, keys = Line(op, step, ""), []
        for number, (_, h) in enumerate(asked_by(op, step, self.rank.key[1])):
            keys.append(self.begin(line, "do", h))
            if number % 2:
                self.until(lambda: not self._calling.open)
        self.until(lambda: not self._calling.open)
        return Value(hash(tuple(self.outcomes.pop(key).word for key in keys)))

    def talk(self, op: OpCall, step: int, path: str) -> None:
        """Hold the conversations of an operator or item, if it has any."""
        if any("turn" in self.rank.job.graph.services[role] for role in op.calls):
            hold_conversations(self, op, step, path)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, and handle what comes."""
        call = next(iter(self._calling.open.values()), None)
        self.rank.waits.until(condition, CALLING, position_of(0, call.rank if call is not None else -1))

    def behind(self, step: int) -> list[Any]:
        """The callers that may still call in steps up to this one."""
        return self._serving.behind(step)

    def step_done(self, step: int, held: bool) -> None:
        """All of `step` is done; who is only called, or held after this step, waits for its callers."""
        self._finished = step
        self._history.finished(step)
        for to in self._to:
            for n in range(self.rank.shape.sizes[to]):
                self._tell((to, n))
        if self._from and (not self.rank.job.schedule[self.rank.key[0]] or step in (self.rank.pause, self.rank.last)):
            self.rank.waits.until(lambda: self._serving.finished >= step, FOLLOWING)

    def _tell(self, to: tuple[str, int]) -> None:
        if self._met.get(to, -1) >= 0:
            self.rank.send_to(to, ("finished", self.rank.key, self.rank.generation, self._finished))

    def _leave(self, role: str) -> None:
        rank = self.rank
        for call in self._calling.leaving(role):
            ask = call.item._replace(life=call.sent_to) if call.once else call.item
            self.world.witness.sends(rank, self._log, ask.place, self._spec(role, ask.method).logged)
            self._decide(ASKED, ask, asked(call))
            rank.send_to((role, call.rank), ("call", rank.key, rank.generation, call.key, ask))

    def _begin(self) -> None:
        while (known := self._serving.begins()) is not None:
            ask = known.request
            assert ask is not None
            if 0 <= ask.life != self.rank.generation:
                self._done(known, Heard(LOST, 0))
                continue
            self.world.checks.runs(self.rank, (known.caller, known.key))
            if ask.method == "send":
                self.world.witness.acts(self.rank, known.caller, ask.log, ask.place)
            self.world.at(self._seconds(ask.method), self._ran, known)

    def _seconds(self, method: str) -> float:
        """Return the duration of a call. Some turns outlast the restart of their caller."""
        if method == "turn" and self.world.chance(0.1):
            return self.world.between(0.5, 1.5)
        slow = 4 if self.world.chance({"do": 0.0, "send": 0.6}.get(method, 0.2)) else 1
        return slow * self.world.between(0.001, self.world.scenario.pace)

    def _ran(self, known: Known[_Ask, Heard]) -> None:
        if not self.rank.alive or known in self._cancelled:
            return
        if self.rank.frozen:
            self.world.at(0.05, self._ran, known)
            return
        ask = known.request
        assert ask is not None
        gone = self._given_up.get((known.caller, known.key), -1)
        self.world.witness.ran(self.rank, known.key, gone >= known.generation)
        self._done(known, Heard(ANSWER, answer_of(ask.h) if ask.method == "do" else self.world.nonce()))
        self._begin()

    def _cancel(self, known: Known[_Ask, Heard] | None) -> None:
        """Cancel a call that runs. If its method may run again, it may do so in this life."""
        if known is None:
            return
        self._cancelled.add(known)
        if known.method != "send":
            self.world.checks.cancelled(self.rank, (known.caller, known.key))
        self._done(known, Heard(UNCERTAIN, 0))
        self._begin()

    def _done(self, known: Known[_Ask, Heard], heard: Heard) -> None:
        if self._serving.done(known, heard, 1):
            self._answer(known)

    def _answer(self, known: Known[_Ask, Heard]) -> None:
        self.rank.send_to(known.caller, ("answer", known.key, (self.rank.key[1], self.rank.generation), known.answer))
