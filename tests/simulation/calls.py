"""Calls between simulated ranks: both ends as they ship, with hashes as requests and answers.

The ends decide as in a real rank. Messages, the log, and the time that a call takes are simulated.
"""

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
from rolemesh_durable.extensions.calls.ends import CalleeEnd, CallerEnd
from rolemesh_durable.extensions.calls.frames import ANSWER, LATE, LOST, UNCERTAIN, key_of
from rolemesh_durable.extensions.calls.history import BEGUN, ENDED, CallHistory, Session
from rolemesh_durable.extensions.calls.phases import CALLING, FOLLOWING, position_of
from rolemesh_durable.extensions.calls.states import Known, OpenCall, edges_of_calls, hold_of_call
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
        self.calling: SimCalling = SimCalling(rank)
        self.serving: SimServing = SimServing(rank)
        self.early: dict[tuple[int, int, str], Talks] = {}
        """The conversations of items whose step has not begun, by operator, step and path."""

    @property
    def waits(self) -> list[Any]:
        """The calls that are not answered."""
        return [(call.role, call.item.method, call.item.place) for call in self.calling.open]

    def opened(self, resume: int) -> None:
        """The rank is restored, and knows its peers."""
        self.calling.remember(resume)
        self.rewired()
        self.rank.open()

    def rewired(self) -> None:
        """Addresses have changed."""
        self.calling.rewire()
        self.serving.rewire()

    def relaid(self, sizes: Mapping[str, int]) -> None:
        """Roles have other ranks now, of which nobody is up yet."""
        self.rank.relaid()
        self.calling.resized(sizes)
        self.serving.resized(sizes)

    def advanced(self, advance: Watermarks) -> None:
        """How far everything is, and who is dead."""
        self.calling.advanced(advance)
        self.serving.committed(advance.committed)
        self.serving.serve()

    def frame(self, frame: tuple[Any, ...]) -> None:
        """A call, an answer, a call that is given up, or how far a caller is."""
        match frame:
            case ("call", caller, generation, key, ask):
                self.serving.asked(caller, generation, key, ask)
            case ("give up", caller, generation, key):
                self.serving.abandoned(caller, generation, key)
            case ("answer", key, source, heard):
                self.calling.arrived(key, source, heard)
            case ("finished", caller, generation, step):
                self.serving.has_finished(caller, generation, step)
                self.serving.serve()

    def drop(self) -> None:
        """Forget the calls for which no conversation waits: their operator ends."""
        kept = {key for talks in self.early.values() for key in talks.waits.values()}
        self.calling.drop([call for call in self.calling.open if call.key not in kept])

    def ask(self, op: OpCall, step: int) -> Value:
        """Make the calls of an operator, some after others, and wait for the answers."""
        line, keys = Line(op, step, ""), []
        for number, (_, h) in enumerate(asked_by(op, step, self.rank.key[1])):
            keys.append(self.calling.begin(line, "do", h))
            if number % 2:
                self.until(lambda: not self.calling.open)
        self.until(lambda: not self.calling.open)
        return Value(hash(tuple(self.calling.outcomes.pop(key).word for key in keys)))

    def talk(self, op: OpCall, step: int, path: str) -> None:
        """Hold the conversations of an operator or item, if it has any."""
        if any("turn" in self.rank.job.graph.services[role] for role in op.calls):
            hold_conversations(self, op, step, path)

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, and handle what comes."""
        self.calling.until(condition)

    def step_done(self, step: int, held: bool) -> None:
        """The rank has done all of `step`. A role that others only call, or that is held, waits for its callers."""
        self.calling.finished(step)
        self.calling.flush()
        if self.serving.edges and (not self.rank.job.schedule[self.rank.key[0]] or held):
            self.serving.follow(step)


class SimCalling(CallerEnd[_Ask]):
    """The calling end of a simulated rank."""

    def __init__(self, rank: SimRank) -> None:
        callees = [pair.callee for pair in edges_of_calls(rank.job.graph) if pair.caller == rank.key[0]]
        super().__init__({role: rank.shape.sizes[role] for role in callees})
        self.rank, self.world = rank, rank.world
        self._log = CallLog()
        self.outcomes: dict[bytes, Heard] = {}
        """The outcomes that operators have not taken yet, by key."""

    @property
    def open(self) -> list[OpenCall[_Ask]]:
        """The calls that are not answered."""
        return [*self._state.open.values()]

    def remember(self, resume: int) -> None:
        """Read the calls, outcomes and sessions of former lives."""
        self._finished = resume
        self._log = self.rank.agent.memory.calls.setdefault(self.rank.key, CallLog())
        self._history = CallHistory(lambda scope: [one for one in self._log.decisions if one.scope == scope])

    # ---------------------------------------------------------------------------------- what `CallerEnd` decides

    def _life(self, rank: RankRef) -> int:
        return self.rank.generation_of(*rank)

    def _tell(self, rank: RankRef) -> None:
        self.rank.send_to(rank, ("finished", self.rank.key, self.rank.generation, self._finished))

    def _decide(self, scope: str, call: OpenCall[_Ask], body: bytes) -> None:
        ask = call.item
        self._log.decisions.append(Decision(scope, ask.step, ask.until - ask.step, body))

    def _send(self, call: OpenCall[_Ask]) -> None:
        rank = self.rank
        ask = call.item._replace(life=call.sent_to) if call.once else call.item
        self.world.witness.sends(rank, self._log, ask.place, self._spec(call.role, ask.method).logged)
        rank.send_to((call.role, call.rank), ("call", rank.key, rank.generation, call.key, ask))

    def _gives_up(self, call: OpenCall[_Ask]) -> None:
        rank = self.rank
        rank.send_to((call.role, call.rank), ("give up", rank.key, rank.generation, call.key))

    def _has_lost(self, call: OpenCall[_Ask], kind: int) -> None:
        self._hear(call, Heard(kind, 0))

    # ------------------------------------------------------------------------------------------ what operators do

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
        if self._open(call) and (abandoned or (method in ("turn", "send") and self.world.chance(0.1))):
            self.world.at(2 * self.world.between(0.0, self.world.scenario.pace), self._give_up, key, abandoned)
        self._leave()
        return key

    def session(self, line: Line) -> str:
        """Begin a session, the same as a former life."""
        op, step, at = line.op, line.step, line.next()
        (role,) = op.calls
        key = key_of(op.id, step, at, role, "", b"", ())
        name = self._history.session(key)
        if name is None:
            self.until(lambda: bool(self._state.up(role)))
            n = self.world.rng.choice(self._state.up(role))
            name = Session(role, n, self._state.life(RankRef(role, n))).named(f"{self.rank.key}-{step}{at}")
            hold = hold_of_call(op, self.rank.job.activity, self.rank.job.unrepeated)
            self._log.decisions.append(Decision(BEGUN, step, hold, key + name.encode()))
        self.world.witness.hears(self.rank, self._log, (op.id, step, at), key, name)
        return name

    def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition` holds, and handle what comes."""
        call = next(iter(self._state.open.values()), None)
        self.rank.waits.until(condition, CALLING, position_of(0, call.rank if call is not None else -1))

    def arrived(self, key: bytes, source: tuple[int, int], heard: Heard) -> None:
        """Take an answer."""
        if (found := self._answered(key, *source, heard.kind)) is None:
            return
        call, kind = found
        self.world.witness.takes(self.rank, (call.rank, call.sent_to), source)
        heard = heard if kind == heard.kind else Heard(kind, 0)
        if heard.kind != LOST and self._spec(call.role, call.item.method).logged:
            self._decide(ENDED, call, packed_outcome(call.key, heard))
        self._hear(call, heard)
        self._leave()

    def drop(self, calls: list[OpenCall[_Ask]]) -> None:
        """Forget these calls."""
        for call in calls:
            self._state.close(call.key)

    def _spec(self, role: str, method: str) -> ServiceSpec:
        return self.rank.job.graph.services[role][method]

    def _hear(self, call: OpenCall[_Ask], heard: Heard) -> None:
        self.world.witness.hears(self.rank, self._log, call.item.place, call.key, heard)
        self.outcomes[call.key] = heard

    def _give_up(self, key: bytes, cancelled: bool) -> None:
        """Give up a call: the operator has waited for too long, or cancels the task. A timeout is an outcome."""
        rank, call = self.rank, self._state.open.get(key)
        if call is None or not rank.alive or rank.left or rank.frozen or rank.stopping:
            return
        if not cancelled:
            self._decide(ENDED, call, packed_outcome(key, Heard(LATE, 0)))
            self._hear(call, Heard(LATE, 0))
        self._close(call)
        rank.look()


class SimServing(CalleeEnd[_Ask, Heard]):
    """The called end of a simulated rank. Its calls take time, and go on while it does something else."""

    def __init__(self, rank: SimRank) -> None:
        scenario, (role, _) = rank.world.scenario, rank.key
        self.edges = [pair for pair in edges_of_calls(rank.job.graph) if pair.callee == role]
        callers = {pair.caller: rank.shape.sizes[pair.caller] for pair in self.edges}
        services = rank.job.graph.services.get(role, {})
        super().__init__(callers, services, rank.generation, scenario.plan, scenario.call_bytes)
        self.rank, self.world = rank, rank.world
        self._gone: dict[tuple[Any, bytes], int] = {}
        """The generation in which a caller gave up a call, by caller and key."""
        self._cancelled: set[Known[_Ask, Heard]] = set()

    # ---------------------------------------------------------------------------------- what `CalleeEnd` decides

    def _life(self, rank: RankRef) -> int:
        return self.rank.generation_of(*rank)

    def _wanted(self, request: _Ask) -> int:
        return request.life

    def _refuse(self, known: Known[_Ask, Heard]) -> None:
        self._ends(known, Heard(LOST, 0), 1)

    def _cancel(self, known: Known[_Ask, Heard]) -> None:
        """Cancel a call that runs. If its method may run again, it may do so in this life."""
        self._cancelled.add(known)
        if known.method != "send":
            self.world.checks.cancelled(self.rank, (known.caller, known.key))
        self._ends(known, Heard(UNCERTAIN, 0), 1)
        self.serve()

    def _send(self, known: Known[_Ask, Heard]) -> None:
        self.rank.send_to(known.caller, ("answer", known.key, (self.rank.key[1], self.rank.generation), known.answer))

    # ------------------------------------------------------------------------------------------------ running calls

    def asked(self, caller: RankRef, generation: int, key: bytes, ask: _Ask) -> None:
        """Take a call."""
        if generation > self._gone.get((caller, key), generation):
            del self._gone[caller, key]
        self._take(caller, generation, key, ask.step, ask.until, ask.method, ask)
        self.serve()

    def abandoned(self, caller: RankRef, generation: int, key: bytes) -> None:
        """A caller has given up a call."""
        self._gone[caller, key] = generation
        self._given_up(caller, generation, key)

    def follow(self, step: int) -> None:
        """Answer until all callers have finished `step`."""
        self.rank.waits.until(lambda: self._state.finished >= step, FOLLOWING)

    def behind(self, step: int) -> list[RankRef]:
        """The callers that may still call in steps up to this one."""
        return self._state.behind(step)

    def serve(self) -> None:
        """Begin the waiting calls."""
        while (known := self._next()) is not None:
            ask = known.request
            assert ask is not None
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
        gone = self._gone.get((known.caller, known.key), -1)
        self.world.witness.ran(self.rank, known.key, gone >= known.generation)
        self._ends(known, Heard(ANSWER, answer_of(ask.h) if ask.method == "do" else self.world.nonce()), 1)
        self.serve()
