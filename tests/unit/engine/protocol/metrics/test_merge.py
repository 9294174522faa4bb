"""Lines of metrics: merged over ranks and agents, complete, in order, each once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import permutations

from rolemesh.api.partition import Split
from rolemesh.graph.logical import Edge, LogicalGraph, OpCall
from rolemesh_durable.protocol.metrics.item_reports import reports_record
from rolemesh_durable.protocol.metrics.merge import LineAssembler, MetricsMerger
from rolemesh_runtime.metrics import Metrics


def graph() -> LogicalGraph:
    ops = (OpCall(0, "data", "next", "data.next", Split()), OpCall(1, "work", "do", "work.do", None))
    return LogicalGraph("g", ops, (Edge(0, 0, 1, "rows", Split(), Split(), lag=2),))


def part(role: str, step: int, reward: float, ranks: int = 1, tokens: float = 0.0) -> Metrics:
    label = f"{role}.{'next' if role == 'data' else 'do'}"
    means, sums = {label: {"reward": [reward, 1.0]}}, {label: {"tokens": tokens}}
    return Metrics(role, step, 1, ranks, [1.0, 2.0, 3.0], means, sums)


def test_a_line_waits_for_every_rank_of_every_role_and_lines_keep_their_order() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 2})
    assert assembler.add("a0", [part("data", 0, 0.0), part("work", 0, 0.25)], 5.0, wall=5.0) == []
    assert assembler.add("a0", [part("data", 1, 0.0), part("work", 1, 1.0, ranks=2)], 5.0, wall=5.0) == []
    lines = assembler.add("a1", [part("work", 0, 0.75, tokens=3.0)], 6.0, wall=6.0)
    assert [line.step for line in lines] == [0, 1]
    assert lines[0].operators["work.do"] == {"reward": 0.5, "tokens": 3.0}
    assert lines[0].staleness == {"data.next → work.do": 2.0}
    assert lines[0].roles["work"].computing_s == 1.0


def test_the_order_in_which_ranks_report_does_not_matter_and_repeats_do_not_count() -> None:
    results = set()
    for order in permutations(range(3)):
        merger = MetricsMerger()
        for rank in range(3):
            merger.expect("work", rank)
        for rank in order:
            for _ in range(2):
                merger.add(rank, [part("work", 0, float(rank), tokens=1.0)])
        (line,) = merger.take()
        results.add((line.ranks, tuple(line.means["work.do"]["reward"]), line.sums["work.do"]["tokens"]))
        assert not merger.pending
    assert results == {(3, (3.0, 3.0), 3.0)}


def test_a_step_of_the_clock_loses_no_part() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 1})
    assert assembler.add("a0", [part("data", 0, 0.0)], 5.0, committed=0, wall=1000.0) == []
    assert assembler.add("a0", [], 6.0, committed=0, wall=9000.0) == []
    (line,) = assembler.add("a0", [part("work", 0, 0.5)], 7.0, committed=0, wall=9001.0)
    assert (line.time, set(line.roles)) == (9001.0, {"data", "work"})


def test_lines_that_are_held_come_later_and_each_once() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 1})
    whole = [part("data", 0, 0.0)], ([part("work", 0, 0.5)])
    assert [assembler.add("a0", blocks, 5.0, wall=5.0, hold=True) for blocks in whole] == [[], []]
    assert [line.step for line in assembler.add("", (), 6.0, wall=6.0)] == [0]
    assert assembler.add("a0", whole[0], 7.0, wall=7.0) == []


def test_a_committed_line_does_without_a_part_that_never_comes_but_not_while_ranks_are_brought_back() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 1})
    assert assembler.add("a0", [part("data", 0, 0.0)], 5.0, committed=0, wall=5.0) == []
    assembler.unsettled(30.0)
    assert assembler.add("a0", [part("data", 1, 0.0)], 31.0, committed=0, wall=31.0) == []
    (line,) = assembler.add("a0", [part("data", 2, 0.0)], 40.5, committed=0, wall=40.5)
    assert (line.step, set(line.roles)) == (0, {"data"})
    lines = assembler.add("a0", [part("work", 1, 0.5)], 41.0, committed=0, wall=41.0)
    assert [line.step for line in lines] == [1]


def test_at_the_end_a_committed_line_does_without_a_part_that_has_not_come() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 1})
    assembler.add("a0", [part("data", step, 0.0) for step in range(4)], 5.0, committed=1, wall=5.0)
    assembler.add("a0", [part("work", 0, 0.5)], 5.0, committed=1, wall=5.0)
    left = assembler.ended(committed=2, wall=6.0)
    assert [(line.step, set(line.roles)) for line in left] == [(1, {"data"}), (2, {"data"})]


def test_a_line_waits_for_the_slowest_rank_however_long_its_step_takes() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 1})
    assert assembler.add("a0", [part("data", 0, 0.0)], 5.0, committed=-1, wall=5.0) == []
    # Both report in one turn, and what "work" says commits step 0 before either is taken.
    assert assembler.add("a0", [part("data", 1, 0.0)], 65.0, committed=0, wall=65.0) == []
    (line,) = assembler.add("a1", [part("work", 0, 0.5)], 65.0, committed=0, wall=65.0)
    assert (line.step, set(line.roles)) == (0, {"data", "work"})


def test_a_complete_part_is_joined_again_when_a_rank_comes_to_this_node() -> None:
    merger = MetricsMerger()
    merger.expect("work", 2)
    merger.add(2, [part("work", 4, 1.0)])
    assert [line.ranks for line in merger.take()] == [1]
    merger.expect("work", 0)
    assert merger.lines() == ()
    merger.add(0, [part("work", 4, 3.0)])
    (line,) = merger.take()
    assert (line.ranks, line.means["work.do"]["reward"]) == (2, [4.0, 2.0])


def test_the_lines_of_a_rank_leave_with_it() -> None:
    merger = MetricsMerger()
    for rank in (0, 1):
        merger.expect("work", rank)
        merger.add(rank, [part("work", 0, float(rank)), part("work", 1, float(rank))])
    merger.leave("work", 1)
    assert [(line.step, line.ranks, line.means["work.do"]["reward"]) for line in merger.lines()] == [
        (0, 1, [0.0, 1.0]),
        (1, 1, [0.0, 1.0]),
    ]
    merger.leave("work", 0)
    assert merger.lines() == ()


def test_ranks_that_have_moved_count_where_they_are() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 2})
    assembler.add("a0", [part("data", 0, 0.0)], 5.0, wall=5.0)
    assembler.add("a1", [part("work", 0, 0.5, tokens=1.0)], 5.0, wall=5.0)
    assembler.moved([("data", "a0"), ("work", "a2"), ("work", "a2")])
    assert assembler.add("a2", [part("work", 0, 0.5, tokens=2.0)], 5.0, wall=5.0) == []
    assert assembler.add("a1", [part("work", 0, 0.5, tokens=1.0)], 5.0, wall=5.0) == []
    (line,) = assembler.add("a2", [part("work", 0, 1.5, ranks=2, tokens=5.0)], 5.0, wall=5.0)
    assert line.operators["work.do"]["tokens"] == 5.0


def test_a_rank_that_has_left_its_mates_is_not_counted_with_them_any_more() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 2})
    assembler.add("a1", [part("work", 0, 1.5, ranks=2, tokens=5.0)], 5.0, wall=5.0)
    assembler.moved([("data", "a0"), ("work", "a1"), ("work", "a2")])
    assembler.add("a1", [part("work", 0, 1.5, ranks=2, tokens=5.0)], 5.0, wall=5.0)
    assembler.add("a0", [part("data", 0, 0.0)], 5.0, wall=5.0)
    assert assembler.add("a2", [part("work", 0, 0.5, tokens=3.0)], 5.0, wall=5.0) == []
    (line,) = assembler.add("a1", [part("work", 0, 0.5, tokens=2.0)], 5.0, wall=5.0)
    assert line.operators["work.do"]["tokens"] == 5.0


def test_a_line_waits_for_those_before_it_even_if_nothing_of_them_has_come_yet() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 1})
    assert assembler.add("a0", [part("data", 1, 0.0), part("work", 1, 0.0)], 5.0, wall=5.0) == []
    lines = assembler.add("a0", [part("data", 0, 0.0), part("work", 0, 0.0)], 5.0, wall=5.0)
    assert [line.step for line in lines] == [0, 1]


def test_a_line_of_which_nothing_is_left_is_not_written() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 1})
    assembler.add("a1", [part("data", 0, 0.0)], 5.0, committed=0, wall=5.0)
    assembler.moved([("data", "a0"), ("work", "a0")])
    assert assembler.add("a0", [], 99.0, committed=0, wall=99.0) == []


def test_the_calls_of_one_operator_count_as_one_call_and_the_first_of_several_operators_gives_its_name() -> None:
    ops = (
        OpCall(0, "work", "do", "work.do", None),
        OpCall(1, "work", "check", "work.check", None),
        OpCall(2, "work", "do", "work.do#2", None),
    )
    assembler = LineAssembler(LogicalGraph("g", ops, ()), {"work": 2})
    means = {"work.do": {"loss": [6.0, 3.0]}, "work.check": {"loss": [50.0, 1.0]}, "work.do#2": {"loss": [2.0, 1.0]}}
    sums = {"work.do": {"tokens": 480.0}, "work.check": {"tokens": 7.0}, "work.do#2": {"tokens": 510.0, "more": 1.0}}
    (line,) = assembler.add("a0", [Metrics("work", 0, 1, 2, [0.0, 0.0, 0.0], means, sums)], 5.0, wall=5.0)

    assert line.values == {"loss": 2.0, "tokens": 990.0, "more": 1.0}
    assert line.operators["work.do"] == {"loss": 2.0, "tokens": 480.0}
    assert line.operators["work.do#2"] == {"loss": 2.0, "tokens": 510.0, "more": 1.0}


def test_lines_of_ranks_of_an_earlier_layout_do_not_count() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 2})
    assert assembler.add("a0", [part("work", 0, 0.25, ranks=2)], 5.0, wall=5.0) == []
    assembler.resized({"data": 1, "work": 1})
    (line,) = assembler.add("a0", [part("data", 0, 0.0), part("work", 0, 1.0)], 6.0, wall=6.0)
    assert line.operators["work.do"]["reward"] == 1.0


def test_a_line_that_was_not_whole_when_the_job_went_back_is_of_the_second_life_alone() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 1})
    first = [part("data", step, 0.0) for step in range(4)]
    assert assembler.add("a0", first, 5.0, wall=5.0) == []
    assembler.rolled_back(1)
    lines = assembler.add("a0", (part("work", step, 0.5) for step in range(4)), 6.0, wall=6.0)
    assert [line.step for line in lines] == [0, 1]
    lines = assembler.add("a0", (part("data", step, 0.0, tokens=7.0) for step in range(2, 4)), 7.0, wall=7.0)
    assert [(line.step, line.operators["data.next"]["tokens"]) for line in lines] == [(2, 7.0), (3, 7.0)]


def reports(rank: int, made: Iterable[int], items: int = 4, step: int = 0) -> Metrics:
    """Return the line of `step` of rank `rank` of the role `work`, which has made the items `made` of `items`."""
    said = {item: ({"size": [float(rank), 1.0]}, {"rows": 1.0}) for item in made}
    records = {**reports_record("work.do", step, rank, items, said), f"by {rank}": list(made)}
    return Metrics("work", step, 1, 1, [1.0, 0.0, 0.0], {}, {}, records)


def test_an_item_that_several_ranks_have_made_counts_once_as_the_lowest_ranks() -> None:
    merger = MetricsMerger()
    for rank in (1, 2):
        merger.expect("work", rank)
    merger.add(2, [reports(2, (1, 3))])
    merger.add(1, [reports(1, (1, 2))])
    assembler = LineAssembler(graph(), {"data": 1, "work": 3})
    assert assembler.add("a1", merger.take(), 5.0, wall=5.0) == []
    (line,) = assembler.add("a0", [*[part("data", 0, 0.0)], reports(0, (0,))], 5.0, wall=5.0)
    assert line.operators["work.do"] == {"rows": 4.0, "size": (0 + 1 + 1 + 2) / 4}
    assert line.records == {"by 0": [0], "by 1": [1, 2], "by 2": [1, 3]}


def test_a_line_waits_for_the_reports_of_all_items() -> None:
    assembler = LineAssembler(graph(), {"data": 1, "work": 2})
    assembler.add("a0", [*[part("data", 0, 0.0), part("data", 1, 0.0)], reports(0, (0, 1))], 5.0, wall=5.0)
    # Of a former life: the ranks of both agents have started again, and shared the items out in another way.
    assert assembler.add("a1", [reports(1, (1, 3))], 5.0, wall=5.0) == []
    (line,) = assembler.add("a1", [reports(1, (2, 3))], 6.0, wall=6.0)
    assert line.operators["work.do"]["rows"] == 4.0
    assembler.add("a0", [reports(0, (0,), step=1)], 7.0, committed=1, wall=7.0)
    assert assembler.add("a1", [reports(1, (3,), step=1)], 7.0, committed=1, wall=7.0) == []
    (line,) = assembler.add("a1", [], 18.0, committed=1, wall=18.0)
    assert line.operators["work.do"]["rows"] == 2.0
