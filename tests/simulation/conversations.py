"""Conversations in simulated ranks: turns, actions in a session, and a letter that must not be sent twice.

An operator holds several conversations at once. Each is a program that repeats itself exactly if it hears the same.
The answers of services are never the same twice, so a repeated, lost or changed turn shows.
"""

from __future__ import annotations

import random
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace
from tests.simulation.model import Job
from tests.simulation.outcomes import Heard

from rolemesh.api.service import ServiceSpec
from rolemesh.graph.logical import OpCall
from rolemesh_durable.extensions.calls.frames import LOST

if TYPE_CHECKING:
    from tests.simulation.calls import SimCalls

__all__ = ["Line", "hold_conversations", "with_conversations"]

AT_ONCE = 2
TURNS = 2


Talk: TypeAlias = Generator[bytes, Heard, None]
"""A conversation. It yields the key of a call that it has made, and is sent the outcome."""


class Line:
    """The numbers of one conversation's calls, as those of `rolemesh_durable.rank.event_loop.CallSequence`."""

    def __init__(self, op: OpCall, step: int, path: str) -> None:
        self.op, self.step, self.path, self._count = op, step, path, 0

    def next(self) -> str:
        """Return the place of the next call."""
        self._count += 1
        return f"{self.path}.{self._count - 1}"


def with_conversations(job: Job, rng: random.Random) -> Job:
    """Return the job with a role that samples, acts and sends. One operator calls it, or each item of a shared one."""
    shared = [edge.dst for edge in job.graph.edges if job.shared(edge)]
    talks = {rng.choice(shared) if shared else rng.choice(job.graph.ops).id}
    services = {
        "do": ServiceSpec("do", rng.choice((1, 2))),
        "turn": ServiceSpec("turn", rng.choice((1, 2)), recorded=True),
        "act": ServiceSpec("act", rng.choice((1, 2)), recorded=True),
        "send": ServiceSpec("send", rng.choice((1, 2)), repeatable=False),
    }
    ops = tuple(replace(op, calls=("box",)) if op.id in talks else op for op in job.graph.ops)
    graph = replace(job.graph, ops=ops, services={"box": services})
    return Job(graph, job.sizes | {"box": rng.choice((1, 2, 3))}, job.kinds | {"box": "stateless"}, job.steps)


def _talk(calls: SimCalls, line: Line) -> Talk:
    """Speak some turns, and send a letter after each. Act on each in a session, and begin another if it is lost.

    At the end comes a letter for whose outcome the conversation does not wait.
    """
    said: list[int] = []
    for _ in range(1 + hash((line.op.id, line.step)) % TURNS):
        heard = yield calls.begin(line, "turn", hash(tuple(said)))
        said.append(heard.word)
        yield calls.begin(line, "send", heard.word)
    session, acted = calls.session(line), 0
    while acted < len(said):
        heard = yield calls.begin(line, "act", hash((acted, said[acted])), session)
        acted += 1
        if heard.kind == LOST:
            session, acted = calls.session(line), 0
    calls.begin(line, "send", hash(tuple(said)), abandoned=True)
    yield calls.begin(line, "turn", hash(tuple(said)))


def hold_conversations(calls: SimCalls, op: OpCall, step: int, path: str = "") -> None:
    """Hold the conversations of an operator, or of one of its items, and wait until all have ended.

    Which of several that have heard something goes on first is chance, as in an event loop.
    """
    talks = {n: _talk(calls, Line(op, step, f"{path}.{n}")) for n in range(AT_ONCE)}
    waits = {n: key for n, talk in talks.items() if (key := next(talk, None)) is not None}
    while waits:
        calls.wait(lambda: any(key in calls.heard for key in waits.values()))
        ready = [n for n, key in waits.items() if key in calls.heard]
        number = calls.world.rng.choice(ready)
        heard: Any = calls.heard.pop(waits.pop(number))
        try:
            waits[number] = talks[number].send(heard)
        except StopIteration:
            continue
    calls.drop()
