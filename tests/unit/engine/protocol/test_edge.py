"""The two ends of an edge, also after kills: requests, credits, retention, replay, order, duplicates, readiness."""

from collections import deque

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rolemesh.api.partition import Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh.graph.schedule import Activity
from rolemesh_dataplane.transports import TransportError
from rolemesh_durable.protocol.delivery import delivery_of
from rolemesh_durable.protocol.edge import SMALL, InEdgeState, OutEdgeState, hold_of, last_call


def put(out, step, *, consumers=(0,)):
    return out.sent(step, 0, True, consumers, f"v{step}", 1)


def heard(consumers, window, **options):
    """A producer's end that all consumers have asked for everything."""
    out = OutEdgeState(consumers, window, **{"retain": False, **options})
    for consumer in consumers:
        assert out.ask(consumer, 0, 0, -1) == []
    return out


def test_small_values_may_be_many_steps_ahead_and_large_ones_as_many_as_the_window_has():
    out = heard([0], 2, budget=1000)
    for step in range(4):
        assert out.credit
        out.sent(step, 0, True, (0,), f"v{step}", 0, 300)
    assert not out.credit, "1,200 bytes are under way"
    out.acked(0, 0, 0)
    assert out.credit
    out.sent(4, 0, False, (0,), "large", 0, 600)
    out.sent(4, 1, True, (0,), "and more", 0, 5000)
    assert not out.credit
    out.acked(0, 0, 3)
    assert out.credit, "one value is under way, whatever its size"
    out.sent(5, 0, True, (0,), "v5", 0, 5000)
    assert not out.credit
    out.acked(0, 0, 5)
    for step in range(6, 6 + SMALL):
        assert out.credit
        put(out, step)
    assert not out.credit, "their number is bounded, too"


def test_repeated_sends_count_again():
    out = heard([0], 1, retain=True, budget=1000)
    for step in range(3):
        out.sent(step, 0, True, (0,), f"v{step}", 300, 300)
    out.acked(0, 0, 2)
    assert out.credit
    assert len(out.ask(0, 1, 0, -1)) == 3
    assert out.credit
    out.sent(3, 0, True, (0,), "v3", 300, 300)
    assert not out.credit


def test_nothing_is_sent_before_the_consumer_asks_and_all_of_it_then():
    out = OutEdgeState([0, 1], 3, retain=False)
    assert out.unheard
    assert put(out, 0, consumers=(0, 1)) == ()
    assert [kept.item for kept in out.ask(1, 0, 0, -1)] == ["v0"]
    assert put(out, 1, consumers=(0, 1)) == (1,)
    assert out.unheard
    assert [kept.item for kept in out.ask(0, 0, 0, -1)] == ["v0", "v1"]
    assert not out.unheard
    assert put(out, 2, consumers=(0, 1)) == (0, 1)


def test_a_consumer_of_a_new_generation_gets_nothing_until_it_asks():
    out = heard([0], 9, retain=True)
    put(out, 0)
    out.restarted(0, 1)
    assert put(out, 1) == ()
    assert out.acked(0, 0, 1) == [], "the dead say nothing any more"
    assert out.ask(0, 0, 0, -1) == []
    assert [kept.item for kept in out.ask(0, 1, 0, -1)] == ["v0", "v1"]
    out.restarted(0, 1)
    assert put(out, 2) == (0,), "it was known already"


def test_a_restarted_producer_sends_no_value_again_to_a_consumer_that_has_it_and_uses_no_credit():
    out = OutEdgeState([0], 2, retain=True)
    assert out.ask(0, 0, 4, 2) == []
    for step in range(3):
        assert put(out, step) == ()
    assert out.under_way == 0
    assert put(out, 3) == (), "under way, but with the consumer already"
    assert out.under_way == 1
    assert put(out, 4) == (0,)


def test_the_window_is_spent_by_steps_and_given_back_by_the_slowest_consumer():
    out = heard([0, 1], 2)
    put(out, 0, consumers=(0, 1))
    assert out.credit
    put(out, 1, consumers=(0, 1))
    assert not out.credit
    assert out.acked(0, 0, 1) == []
    assert not out.credit
    assert out.acked(1, 0, 0) == ["v0"]
    assert out.credit
    assert out.acked(1, 0, 1) == ["v1"]
    assert out.under_way == 0


def test_chunks_of_one_step_need_one_credit():
    out = heard([0], 1)
    for chunk in range(5):
        out.sent(0, chunk, False, (0,), chunk, 1)
    out.sent(0, 5, True, (0,), None, 0)
    assert out.under_way == 1
    assert out.acked(0, 0, 0) == [0, 1, 2, 3, 4]


def test_an_acknowledgement_may_come_twice_or_late():
    out = heard([0], 3)
    for step in range(3):
        put(out, step)
    assert out.acked(0, 0, 1) == ["v0", "v1"]
    assert out.acked(0, 0, 1) == []
    assert out.acked(0, 0, 0) == []
    assert out.under_way == 1


def test_an_ask_that_comes_twice_takes_nothing_back():
    out = heard([0], 3, retain=True)
    for step in range(3):
        put(out, step)
    out.acked(0, 0, 1)
    out.ask(0, 0, 0, -1)
    assert out.under_way == 1


def test_a_retained_value_needs_both_release_and_commit():
    out = heard([0], 4, retain=True)
    for step in range(3):
        put(out, step)
    assert out.acked(0, 0, 1) == []
    assert out.kept_bytes == 3
    assert out.committed(0) == ["v0"]
    assert out.committed(5) == ["v1"]
    assert out.acked(0, 0, 2) == ["v2"]
    assert out.kept_bytes == 0


def test_a_held_value_is_kept_until_that_many_steps_after_it_are_committed():
    out = heard([0], 9, retain=True, hold=2)
    for step in range(4):
        put(out, step)
    out.acked(0, 0, 3)
    assert not out.awaits_commit(1)
    assert out.awaits_commit(2)
    assert out.committed(1) == []
    assert out.committed(3) == ["v0", "v1"]
    with pytest.raises(TransportError, match="only those after 1 are kept"):
        out.ask(0, 1, 1, 0)


def test_only_values_that_cross_a_snapshot_on_its_way_to_disk_are_kept():
    out = heard([0], 9, retain=True, hold=2)
    for step in range(6):
        put(out, step)
    out.acked(0, 0, 5)
    assert out.pin([3]) == []
    assert out.committed(7) == ["v0", "v1", "v4", "v5"]
    assert out.kept_bytes == 2
    assert out.pin([]) == ["v2", "v3"]
    assert out.kept_bytes == 0


def test_a_consumer_that_starts_again_gets_its_own_parts_in_order():
    out = heard([0, 1], 4, retain=True)
    for step in range(4):
        out.sent(step, 0, True, (0,), f"a{step}", 1)
        out.sent(step, 0, True, (1,), f"b{step}", 1)
    for consumer in (0, 1):
        out.acked(consumer, 0, 3)
    out.committed(1)
    assert [kept.item for kept in out.ask(1, 1, 2, 1)] == ["b2", "b3"]
    assert out.under_way == 2
    with pytest.raises(TransportError, match="only those after"):
        out.ask(1, 2, 1, 0)


def test_a_stranger_on_either_end_is_an_error():
    with pytest.raises(TransportError, match="no consumer"):
        OutEdgeState([0], 1, retain=False).acked(7, 0, 0)
    with pytest.raises(TransportError, match="no consumer"):
        OutEdgeState([0], 1, retain=False).ask(7, 0, 0, -1)
    with pytest.raises(TransportError, match="no producer"):
        InEdgeState([0]).accept(7, 0, 0, 0, True, "x")
    with pytest.raises(TransportError, match="no producer"):
        InEdgeState([0]).restart_source(7, 0)


def test_a_value_is_ready_when_the_last_chunk_of_every_source_is_there():
    inn = InEdgeState([3, 1])
    assert inn.accept(1, 0, 0, 0, False, "b0")
    assert inn.accept(3, 0, 0, 0, True, "a0")
    assert not inn.ready(0)
    assert inn.missing(0) == (1,)
    assert inn.accept(1, 0, 0, 1, True, None)
    assert inn.ready(0)
    assert inn.take(0) == [["a0"], ["b0"]]


def test_a_gap_is_an_error():
    inn = InEdgeState([0])
    inn.accept(0, 0, 0, 0, False, "x")
    with pytest.raises(TransportError, match="follows chunk 0 of step 0"):
        inn.accept(0, 0, 0, 2, True, "x")
    with pytest.raises(TransportError, match="follows"):
        inn.accept(0, 0, 1, 0, True, "x")


def test_the_incomplete_value_of_a_restarted_producer_is_taken_from_scratch():
    inn = InEdgeState([0])
    inn.accept(0, 0, 3, 0, True, "old 3")
    inn.accept(0, 0, 4, 0, False, "old 4")
    assert inn.restart_source(0, 1) == 4
    assert not inn.accept(0, 0, 4, 1, True, "from the dead")
    assert not inn.accept(0, 1, 3, 0, True, "known step")
    assert inn.accept(0, 1, 4, 0, False, "new 4")
    assert inn.accept(0, 1, 4, 1, True, "new 4.1")
    assert inn.take(4) == [["new 4", "new 4.1"]]


def test_chunks_that_a_stream_has_used_are_not_taken_again():
    inn = InEdgeState([0])
    inn.accept(0, 0, 4, 0, False, "old")
    assert inn.chunk(4, 0, 0) == "old"
    assert inn.restart_source(0, 1) == 4
    assert not inn.accept(0, 1, 4, 0, False, "new")
    assert inn.accept(0, 1, 4, 1, True, "new 1")
    assert inn.take(4) == [["old", "new 1"]]


def example(every, at, lag, returns):
    ops = (
        OpCall(0, "a", "make", "a.make", Split(), every=every, at=(at - lag) % every),
        OpCall(1, "b", "take", "b.take", returns, every=every, at=at),
    )
    graph = LogicalGraph("g", ops, (Edge(0, 0, 1, "x", Split(), Split(), lag=lag),))
    return graph, Activity(graph)


@given(st.integers(1, 5), st.integers(0, 4), st.integers(0, 4), st.booleans(), st.booleans(), st.integers(-1, 30))
def test_values_for_a_restored_consumer_are_held_at_any_commit_up_to_its_step(every, at, lag, sink, stateful, resume):
    graph, activity = example(every, at % every, lag, None if sink else Split())
    roles = ("b",) if stateful else ()
    (edge,) = graph.edges
    first = delivery_of(edge).first_needed(graph, activity, roles, resume)
    hold = hold_of(edge, graph, activity, roles)
    taken = [step for step in range(40) if activity.active(1, step)]
    wanted = [step - lag for step in taken if step > resume]
    before = [step for step in taken if step <= resume]
    if sink and not stateful and before:
        assert last_call(activity, 1, resume) == before[-1]
        wanted.append(before[-1] - lag)
    assert first == max(0, min(wanted)), "all that is needed is asked for, and nothing that is not"
    assert not [step - lag for step in before[:-1] if step - lag >= first], "nothing that is not needed is asked for"
    assert all(made + hold > resume for made in wanted), "no commit up to the step of the snapshot frees it"


@given(st.integers(1, 5), st.integers(0, 4), st.integers(1, 5), st.integers(0, 3), st.booleans(), st.integers(-1, 30))
def test_values_that_a_repeated_call_may_have_taken_with_a_bounded_lag_are_requested_and_held(
    every, at, lag, late, initial, resume
):
    ops = (
        OpCall(0, "z", "begin", "z.begin", Split()),
        OpCall(1, "a", "make", "a.make", Split()),
        OpCall(2, "b", "take", "b.take", None, every=every, at=at % every),
    )
    begin = Edge(0, 0, 1, "x", Split(), Split(), lag=late)
    edge = Edge(1, 1, 2, "x", Split(), Split(), lag=lag, newest=True, initial=(0,) if initial else ())
    graph = LogicalGraph("g", ops, (begin, edge))
    activity = Activity(graph)
    taken = [step for step in range(50) if activity.active(2, step)]
    repeated, following = last_call(activity, 2, resume), next(step for step in taken if step > resume)

    def choices(step):
        """All that the call at `step` may take, but for the initial value."""
        return [made for made in range(step - lag, step + 1) if made >= late]

    again = choices(repeated) if repeated is not None else []
    first = delivery_of(edge).first_needed(graph, activity, (), resume)
    assert first == (again[0] if again else max(0, following - lag))
    assert all(made + hold_of(edge, graph, activity, ()) > resume for made in again)


class Sides:
    """A producer and consumers with a first-in-first-out connection each way per generation; both can be killed."""

    def __init__(self, consumers, window, lag, steps, sink):
        self.names, self.window, self.lag, self.steps = tuple(range(consumers)), window, lag, steps
        self.hold = lag + (1 if sink else 0)
        self.sink = sink
        self.committed = -1
        self.made = -1
        self.log = []
        self.generation = 0
        self.out = self._out()
        self.producer_snapshot = -1
        self.snapshot = dict.fromkeys(self.names, -1)
        self.next = dict.fromkeys(self.names, 0)
        self.consumer_generation = dict.fromkeys(self.names, 0)
        self.inn, self.to, self.back = {}, {}, {}
        self.got = {name: {} for name in self.names}
        self.freed = set()
        for name in self.names:
            self._open(name, 0)

    def _out(self):
        return OutEdgeState(self.names, self.window, retain=True, hold=self.hold)

    def _open(self, name, first):
        self.inn[name] = InEdgeState([0], first)
        self.to[name] = deque()
        self.released = getattr(self, "released", {})
        self.released[name] = first - 1
        self._ask(name)

    def _ask(self, name):
        first = self.inn[name].restart_source(0, self.generation)
        self.back[name] = deque([("ask", self.consumer_generation[name], first, self.released[name])])

    def produce(self):
        step = self.made + 1
        if step >= self.steps or not self.out.credit:
            return
        for chunk in range(1 + step % 3) if step + self.lag < self.steps else ():
            last = chunk == step % 3
            self.log.append((step, chunk, last))
            for name in self.out.sent(step, chunk, last, self.names, (step, chunk), 1):
                self.to[name].append((self.generation, step, chunk, last))
        self.made = step

    def snap(self):
        self.producer_snapshot = self.made

    def serve(self, name):
        if not self.back[name]:
            return
        kind, generation, *rest = self.back[name].popleft()
        if kind == "ask":
            for kept in self.out.ask(name, generation, *rest):
                self.to[name].append((self.generation, kept.step, kept.chunk, kept.last))
        else:
            self.freed.update(self.out.acked(name, generation, *rest))

    def deliver(self, name):
        if self.to[name]:
            generation, step, chunk, last = self.to[name].popleft()
            self.inn[name].accept(0, generation, step, chunk, last, (step, chunk))

    def consume(self, name, repeat=1):
        step = self.next[name]
        if step >= self.steps or (step >= self.lag and not self.inn[name].ready(step - self.lag)):
            return
        if step >= self.lag:
            made = step - self.lag
            value = self.inn[name].take(made)[0]
            assert value == [(made, chunk) for chunk in range(1 + made % 3)], "whole, in order, nothing twice"
            self.released[name] = made
            for _ in range(repeat):
                self.back[name].append(("ack", self.consumer_generation[name], made))
        assert self.got[name].setdefault(step, step) == step
        self.next[name] = step + 1
        self.snapshot[name] = step

    def round(self):
        self.produce()
        for name in self.names:
            while self.back[name]:
                self.serve(name)
            for _ in range(2):
                self.deliver(name)
            self.consume(name)
        self.snap()

    def commit(self):
        self.committed = max(self.committed, min([self.producer_snapshot, *self.snapshot.values()]))
        self.freed.update(self.out.committed(self.committed))

    def kill_producer(self):
        self.generation += 1
        self.made = self.producer_snapshot
        self.log = [entry for entry in self.log if entry[0] <= self.made]
        self.out = self._out()
        for step, chunk, last in self.log:
            if (step, chunk) not in self.freed:
                assert self.out.sent(step, chunk, last, self.names, (step, chunk), 1) == ()
        self.freed -= {(step, chunk) for step, chunk in self.freed if step > self.made}
        for name in self.names:
            self._ask(name)

    def kill_consumer(self, name, back):
        resume = max(self.committed, self.snapshot[name] - back)
        self.snapshot[name] = resume
        self.consumer_generation[name] += 1
        self.out.restarted(name, self.consumer_generation[name])
        first = max(0, resume + 1 - self.lag)
        if self.sink and resume >= self.lag:
            first = resume - self.lag
        self._open(name, first)
        self.next[name] = resume if self.sink and resume >= self.lag else resume + 1


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_every_value_is_delivered_once_in_order_despite_kills_and_no_needed_one_is_freed(data):
    number = data.draw(st.integers(1, 3), "consumers")
    sides = Sides(
        number,
        data.draw(st.integers(1, 3), "window") + (lag := data.draw(st.integers(0, 2), "lag")),
        lag,
        data.draw(st.integers(1, 8), "steps"),
        data.draw(st.booleans(), "sink"),
    )
    actions = st.sampled_from(
        ["produce", "snap", "serve", "deliver", "consume", "ack twice", "commit", "kill producer", "kill consumer"]
    )
    for action in data.draw(st.lists(actions, max_size=60), "actions"):
        name = data.draw(st.integers(0, number - 1), "consumer")
        match action:
            case "round":
                sides.round()
                sides.commit()
            case "round without commit":
                sides.round()
            case "produce":
                sides.produce()
            case "snap":
                sides.snap()
            case "serve":
                sides.serve(name)
            case "deliver":
                sides.deliver(name)
            case "consume":
                sides.consume(name)
            case "ack twice":
                sides.consume(name, repeat=2)
            case "commit":
                sides.commit()
            case "kill producer":
                sides.kill_producer()
            case "kill consumer":
                sides.kill_consumer(name, data.draw(st.integers(0, 2), "back"))
        assert sides.out.under_way <= sides.window or sides.generation or any(sides.consumer_generation.values())
    for _ in range(200):
        sides.round()
        sides.commit()
    assert all(step == sides.steps for step in sides.next.values()), "it ends"
    assert sides.out.under_way == 0


def test_values_of_a_nondeterministic_producer_are_taken_back_unless_they_were_used():
    taker = InEdgeState([0, 1], revocable=True)
    for step in range(3):
        for source in (0, 1):
            assert taker.accept(source, 0, step, 0, True, f"{source}: {step}")
    assert taker.accept(0, 0, 3, 0, False, "half")
    taker.take(0)
    taker.use(1)
    assert taker.restart_source(0, 1) == 2
    assert taker.ready(1)
    assert not taker.ready(2)
    assert taker.restart_source(1, 0) == 3
    assert taker.accept(0, 1, 2, 0, True, "again")
    assert taker.take(2) == [["again"], ["1: 2"]]


def test_a_stream_of_a_producer_that_varies_is_not_used_before_it_is_whole():
    taker = InEdgeState([0], revocable=True)
    taker.accept(0, 0, 0, 0, False, "first")
    assert taker.chunk(0, 0, 0) is None
    assert taker.restart_source(0, 1) == 0
    taker.accept(0, 1, 0, 0, False, "other")
    taker.accept(0, 1, 0, 1, True, None)
    assert taker.chunk(0, 0, 0) == "other"


def test_a_step_that_is_made_again_needs_no_credit_while_a_later_one_is_under_way():
    out = OutEdgeState([0], 1, retain=True)
    out.ask(0, 0, 0, -1)
    out.sent(1, 0, True, (0,), "from the log", 1)
    assert not out.credit
    assert [out.admits(step) for step in (0, 1, 2)] == [True, True, False]


@pytest.mark.parametrize("revocable", [False, True])
def test_a_value_is_settled_when_it_has_come_unless_its_producer_may_make_another(revocable):
    edge = InEdgeState([0], revocable=revocable)
    edge.accept(0, 0, 0, 0, False, "half of it")
    assert not edge.settled(0)
    edge.accept(0, 0, 0, 1, True, "the rest")
    assert edge.settled(0) is not revocable
