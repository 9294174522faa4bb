"""Credits hold producers back, retention keeps what may be needed again, and slots are used again."""

from multiprocessing import get_context

import numpy as np
import pytest

from rolemesh.api.partition import Split
from rolemesh.api.workload import Rendezvous
from rolemesh_dataplane.shm import capacity_of
from rolemesh_durable.protocol.messages import Watermarks
from rolemesh_durable.protocol.rank.page import BLOCKED
from rolemesh_durable.rank.status_page import StatusPage

LARGE = 100_000


@pytest.mark.parametrize(("lag", "credits"), [(0, 1), (0, 3), (2, 2)])
def test_a_producer_is_never_further_ahead_than_its_window(fleet, flow, role, watch, lag, credits):
    graph, edge = flow
    made = get_context("fork").Value("q", 0)
    status_page = fleet.sockets / "status-a-0"

    def make(self):
        made.value += 1
        return [self.ctx.step]

    def take(self, x):
        producer = StatusPage.open(status_page)
        if self.ctx.step == lag:
            watch(lambda: producer.read().phase == BLOCKED)
            self.seen.append(made.value)
        producer.close()

    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1, lag=lag, credits=credits)]),
        {"a": (lambda: role(make=make), 1), "b": (lambda: role(take=take), 1)},
        steps=20,
    )
    assert out["b", 0].seen == [lag + credits + 1], "the window is sent, one more is made and waits for its credit"
    assert sum(line.times[2] for line in out["a", 0].lines) > 0


def test_a_rank_of_a_group_acknowledges_what_it_has_used_before_it_calls_an_operator(fleet, flow, role, watch):
    """Its mates may wait for it inside the operator; one of them may be blocked until the producer has that word."""
    graph, edge = flow
    made, steps, lag = get_context("fork").Value("q", 0), 20, 4

    class Grouped(role):
        def setup(self, ctx):
            ctx.rendezvous = Rendezvous("127.0.0.1", 1, 0)
            super().setup(ctx)

    def make(self):
        made.value += 1
        return [self.ctx.step]

    def together(self):
        used = self.ctx.step - lag  # the newest value that the operator before has used
        if used >= 0:
            watch(lambda: made.value >= min(steps, used + 1 + lag + 1 + 1))  # the window, and one that waits for it

    fleet.run(
        graph(
            ("a", "make", Split()), ("b", "take", None), ("b", "together", None),
            edges=[edge(0, 0, 1, lag=lag, credits=1)],
        ),
        {"a": (lambda: role(make=make), 1), "b": (lambda: Grouped(take=lambda self, x: None, together=together), 1)},
        steps=steps,
    )  # fmt: skip


def test_a_slow_consumer_of_a_broadcast_holds_the_producer_for_all(fleet, flow, role, watch):
    graph, edge = flow
    made = get_context("fork").Value("q", 0)
    status_page = fleet.sockets / "status-a-0"

    def make(self):
        made.value += 1
        return np.zeros(LARGE)

    def slow(self, x):
        if self.ctx.step == 0:
            producer = StatusPage.open(status_page)
            watch(lambda: producer.read().phase == BLOCKED)
            self.seen.append(made.value)
            producer.close()

    out = fleet.run(
        graph(
            ("a", "make", Split()),
            ("b", "take", None),
            ("c", "take", None),
            edges=[edge(0, 0, 1, credits=8), edge(1, 0, 2, credits=2)],
        ),
        {
            "a": (lambda: role(make=make), 1),
            "b": (lambda: role(take=lambda self, x: None), 1),
            "c": (lambda: role(take=slow), 1),
        },
        steps=12,
    )
    assert out["c", 0].seen == [3]


def test_slots_are_used_again_before_new_ones_are_made(fleet, flow, role):
    graph, edge = flow
    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1, credits=2)]),
        {"a": (lambda: role(make=lambda self: np.zeros(LARGE)), 1), "b": (lambda: role(take=lambda self, x: None), 1)},
        steps=30,
        after=lambda ports, endpoint: (endpoint.pool.free, ports.kept_bytes),
    )
    free, kept = out["a", 0].seen[-1]
    assert 1 <= free <= 3
    assert kept == 0


def test_retained_values_stay_until_their_step_is_committed_and_can_be_sent_again(fleet, flow, role):
    graph, edge = flow

    def after(ports, endpoint):
        out_edge = ports.out_edges[0] if ports.out_edges else None
        if out_edge is None:
            return None
        before = ports.kept_bytes
        again = [(kept.step, bool(kept.item.slots)) for kept in out_edge.state.ask(0, 1, 3, 2)]
        ports.commit(3)
        return before, again, ports.kept_bytes, endpoint.pool.free

    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1)]),
        {
            "a": (lambda: role(make=lambda self: np.full(LARGE, self.ctx.step, np.uint8)), 1),
            "b": (lambda: role(take=lambda self, x: None), 1),
        },
        steps=6,
        retention=True,
        after=after,
    )
    before, again, kept, _ = out["a", 0].seen[-1]
    assert before // capacity_of(LARGE) == 6
    assert again == [(3, True), (4, True), (5, True)]
    assert kept // capacity_of(LARGE) == 3, "the consumer that starts again from 3 still needs it"


def test_a_producer_over_its_retention_budget_waits_for_a_commit(fleet, flow, role):
    graph, edge = flow

    def drive(agent):
        agent.until(("a", 0), lambda at: at.phase == BLOCKED and at.step == 3)
        agent.send(("a", 0), Watermarks(1, 0, 7, 1))
        agent.until(("a", 0), lambda at: at.phase == BLOCKED and at.step == 5)
        agent.send(("a", 0), Watermarks(1, 0, 7, 9))

    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1, credits=4)]),
        {
            "a": (lambda: role(make=lambda self: np.zeros(LARGE, np.uint8)), 1),
            "b": (lambda: role(take=lambda self, x: None), 1),
        },
        steps=8,
        retention=True,
        retention_bytes=2 * capacity_of(LARGE) + 4096,
        unrepeated=("b",),
        drive=drive,
    )
    assert out["a", 0].finished == 7


def test_ranks_run_to_their_grant_and_no_further(fleet, flow, role):
    graph, edge = flow

    def drive(agent):
        agent.until(("b", 0), lambda at: at.finished == 3)
        agent.until(("a", 0), lambda at: at.finished == 3 and at.phase == 0)
        for key in agent.sockets:
            agent.send(key, Watermarks(1, 0, 9, -1))

    out = fleet.run(
        graph(("a", "make", Split()), ("b", "take", None), edges=[edge(0, 0, 1, credits=9)]),
        {"a": (lambda: role(make=lambda self: [self.ctx.step]), 1), "b": (lambda: role(take=lambda self, x: None), 1)},
        steps=10,
        granted=3,
        drive=drive,
    )
    assert out["a", 0].finished == out["b", 0].finished == 9
