"""The decisions of pages: places of a graph, and thinning of lanes."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

from rolemesh.api.observer import Event
from rolemesh_facts.graph import HEIGHT, WIDTH, draw, layers
from rolemesh_facts.lanes import columns, joined, lane
from rolemesh_facts.marks import Mark, marks
from rolemesh_facts.pieces import Piece
from rolemesh_facts.recoveries import stories
from rolemesh_recorder.lines import Account, FlowEdge, FlowFile, FlowOp, Head, Line, Stretch
from rolemesh_view.text import shown


def test_an_operator_is_to_the_right_of_all_those_before_it() -> None:
    edges = [("a", "b"), ("b", "c"), ("a", "c"), ("c", "d"), ("d", "a")]
    assert layers(["a", "b", "c", "d"], edges) == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_no_two_operators_overlap_and_an_edge_back_is_drawn_below() -> None:
    nodes = [str(n) for n in range(12)]
    edges = [(nodes[n // 3], nodes[n]) for n in range(1, 12)] + [("11", "0")]
    drawing = draw(nodes, edges)
    places = list(drawing.places.values())
    for at, (x, y) in enumerate(places):
        assert all(abs(x - u) >= WIDTH or abs(y - v) >= HEIGHT for u, v in places[:at])
    assert drawing.lines[-1].back
    assert drawing.lines[-1].y > max(y for _, y in places) + HEIGHT
    assert drawing.height > drawing.lines[-1].y


def points(path: str) -> Iterator[tuple[float, float]]:
    """Yield places on a path of curves and horizontal lines, by De Casteljau's algorithm."""
    at = 0.0, 0.0
    for kind, text in re.findall(r"([MCH])([^MCH]*)", path):
        given = [float(each) for each in text.split()]
        pairs = [(given[0], at[1])] if kind == "H" else list(zip(given[::2], given[1::2], strict=True))
        for share in (n / 20 for n in range(21)):
            left = pairs if kind == "M" else [at, *pairs]
            while len(left) > 1:
                left = [(x + share * (u - x), y + share * (v - y)) for (x, y), (u, v) in pairwise(left)]
            yield left[0]
        at = pairs[-1]


def test_an_edge_passes_between_the_operators_of_the_layers_that_it_skips() -> None:
    nodes = ["tasks", "converse", "other", "train", "weights", "load"]
    near = [("tasks", "converse"), ("tasks", "other"), ("converse", "train"), ("train", "weights"), ("weights", "load")]
    drawing = draw(nodes, [*near, ("converse", "load"), ("tasks", "weights"), ("tasks", "load")])
    for line in drawing.lines:
        for x, y in [*points(line.path), (line.x, line.y)]:
            assert not any(u < x < u + WIDTH and v < y < v + HEIGHT for u, v in drawing.places.values()), line


def test_a_label_lies_on_its_line_and_not_on_another_one() -> None:
    """Two lines cross in the middle, where a label would hide both."""
    drawing = draw(["a", "b", "c", "d"], [("a", "d"), ("b", "c"), ("a", "c")])
    places = [(line.x, line.y) for line in drawing.lines]
    for at, (x, y) in enumerate(places):
        on = [min(abs(x - u) + abs(y - v) for u, v in points(line.path)) for line in drawing.lines]
        assert on[at] < 4
        assert all(far > 12 for number, far in enumerate(on) if number != at), (at, on)
        assert all(abs(x - u) >= 90 or abs(y - v) >= 30 for u, v in places[:at])


def test_an_edge_to_the_same_operator_leads_back() -> None:
    assert draw(["a"], [("a", "a")]).lines[0].back


def test_in_a_lane_with_too_many_pieces_each_phase_has_its_share_of_every_part() -> None:
    """Ten operators that take 9% each are together far more than the wait that takes 10%."""
    pieces = []
    for at in range(0, 100_000, 100):
        pieces += [Piece(at + 9 * op, at + 9 * op + 9, "computing", op) for op in range(10)]
        pieces.append(Piece(at + 90, at + 100, "waiting"))
    found = columns(pieces, 0, 100_000, 200)
    assert len(found) <= 200
    for begin, end in ((0, 100_000), (0, 50_000), (50_000, 100_000)):
        inside = [(p.phase, max(0, min(p.end, end) - max(p.t, begin))) for p in found]
        waits = sum(length for phase, length in inside if phase == "waiting")
        assert sum(length for _, length in inside) == end - begin
        assert abs(waits - (end - begin) / 10) <= 2 * 500, "to a column at either end"


def test_a_column_with_few_pieces_is_as_long_as_these() -> None:
    pieces = [Piece(at, at + 2, "computing") for at in range(0, 1000, 10)]
    assert columns(pieces, 0, 1000, 10)[0] == Piece(0, 20, "computing")


def test_accounts_fill_the_gaps_between_pieces_also_while_a_span_is_open() -> None:
    """A rank waits for 1.2 s, and has so since a second: its wait has no line yet. Then a process of it computes."""
    flow = FlowFile("f", (FlowOp(0, "a", "a.x"), FlowOp(1, "b", "b.y")), (FlowEdge(0, 0, 1, "v", "p"),), {}, {})
    ms = 1000
    lines: list[Line] = [Head("b", 0, 0, 1, "n", 0), Stretch("computing", 0, 300 * ms, 0, 1)]
    lines.append(Account(0, 500 * ms, 0, 1, {"computing": 300 * ms, "edge 0": 196 * ms}))
    lines += [Account(at * ms, 500 * ms, 0, 0, {"edge 0": 500 * ms}) for at in (500, 1000)]
    lines += [Head("b", 0, 1, 2, "n", 2000 * ms), Account(2000 * ms, 500 * ms, 0, 0, {"computing": 500 * ms})]
    assert lane(lines, flow, "b", 0, 9000 * ms) == [
        Piece(0, 300 * ms, "computing", 1, -1, 0),
        Piece(300 * ms, 496 * ms, "waiting", -1, 0),
        Piece(496 * ms, 500 * ms, "engine"),
        Piece(500 * ms, 1500 * ms, "waiting", -1, 0),
        Piece(2000 * ms, 2500 * ms, "computing", generation=1),
    ]
    assert [piece.phase for piece in lane(lines, flow, "a", 400 * ms, 600 * ms)] == ["blocked", "engine", "blocked"]


def test_a_window_within_a_long_account_has_the_phase_that_is_right_there() -> None:
    lines: list[Line] = [Stretch("computing", 0, 600, 0, 1), Account(0, 1000, 0, 1, {"computing": 600, "idle": 400})]
    assert lane(lines, None, "b", 700, 800) == [Piece(600, 1000, "idle")]


def test_a_phase_that_a_later_account_has_is_drawn_once() -> None:
    """A snapshot from 440 to 500 is in the second account only."""
    lines: list[Line] = [Stretch("computing", 0, 400, 0, 1), Account(0, 500, 0, 1, {"computing": 400})]
    lines += [Stretch("saving", 440, 60, 0), Account(500, 500, 0, 0, {"saving": 65, "turn": 300})]
    drawn: dict[str, int] = {}
    for piece in lane(lines, None, "b", 0, 1000):
        drawn[piece.phase] = drawn.get(piece.phase, 0) + piece.end - piece.t
    assert drawn == {"computing": 400, "saving": 65, "turn": 300, "engine": 235}


def test_failures_recoveries_and_resizes_are_marks_from_their_begin_to_their_end() -> None:
    failure = {"role": "b", "rank": 0, "message": "killed by SIGKILL"}
    events = [
        Event(1, 1, 10.0, "failure", {"failure": failure, "silent_s": 0.0}),
        Event(2, 1, 10.1, "recovery_planned", {"number": 1, "plan": {"level": "process"}}),
        Event(3, 1, 10.5, "recovered", {"number": 1}),
        Event(4, 1, 11.0, "regained", {"number": 1}),
        Event(5, 1, 20.0, "resize_asked", {"number": 2, "sizes": {"b": 2}}),
        Event(6, 1, 22.0, "resized", {"number": 2, "sizes": {"b": 2}}),
        Event(7, 1, 30.0, "resize_asked", {"number": 3, "sizes": {"b": 9}}),
        Event(8, 1, 30.1, "resize_refused", {"number": 3, "why": "there is no room"}),
        Event(9, 1, 1e300, "failure", {"failure": failure, "silent_s": 0.0}),
    ]
    told = "b/0: killed by SIGKILL; recovery 1 (process), ready after 0.5 s, caught up after 1 s"
    begins = [mark.t for mark in marks(stories(events), events)]
    assert [mark.t for mark in marks(stories(events), events, begins[1])] == [begins[0], *[begins[1]] * len(begins[1:])]
    assert marks(stories(events), events)[:2] == [
        Mark(10_000_000, 11_000_000, "failure", told),
        Mark(20_000_000, 22_000_000, "resize", "resize: b has 2 ranks"),
    ]


def test_accounts_of_one_column_are_added_up_and_gaps_stay() -> None:
    accounts = [Account(at, 10, 0, 1, {"computing": 6, "idle": 4}) for at in (*range(0, 100, 10), *range(500, 600, 10))]
    assert joined(accounts, 0, 1000, 10) == [
        Account(begin, 100, -1, 0, {"computing": 60, "idle": 40}) for begin in (0, 500)
    ]
    assert len(joined(accounts, 0, 600, 1000)) == 20


def test_a_lane_with_few_pieces_is_shown_as_it_is() -> None:
    pieces = [Piece(0, 10, "computing", 1, -1, 3), Piece(10, 20, "waiting"), Piece(90, 95, "idle")]
    assert columns(pieces, 0, 50, 20) == pieces[:2]


def test_invisible_characters_of_a_text_become_visible() -> None:
    assert shown("a\x00\x1b[0m\u202eb\n") == "a␀␛[0m\\u202eb\n"
    assert shown("x" * 30, 10) == "x" * 10 + " … 20 more characters"
