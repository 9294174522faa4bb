"""Calls between simulated ranks: the real state machines of both ends, with hashes as requests and answers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from msgspec.structs import replace
from tests.simulation.model import Job, Value, answer_of, asked_by

from rolemesh.api.service import ServiceSpec
from rolemesh.graph.logical import OpCall
from rolemesh_durable.extensions.calls.states import CalleeState, CallerState, Known, OpenCall, hold_of_call, ways
from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.protocol.rank.page import position_of

if TYPE_CHECKING:
    from tests.simulation.rank import SimRank

__all__ = ["CALLING", "FOLLOWING", "SERVING", "SimCalls", "with_calls"]

CALLING, SERVING, FOLLOWING = 6, 7, 8
"""Phases, as `rolemesh_durable.rank.status_page` numbers them."""


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
    """A request: its hash `h`, the caller's `step`, and the step after which a callee may forget it."""

    step: int
    until: int
    h: int


class SimCalls:
    """The calls of one simulated rank; the shipped class is `rolemesh_durable.extensions.calls.extension.RankCalls`."""

    def __init__(self, rank: SimRank) -> None:
        self.rank, self.world = rank, rank.world
        job = rank.job
        role, _ = rank.key
        known = ways(job.graph)
        self._to = [way.callee for way in known if way.caller == role]
        self._from = [way.caller for way in known if way.callee == role]
        self._calling: CallerState[_Ask] = CallerState({to: rank.shape.sizes[to] for to in self._to})
        callers = [(caller, n) for caller in self._from for n in range(rank.shape.sizes[caller])]
        plan = rank.world.scenario.plan
        services = job.graph.services.get(role, {})
        self._serving: CalleeState[_Ask, int] = CalleeState(
            callers, {name: spec.concurrency for name, spec in services.items()},
            keeps=plan.enabled, every=plan.every, max_bytes=rank.world.scenario.call_bytes,
        )  # fmt: skip
        self._met: dict[tuple[str, int], int] = {}
        self._finished = rank.launch.resume
        self._answers: dict[Any, int] = {}
        self._open = False

    @property
    def waits(self) -> list[Any]:
        """The calls that are not answered."""
        return list(self._calling.open)

    def open(self) -> None:
        """The rank is restored, and knows its peers."""
        self._finished, self._open = self.rank.launch.resume, True
        self.rewire()

    def rewire(self) -> None:
        """Addresses have changed."""
        for to in self._to:
            for n in range(self.rank.shape.sizes[to]):
                life = self.rank.generation_of(to, n)
                if life > self._met.get((to, n), -1):
                    self._met[to, n] = life
                    self._calling.lives((to, n), life)
                    self._tell((to, n))
            self._leave(to)
        for caller in self._from:
            for n in range(self.rank.shape.sizes[caller]):
                for known in self._serving.met((caller, n), self.rank.generation_of(caller, n)):
                    self._answer(known)

    def resized(self, sizes: dict[str, int]) -> None:
        """Roles have other ranks now, of which nobody is up yet."""
        self._met = {key: life for key, life in self._met.items() if key[0] not in sizes}
        for to in [to for to in self._to if to in sizes]:
            self._calling.resized(to, sizes[to])
        for caller in [caller for caller in self._from if caller in sizes]:
            self._serving.resized(caller, sizes[caller])

    def advanced(self, advance: Watermarks) -> None:
        """How far everything is, and who is dead."""
        for role, n, life in advance.away:
            if role in self._to:
                self._calling.died((role, n), life)
                self._leave(role)
        self._serving.committed(advance.committed)
        self._begin()

    def frame(self, frame: tuple[Any, ...]) -> None:
        """A call, an answer, or how far a caller is."""
        match frame:
            case ("call", caller, generation, key, ask):
                known = self._serving.asked(caller, generation, key, ask.step, ask.until, "do", ask)
                if known is not None:
                    self._answer(known)
                self._begin()
            case ("answer", key, answer):
                call = self._calling.close(key)
                if call is not None:
                    self._answers[key] = answer
                    self._leave(call.role)
            case ("finished", caller, generation, step):
                self._serving.has_finished(caller, generation, step)
                self._begin()

    def ask(self, op: OpCall, step: int) -> Value:
        """Make the calls of an operator, some after others, and wait for the answers."""
        rank = self.rank
        asked = asked_by(op, step, rank.key[1])
        hold = hold_of_call(op, rank.job.activity, rank.job.unrepeated)
        before = rank.agent.memory.asked.setdefault(rank.key, {})
        for number, (role, h) in enumerate(asked):
            key: Any = (rank.key, op.id, step, number, h)
            call = OpenCall(key, role, _Ask(step, step + hold, h), 1, rank=before.get(key, -1))
            self._calling.ask(call)
            self._leave(role)
            if number % 2:
                self._wait(lambda: not self._calling.open)
        self._wait(lambda: not self._calling.open)
        found = tuple(self._answers.pop((rank.key, op.id, step, number, h)) for number, (_, h) in enumerate(asked))
        return Value(hash(found))

    def _wait(self, condition: Callable[[], bool]) -> None:
        if not condition():
            call = next(iter(self._calling.open.values()))
            self.rank.at(CALLING, position_of(0, call.rank))
            self.rank.until(condition)

    def behind(self, step: int) -> list[Any]:
        """The callers that may still call in steps up to this one."""
        return self._serving.behind(step)

    def finished(self, step: int) -> None:
        """All of `step` is done; who is only called, or held after this step, waits for its callers."""
        self._finished = step
        for to in self._to:
            for n in range(self.rank.shape.sizes[to]):
                self._tell((to, n))
        if self._from and (not self.rank.job.schedule[self.rank.key[0]] or step in (self.rank.pause, self.rank.last)):
            self.rank.at(FOLLOWING)
            self.rank.until(lambda: self._serving.finished >= step)

    def _tell(self, to: tuple[str, int]) -> None:
        if self._met.get(to, -1) >= 0:
            self.rank.send_to(to, ("finished", self.rank.key, self.rank.generation, self._finished))

    def _leave(self, role: str) -> None:
        rank = self.rank
        for call in self._calling.leaving(role):
            rank.agent.memory.asked.setdefault(rank.key, {})[call.key] = call.rank
            rank.send_to((role, call.rank), ("call", rank.key, rank.generation, call.key, call.item))

    def _begin(self) -> None:
        while (known := self._serving.begins()) is not None:
            self.world.checks.runs(self.rank, known.key)
            self.world.at(self.world.between(0.001, self.world.scenario.pace), self._ran, known)

    def _ran(self, known: Known[_Ask, int]) -> None:
        if not self.rank.alive:
            return
        if self.rank.frozen:
            self.world.at(0.05, self._ran, known)
            return
        assert known.request is not None
        if self._serving.done(known, answer_of(known.request.h), 1):
            self._answer(known)
        self._begin()

    def _answer(self, known: Known[_Ask, int]) -> None:
        self.rank.send_to(known.caller, ("answer", known.key, known.answer))
