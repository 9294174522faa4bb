"""The culprit of a hang is named: in pictures that are easy to read, and in random graphs with a known culprit."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rolemesh.api.partition import Balanced, Broadcast, Split
from rolemesh.api.rank_ref import RankRef
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.routes import route
from rolemesh.graph.schedule import Activity, zero_lag_cycle
from rolemesh_durable.api.extensions import AddedPhase, add_phase
from rolemesh_durable.extensions.hangs.culprit import HangVerdict, culprit
from rolemesh_durable.extensions.turns.phases import GATHERING, LOADING, TURN
from rolemesh_durable.protocol.messages import RankReport
from rolemesh_durable.protocol.rank.page import ADDED, BLOCKED, COMPUTING, IDLE, PHASES, SAVING, WAITING

GRPO = LogicalGraph(
    "grpo",
    (
        OpCall(0, "rollout", "generate", "rollout.generate", Split()),
        OpCall(1, "reward", "score", "reward.score", Split()),
        OpCall(2, "trainer", "train", "trainer.train", None),
        OpCall(3, "trainer", "weights", "trainer.weights", Broadcast()),
        OpCall(4, "rollout", "load", "rollout.load", None),
    ),
    (
        Edge(0, 0, 1, "samples", Split(), Split()),
        Edge(1, 1, 2, "scored", Split(), Split()),
        Edge(2, 3, 4, "weights", Broadcast(), Broadcast(), lag=1),
    ),
)
SIZES = {"rollout": 1, "reward": 1, "trainer": 2}


def at(role: str, rank: int, phase: int, step: int, op: int, **more: Any) -> tuple[RankRef, RankReport]:
    report = RankReport(role, rank, 0, **({"state": "ready", "step": step, "op": op, "phase": phase} | more))
    return RankRef(role, rank), report


def blame(*reports: tuple[RankRef, RankReport], graph: LogicalGraph = GRPO) -> HangVerdict:
    return culprit(graph, dict(reports), SIZES, collective=("trainer",))


SHARED = LogicalGraph(
    "shared",
    (OpCall(0, "reward", "next", "reward.next", Split()), OpCall(1, "rollout", "make", "rollout.make", Balanced())),
    (Edge(0, 0, 1, "rows", Split(), Balanced()),),
)


def test_a_phase_of_an_extension_of_others_is_told_in_its_own_words() -> None:
    phase = add_phase(AddedPhase(77, "fetching", lambda picture, report, at, for_s: (f"fetched {for_s} for {at}", "")))
    try:
        verdict = blame(at("rollout", 0, phase, 3, 0, since_s=40.0), at("reward", 0, WAITING, 3, 1, edge=0))
    finally:
        del ADDED[phase], PHASES[phase]
    assert verdict.ref == RankRef("rollout", 0)
    assert "rollout/0 has fetched for 40 s for generate at step 3" in verdict.text


def test_a_rank_that_hides_its_taken_items_from_a_mate_is_named() -> None:
    verdict = culprit(
        SHARED,
        dict(
            [
                at("reward", 0, BLOCKED, 9, 0, finished=8, edge=0),
                at("rollout", 0, WAITING, 7, 1, finished=6, edge=0),
                at("rollout", 1, COMPUTING, 7, 1, finished=6, since_s=40.0),
            ]
        ),
        {"reward": 1, "rollout": 2},
    )
    assert verdict[:4] == ("rollout", 1, "rollout.make", 7)
    assert "rollout/0 waits for rollout/1 to say what it has taken of rows" in verdict.chain


def test_a_stopped_member_of_a_group_is_named_with_the_ranks_that_wait_for_it() -> None:
    verdict = blame(
        at("rollout", 0, WAITING, 8, 4, finished=7, edge=2),
        at("reward", 0, BLOCKED, 9, 1, finished=8, edge=1),
        at("trainer", 0, COMPUTING, 7, 2, finished=6, since_s=31.2),
        at("trainer", 1, COMPUTING, 7, 2, finished=6, since_s=31.4, frozen=True),
    )
    assert verdict[:4] == ("trainer", 1, "trainer.train", 7)
    assert verdict.text == (
        "trainer/1 has been in train at step 7 for 31 s (stopped by a signal); "
        "reward/0 waits for trainer/1 to take scored in trainer.train; "
        "trainer/0 waits for trainer/1 in the collective; "
        "rollout/0 waits for trainer/0 for weights of step 7 from trainer.weights"
    )
    assert "; ".join(verdict.chain) in verdict.text


def test_the_member_that_has_not_entered_the_collective_is_at_fault_or_whom_it_waits_for() -> None:
    inside = at("trainer", 0, COMPUTING, 7, 2, finished=6)
    behind = at("trainer", 1, COMPUTING, 6, 3, finished=5)
    assert blame(inside, behind)[:4] == ("trainer", 1, "trainer.weights", 6)
    starved = at("trainer", 1, WAITING, 7, 2, finished=6, edge=1)
    scoring = at("reward", 0, COMPUTING, 7, 1, finished=6)
    verdict = blame(inside, starved, scoring)
    assert verdict[:2] == ("reward", 0)
    assert verdict.chain == (
        "trainer/1 waits for reward/0 for scored of step 7 from reward.score",
        "trainer/0 waits for trainer/1 in the collective",
    )


def test_a_rank_whose_snapshot_does_not_end_is_named_or_the_mate_that_is_behind() -> None:
    saves = at("trainer", 0, SAVING, 7, -1, finished=7, since_s=31.0)
    ahead = at("rollout", 0, WAITING, 8, 4, finished=7, edge=2)
    verdict = blame(saves, ahead, at("trainer", 1, IDLE, 7, -1, finished=7))
    assert (*verdict[:4], verdict.computing) == ("trainer", 0, "snapshot", 7, True)
    assert verdict.text.startswith("trainer/0 has been taking its snapshot of step 7 for 31 s; rollout/0 waits for")
    behind = at("trainer", 1, COMPUTING, 7, 2, finished=6, since_s=40.0)
    verdict = blame(saves, ahead, behind)
    assert verdict[:4] == ("trainer", 1, "trainer.train", 7)
    assert "trainer/0 waits for trainer/1 in the snapshot" in verdict.chain


def test_a_rank_at_the_barrier_before_a_call_waits_for_the_missing_member() -> None:
    there = at("trainer", 0, GATHERING, 7, 2, finished=6)
    starved = at("trainer", 1, WAITING, 7, 2, finished=6, edge=1)
    scoring = at("reward", 0, COMPUTING, 7, 1, finished=6, since_s=9.0)
    verdict = blame(there, starved, scoring)
    assert verdict[:2] == ("reward", 0)
    assert verdict.chain == (
        "trainer/1 waits for reward/0 for scored of step 7 from reward.score",
        "trainer/0 waits for trainer/1 to begin the call together",
    )


def test_a_rank_that_waits_for_its_turn_waits_for_the_rank_on_the_slot_or_the_one_before() -> None:
    slot = {("trainer", 0): (("rollout", 0), ("trainer", 0)), ("rollout", 0): (("rollout", 0), ("trainer", 0))}

    def verdict(*reports: tuple[RankRef, RankReport]) -> HangVerdict:
        return culprit(GRPO, dict(reports), SIZES, turns=slot)

    waiting = at("trainer", 0, TURN, 7, 2, finished=6)
    on_it = verdict(at("rollout", 0, COMPUTING, 7, 0, finished=6), waiting)
    assert on_it[:3] == ("rollout", 0, "rollout.generate")
    assert on_it.chain == ("trainer/0 waits for rollout/0 for its turn on their slot",)
    before = verdict(at("rollout", 0, WAITING, 6, 4, finished=5, edge=2), waiting)
    assert before.chain[0] == "trainer/0 waits for rollout/0 for its turn on their slot"
    loads = verdict(at("rollout", 0, LOADING, 7, 0, finished=6, since_s=70.0), waiting)
    assert loads.text.startswith(
        "rollout/0 has loaded for its turn, or made room, for 70 s before generate at step 7; "
    )
    assert loads.computing
    alone = verdict(at("trainer", 0, TURN, 7, 2, finished=6, since_s=9.0))
    assert alone.text == "trainer/0 has waited for 9 s for its turn before train at step 7, though nobody is before it"


def test_members_that_look_alike_are_all_named() -> None:
    verdict = blame(*(at("trainer", rank, COMPUTING, 7, 2, finished=6, since_s=5.0) for rank in (0, 1)))
    assert verdict[:2] == ("trainer", 0)
    assert verdict.text == "trainer/0, trainer/1 have been in train at step 7 for 5 s"


def test_a_rank_that_waits_for_a_grant_waits_for_the_slowest_one() -> None:
    verdict = blame(at("rollout", 0, IDLE, 1024, 4, finished=1024), at("reward", 0, COMPUTING, 1, 1, finished=0))
    assert verdict[:2] == ("reward", 0)
    assert verdict.chain == ("rollout/0 waits for reward/0 to finish a step",)


def test_a_rank_whose_snapshots_are_not_in_safety_holds_the_others_back() -> None:
    verdict = blame(
        at("rollout", 0, BLOCKED, 9, 0, finished=8, durable=8),
        at("reward", 0, IDLE, 8, 1, finished=8, durable=3, since_s=9.0),
    )
    assert verdict[:2] == ("reward", 0)
    assert verdict.chain == ("rollout/0 waits for reward/0 to have its snapshot durable",)


def test_an_input_that_was_sent_and_never_came_is_the_fault_of_who_waits_for_it() -> None:
    verdict = blame(
        at("rollout", 0, IDLE, 8, 4, finished=8), at("reward", 0, WAITING, 5, 1, finished=4, edge=0, since_s=60.0)
    )
    assert verdict[:2] == ("reward", 0)
    assert "waited in score at step 5 for 60 s for samples from rollout.generate, which has been sent" in verdict.text


def test_the_computing_rank_is_named_if_a_restarted_rank_waits_for_values_that_it_must_send_again() -> None:
    verdict = blame(
        at("rollout", 0, COMPUTING, 8, 4, finished=7, since_s=70.0),
        at("reward", 0, WAITING, 5, 1, finished=4, edge=0, since_s=60.0),
    )
    assert verdict[:2] == ("rollout", 0)
    assert verdict.chain == ("reward/0 waits for rollout/0 for samples of step 5 from rollout.generate",)


def test_a_rank_that_has_not_become_ready_is_named() -> None:
    verdict = blame(at("rollout", 0, WAITING, 8, 4, edge=2, finished=7), at("trainer", 0, IDLE, -1, -1, state="up"))
    assert verdict.text.startswith("trainer/0 has not become ready: it is up; rollout/0 waits for trainer/0")


def test_ranks_that_wait_for_each_other_are_reported_as_a_cycle() -> None:
    graph = LogicalGraph("g", GRPO.ops, (Edge(0, 0, 1, "x", Split(), Split()), Edge(1, 1, 0, "y", Split(), Split())))
    reports = at("rollout", 0, WAITING, 3, 0, finished=2, edge=1), at("reward", 0, WAITING, 3, 1, finished=2, edge=0)
    verdict = blame(*reports, graph=graph)
    assert verdict[:2] == ("rollout", 0)
    assert "they wait for each other in a circle" in verdict.text


def test_if_every_rank_is_done_no_rank_is_blamed() -> None:
    with pytest.raises(ValueError, match="every rank is done"):
        blame(at("reward", 0, IDLE, 9, -1, state="done"))


# ------------------------------------------------------------------------------------------ random graphs and culprits


class Ranks:
    """Ranks that follow their schedules, write their positions as real ones do, and stop where one of them hangs."""

    GRANT, STEPS = 3, 40

    def __init__(self, graph: LogicalGraph, sizes: dict[str, int], collective: tuple[str, ...]) -> None:
        self.graph, self.sizes, self.collective = graph, sizes, collective
        self.activity = Activity(graph)
        self.routes = {
            e.id: route(e.src_partition, sizes[graph.ops[e.src].role], e.dst_partition, sizes[graph.ops[e.dst].role])
            for e in graph.edges
        }
        self.at: dict[RankRef, dict[str, Any]] = {
            RankRef(role, rank): {"state": "ready", "finished": -1, "step": -1, "op": -1, "phase": IDLE, "edge": -1}
            for role in graph.roles
            for rank in range(sizes[role])
        }
        self.sent: set[tuple[int, int, RankRef]] = set()
        self.under_way: dict[tuple[int, RankRef, RankRef], set[int]] = {}
        self.owed: dict[RankRef, list[tuple[int, RankRef, int]]] = {key: [] for key in self.at}
        self.entered: dict[tuple[int, int], set[RankRef]] = {}
        self.changes = 0

    def run(self, suspect: RankRef, ticks: int, frozen: bool, random: Random) -> None:
        """Until nothing moves, `suspect` not after its first `ticks` moves (if not frozen: when it computes next)."""
        ranks = {key: self.rank(key) for key in self.at}
        before = -1
        while before != self.changes:
            before = self.changes
            for key in random.sample(sorted(ranks), len(ranks)):
                for _ in range(random.randint(1, 4)):
                    stop = key == suspect and ticks <= 0 and (frozen or self.at[key]["phase"] == COMPUTING)
                    if stop or self.at[key]["state"] == "done":
                        break
                    moves = self.changes
                    next(ranks[key], None)
                    ticks -= key == suspect and self.changes > moves
        if frozen:
            self.at[suspect]["frozen"] = True

    def rank(self, me: RankRef) -> Iterator[None]:
        here = self.at[me]
        for step in range(self.STEPS):
            while step > min(other["finished"] for other in self.at.values()) + self.GRANT:
                yield from self.pause(me, IDLE, -1)
            here["step"] = step
            for call in self.graph.of_role(me[0]):
                if self.activity.active(call.id, step):
                    yield from self.call(me, call, step)
            here["finished"] = step
            self.changes += 1
        here["op"] = -1
        while any(steps for (_, source, _), steps in self.under_way.items() if source == me):
            yield from self.pause(me, IDLE, -1)
        self.flush(me)
        here["state"] = "done"

    def call(self, me: RankRef, call: OpCall, step: int) -> Iterator[None]:
        here = self.at[me]
        here["op"] = call.id
        for edge in self.graph.inputs(call.id):
            sources = self.routes[edge.id].sources(me[1])
            senders = [(self.graph.ops[edge.src].role, rank) for rank in sources]
            while any((edge.id, step - edge.lag, sender) not in self.sent for sender in senders):
                yield from self.pause(me, WAITING, edge.id)
        if me[0] in self.collective:
            self.flush(me)
        here["phase"], here["edge"] = COMPUTING, -1
        self.changes += 1
        yield
        if me[0] in self.collective:
            inside = self.entered.setdefault((step, call.id), set())
            inside.add(me)
            self.changes += 1
            while len(inside) < self.sizes[me[0]]:
                yield
        for edge in self.graph.outputs(call.id):
            if self.activity.consumed(edge, step, self.STEPS):
                takers = list(self.routes[edge.id].targets(me[1]))
                pairs = [(edge.id, me, (self.graph.ops[edge.dst].role, taker)) for taker in takers]
                # Without credits, small values may be further ahead than the least window.
                window = edge.window if edge.credits else edge.window + 5 * edge.id % 4
                while any(len(self.under_way.get(pair, ())) >= window for pair in pairs):
                    yield from self.pause(me, BLOCKED, edge.id)
                for pair in pairs:
                    self.under_way.setdefault(pair, set()).add(step)
                self.sent.add((edge.id, step, me))
                self.changes += 1
        for edge in self.graph.inputs(call.id):
            role = self.graph.ops[edge.src].role
            sources = self.routes[edge.id].sources(me[1])
            self.owed[me] += [(edge.id, (role, rank), step - edge.lag) for rank in sources]

    def pause(self, me: RankRef, phase: int, edge: int) -> Iterator[None]:
        """Acknowledgements go out when a rank waits, or before its group meets in a call; not earlier."""
        self.at[me]["phase"], self.at[me]["edge"] = phase, edge
        self.flush(me)
        yield

    def flush(self, me: RankRef) -> None:
        for edge, source, step in self.owed[me]:
            self.under_way[edge, source, me].discard(step)
            self.changes += 1
        self.owed[me] = []

    def reports(self) -> dict[RankRef, RankReport]:
        return {key: RankReport(*key, 0, durable=here["finished"], **here) for key, here in self.at.items()}


@st.composite
def jobs(draw: st.DrawFn) -> tuple[LogicalGraph, dict[str, int], tuple[str, ...]]:
    """Graphs that the tracer would let through, with feedback edges where they carry a lag."""
    sizes = {role: draw(st.integers(1, 3)) for role in "abc"}
    partition = st.sampled_from([Split(), Broadcast()])
    ops = []
    for i in range(draw(st.integers(2, 6))):
        every = draw(st.sampled_from([1, 1, 1, 2, 3]))
        role = draw(st.sampled_from("abc"))
        at_ = draw(st.integers(0, every - 1))
        ops.append(OpCall(i, role, f"op{i}", f"{role}.op{i}", draw(partition), every=every, at=at_))
    edges: list[Edge] = []
    for number in range(draw(st.integers(1, 7))):
        src, dst = draw(st.integers(0, len(ops) - 1)), draw(st.integers(0, len(ops) - 1))
        lag, credits = draw(st.integers(0, 2)), draw(st.sampled_from([1, 2, None]))
        returns = ops[src].returns
        assert returns is not None
        edge = Edge(len(edges), src, dst, f"p{number}", returns, draw(partition), lag=lag, credits=credits)
        graph = LogicalGraph("g", tuple(ops), (*edges, edge))
        if zero_lag_cycle(graph) is None and not Activity(graph).never():
            edges.append(edge)
    collective = tuple(role for role in "abc" if draw(st.booleans()))
    return LogicalGraph("g", tuple(ops), tuple(edges)), sizes, collective


@given(jobs(), st.data(), st.integers(0, 40), st.booleans(), st.integers(0, 2**32))
@settings(max_examples=500, deadline=None)
def test_the_hanging_rank_is_named_in_every_graph(
    job: tuple[LogicalGraph, dict[str, int], tuple[str, ...]], data: st.DataObject, ticks: int, frozen: bool, seed: int
) -> None:
    graph, sizes, collective = job
    ranks = Ranks(graph, sizes, collective)
    suspect = data.draw(st.sampled_from(sorted(ranks.at)))
    ranks.run(suspect, ticks, frozen, Random(seed))
    reports = ranks.reports()
    assume(reports[suspect].state != "done" and (frozen or reports[suspect].phase == COMPUTING))

    verdict = culprit(graph, reports, sizes, collective=collective)

    named = {verdict.ref}
    place = (reports[suspect].step, reports[suspect].op, COMPUTING)
    if not frozen and suspect[0] in collective:
        alike = {k for k, r in reports.items() if k[0] == suspect[0] and (r.step, r.op, r.phase) == place}
        named |= alike if named & alike else set()
    assert suspect in named
    assert f"{suspect[0]}/{suspect[1]}" in verdict.text.partition(";")[0]
    assert verdict.step == reports[suspect].step


def test_a_stopped_rank_that_was_done_is_at_fault_when_a_restarted_one_asks_it_in_vain() -> None:
    verdict = blame(
        at("rollout", 0, IDLE, 8, 4, finished=8, state="done"),
        at("reward", 0, IDLE, 8, 1, finished=8, state="done", frozen=True),
        at("trainer", 0, WAITING, 8, 2, finished=7, edge=1),
        at("trainer", 1, WAITING, 8, 2, finished=7, edge=1),
    )
    assert verdict[:2] == ("reward", 0)
