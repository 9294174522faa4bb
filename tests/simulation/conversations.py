"""Conversations in simulated ranks: turns, actions in a session, and a letter that must not be sent twice.

An operator holds several conversations at once. Each is a program that repeats itself exactly if it hears the same.
The answers of services are never the same twice, so a repeated, lost or changed turn shows.
"""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from msgspec.structs import replace
from tests.simulation.model import Job, Value, rows_of
from tests.simulation.outcomes import Heard

from rolemesh.api.partition import Balanced
from rolemesh.api.service import ServiceSpec
from rolemesh.graph.logical import OpCall
from rolemesh_durable.extensions.calls.frames import LOST
from rolemesh_runtime import items

if TYPE_CHECKING:
    from tests.simulation.calls import SimCalls
    from tests.simulation.rank import SimRank

    from rolemesh_durable.extensions.sharing.mates import Mates

__all__ = ["Line", "Talks", "begin_early", "hold_conversations", "with_conversations"]

AT_ONCE = 2
TURNS = 2


Talk: TypeAlias = Generator[bytes, Heard, None]
"""A conversation. It yields the key of a call that it has made, and is sent the outcome."""


class Line:
    """The numbers of one conversation's calls, as those of `rolemesh_durable.rank.call_sequence.CallSequence`."""

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
        heard = yield calls.calling.begin(line, "turn", hash(tuple(said)))
        said.append(heard.word)
        yield calls.calling.begin(line, "send", heard.word)
    session, acted = calls.calling.session(line), 0
    while acted < len(said):
        heard = yield calls.calling.begin(line, "act", hash((acted, said[acted])), session)
        acted += 1
        if heard.kind == LOST:
            session, acted = calls.calling.session(line), 0
    calls.calling.begin(line, "send", hash(tuple(said)), abandoned=True)
    yield calls.calling.begin(line, "turn", hash(tuple(said)))


class Talks:
    """The conversations of an operator, or of one of its items, from their first calls on."""

    def __init__(self, calls: SimCalls, op: OpCall, step: int, path: str, rows: Sequence[Value] = ()) -> None:
        """`rows`: the rows of the item, if it begins before its step."""
        self.rows = list(rows)
        self._heard = calls.calling.outcomes
        self._talks = {n: _talk(calls, Line(op, step, f"{path}.{n}")) for n in range(AT_ONCE)}
        self.waits = {n: key for n, talk in self._talks.items() if (key := next(talk, None)) is not None}
        """The keys of the calls for which conversations wait."""

    @property
    def ready(self) -> list[tuple[Talks, int]]:
        """The conversations that have heard something."""
        return [(self, n) for n, key in self.waits.items() if key in self._heard]

    def go_on(self, number: int) -> None:
        """Let a conversation that has heard something go on to its next call."""
        heard: Any = self._heard.pop(self.waits.pop(number))
        with suppress(StopIteration):
            self.waits[number] = self._talks[number].send(heard)


def _any_ready(talks: Sequence[Talks]) -> bool:
    return any(each.ready for each in talks)


def hold_conversations(calls: SimCalls, op: OpCall, step: int, path: str = "") -> None:
    """Hold the conversations of an operator, or of one of its items, and wait until all have ended.

    Which of several that have heard something goes on first is chance, as in an event loop. Those of later steps that
    have begun go on, too.
    """
    present = calls.early.pop((op.id, step, path), None) or Talks(calls, op, step, path)
    while present.waits:
        talks = [present, *calls.early.values()]
        calls.until(partial(_any_ready, talks))
        which, number = calls.world.rng.choice([one for each in talks for one in each.ready])
        which.go_on(number)
    calls.drop()


def begin_early(rank: SimRank, op: OpCall, step: int, mates: Mates) -> None:
    """Begin the conversations of an item of the next step, if its rows have come."""
    calls, port = rank.calls, dict(rank.ports.inputs[op.id])[mates.edge.param] if rank.ports is not None else None
    later, how = step + op.every, mates.edge.dst_partition
    assert isinstance(how, Balanced)
    if port is None or mates.sharing.steals or mates.is_made(later) or (value := port.early(later)) is None:
        return
    rows = rows_of(value)
    section = mates.sharing.section(items.apart(rows, how.rows)[1])
    left = [item for item in section if (op.id, later, f".{item}") not in calls.early]
    if left and calls.world.chance(0.7):
        item = left[0]
        begun = Talks(calls, op, later, f".{item}", rows[item * how.rows : (item + 1) * how.rows])
        calls.early[op.id, later, f".{item}"] = begun
