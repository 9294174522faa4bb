"""The decisions of pages: places of a graph, and thinning of lanes."""

from __future__ import annotations

from rolemesh_facts.pieces import Piece
from rolemesh_recorder.lines import Account
from rolemesh_view.graph import HEIGHT, WIDTH, draw, layers
from rolemesh_view.lanes import columns, joined, summary
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


def test_an_edge_to_the_same_operator_leads_back() -> None:
    assert draw(["a"], [("a", "a")]).lines[0].back


def test_a_lane_with_too_many_pieces_shows_in_each_column_what_took_the_most_time() -> None:
    pieces = []
    for at in range(0, 1000, 10):
        phase, other = ("computing", "waiting") if at < 500 else ("waiting", "computing")
        pieces += [Piece(at, at + 7, phase), Piece(at + 7, at + 10, other)]
    assert columns(pieces, 0, 1000, 20) == [Piece(0, 500, "computing"), Piece(500, 1000, "waiting")]


def test_a_column_with_few_pieces_is_as_long_as_these() -> None:
    pieces = [Piece(at, at + 2, "computing") for at in range(0, 1000, 10)]
    assert columns(pieces, 0, 1000, 10)[0] == Piece(0, 20, "computing")


def test_accounts_become_pieces_whose_lengths_are_the_shares() -> None:
    account = Account(100, 50, 3, 1, {"edge 2": 10, "computing": 30})
    assert summary([account, account], 120, 130)[:2] == [
        Piece(100, 130, "computing"),
        Piece(130, 140, "waiting", -1, 2),
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
