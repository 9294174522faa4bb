"""Lines of metrics as columns: nothing of a line is lost or made up, however blocks are cut and overlap."""

from __future__ import annotations

import random

import msgspec

from rolemesh.runs.metrics import Metrics, joined
from rolemesh_durable.protocol.blocks import Block, Tracks, lines_of, merged, packed


def line(step: int, steps: int = 1, ranks: int = 1, seed: int = 0) -> Metrics:
    """One whose metrics, sums and records come and go from line to line."""
    rng = random.Random(f"{seed} {step}")
    means = {f"a.{op}": {"loss": [rng.random(), 1.0]} for op in ("x", "y") if rng.random() < 0.5}
    sums = {"a.x": {name: float(step) for name in ("tokens", "rows") if rng.random() < 0.5}}
    records = {"note": [step]} if rng.random() < 0.3 else {}
    times = [rng.random(), rng.random(), rng.random()]
    return Metrics("a", step, steps, ranks, times, means, {op: s for op, s in sums.items() if s}, records)


def bare(found: Metrics) -> Metrics:
    """Without what says nothing."""
    means = {label: names for label, names in found.means.items() if names}
    return msgspec.structs.replace(found, means=means, sums={op: s for op, s in found.sums.items() if s})


def test_lines_come_out_as_they_went_in_also_over_the_wire_and_cut_anywhere() -> None:
    lines = [line(step) for step in range(20)]
    (block,) = packed(lines)
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(block), type=Block)
    for after in range(-1, 20):
        for upto in range(after, 21):
            cut = sent.between(after, upto)
            found = [bare(each) for each in lines_of(cut)] if cut is not None else []
            assert found == [each for each in lines if after < each.step <= upto]


def test_blocks_of_several_ranks_merge_as_their_lines_would_one_by_one() -> None:
    ranks = [[line(step, seed=rank) for step in range(20)] for rank in range(3)]
    blocks = [packed(lines)[0] for lines in ranks]
    found = [bare(each) for each in lines_of(merged(blocks))]
    assert found == [joined(parts) for parts in zip(*ranks, strict=True)]
    assert [bare(each) for block in blocks for each in lines_of(block)] == [each for lines in ranks for each in lines]


def test_a_block_ends_where_lines_do_not_follow_each_other() -> None:
    lines = [line(3, 4), line(7, 4), line(8), line(10), line(11, ranks=2)]
    assert [[each.step for each in lines_of(block)] for block in packed(lines)] == [[3, 7, 8], [10], [11]]
    assert [each.steps for block in packed(lines) for each in lines_of(block)] == [4, 4, 1, 1, 1]


def test_what_overlaps_is_there_once_the_newer_of_no_fewer_ranks() -> None:
    tracks: Tracks[str] = Tracks()
    for block in packed(line(step, ranks=2) for step in range(4, 8)):
        tracks.add("one", block)
    for block in packed(line(step, seed=1) for step in range(2, 6)):
        tracks.add("one", block)
    for block in packed(line(step, ranks=3, seed=2) for step in range(7, 9)):
        tracks.add("one", block)
    found = [each for stretch in tracks.stretches() for each in lines_of(stretch["one"])]
    assert [(each.step, each.ranks) for each in found] == [(2, 1), (3, 1), (4, 2), (5, 2), (6, 2), (7, 3), (8, 3)]


def test_a_stretch_has_the_lines_that_the_same_sources_have() -> None:
    tracks: Tracks[str] = Tracks()
    for source, first, last in (("one", 0, 9), ("two", 3, 5), ("three", 3, 12), ("two", 6, 7)):
        for block in packed(line(step) for step in range(first, last + 1)):
            tracks.add(source, block)
    found = [({*each}, *{(block.first, block.last) for block in each.values()}) for each in tracks.stretches(1)]
    assert found == [
        ({"one"}, (2, 2)),
        ({"one", "two", "three"}, (3, 5)),
        ({"one", "two", "three"}, (6, 7)),
        ({"one", "three"}, (8, 9)),
        ({"three"}, (10, 12)),
    ]
