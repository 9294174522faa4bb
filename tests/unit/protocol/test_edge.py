"""The two ends of an edge: credits, retention, replay; order, duplicates, readiness."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh.errors import TransportError
from rolemesh.protocol.edge import InEdgeState, OutEdgeState


def put(out, step, *, consumers=(0,)):
    out.sent(step, 0, True, consumers, f"v{step}", 1)


def test_the_window_is_spent_by_steps_and_given_back_by_the_slowest_consumer():
    out = OutEdgeState([0, 1], 2, retain=False)
    put(out, 0, consumers=(0, 1))
    assert out.credit
    put(out, 1, consumers=(0, 1))
    assert not out.credit
    assert out.acked(0, 1) == []
    assert not out.credit
    assert out.acked(1, 0) == ["v0"]
    assert out.credit
    assert out.acked(1, 1) == ["v1"]
    assert out.under_way == 0


def test_chunks_of_one_step_need_one_credit():
    out = OutEdgeState([0], 1, retain=False)
    for chunk in range(5):
        out.sent(0, chunk, False, (0,), chunk, 1)
    out.sent(0, 5, True, (0,), None, 0)
    assert out.under_way == 1
    assert out.acked(0, 0) == [0, 1, 2, 3, 4]


def test_an_acknowledgement_may_come_twice_or_late():
    out = OutEdgeState([0], 3, retain=False)
    for step in range(3):
        put(out, step)
    assert out.acked(0, 1) == ["v0", "v1"]
    assert out.acked(0, 1) == []
    assert out.acked(0, 0) == []
    assert out.under_way == 1


def test_what_is_retained_needs_both_release_and_commit():
    out = OutEdgeState([0], 4, retain=True)
    for step in range(3):
        put(out, step)
    assert out.acked(0, 1) == []
    assert out.kept_bytes == 3
    assert out.awaits_commit(2)
    assert out.committed(0) == ["v0"]
    assert out.committed(5) == ["v1"]
    assert not out.awaits_commit(9), "step 2 is held by its consumer, no commit frees it"
    assert out.acked(0, 2) == ["v2"]
    assert out.kept_bytes == 0


def test_a_consumer_that_starts_again_gets_its_own_parts_in_order():
    out = OutEdgeState([0, 1], 4, retain=True)
    for step in range(4):
        out.sent(step, 0, True, (0,), f"a{step}", 1)
        out.sent(step, 0, True, (1,), f"b{step}", 1)
    for consumer in (0, 1):
        out.acked(consumer, 3)
    out.committed(1)
    assert [kept.item for kept in out.rewind(1, 2)] == ["b2", "b3"]
    assert out.under_way == 2
    with pytest.raises(TransportError, match="only later ones"):
        out.rewind(1, 1)


def test_a_stranger_on_either_end_is_an_error():
    with pytest.raises(TransportError, match="no consumer"):
        OutEdgeState([0], 1, retain=False).acked(7, 0)
    with pytest.raises(TransportError, match="no producer"):
        InEdgeState([0]).accept(7, 0, 0, 0, True, "x")


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


def test_a_restarted_producer_is_taken_up_where_the_dead_one_stopped():
    inn = InEdgeState([0])
    inn.accept(0, 0, 4, 0, False, "old 0")
    assert not inn.accept(0, 1, 3, 0, True, "known step")
    assert not inn.accept(0, 1, 4, 0, False, "known chunk")
    assert inn.accept(0, 1, 4, 1, True, "new 1")
    assert not inn.accept(0, 0, 5, 0, True, "from the dead")
    assert inn.take(4) == [["old 0", "new 1"]]


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=6),
    st.lists(st.integers(0, 8), max_size=8),
    st.integers(1, 3),
)
def test_every_chunk_arrives_once_in_order_whatever_is_sent_again(chunks, replays, window):
    """A producer that repeats any suffix of what it retains: each chunk is seen once, and the window holds."""
    out, inn = OutEdgeState([0], window, retain=True), InEdgeState([5])
    got, taken = [], -1

    def take_ready():
        nonlocal taken
        while inn.ready(taken + 1):
            taken += 1
            got.append(inn.take(taken)[0])
            out.acked(0, taken)

    pending = list(replays)
    for step, count in enumerate(chunks):
        while not out.credit:
            take_ready()
        for chunk in range(count):
            last = chunk == count - 1
            out.sent(step, chunk, last, (0,), (step, chunk), 1)
            assert out.under_way <= window
            inn.accept(5, 0, step, chunk, last, (step, chunk))
            if pending:
                for kept in out.rewind(0, max(0, step - pending.pop())):
                    assert not inn.accept(5, 0, kept.step, kept.chunk, kept.last, kept.item)
                out.acked(0, taken)
        take_ready()
    assert got == [[(step, chunk) for chunk in range(count)] for step, count in enumerate(chunks)]
