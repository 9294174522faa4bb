"""`rolemesh trace`: a real run and hand-made records, read with Perfetto's own definition of the format."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TracePacket, TrackEvent

from rolemesh.api.rank_ref import RankRef
from rolemesh.cli import main
from rolemesh.errors import RolemeshError
from rolemesh_recorder.lines import Account, FlowEdge, FlowFile, FlowOp, Head, Life, Line, Stretch, encode, rank_folder
from rolemesh_recorder.usage import recorded_nodes
from rolemesh_trace.arrows import Run, arrows
from rolemesh_trace.command import chosen, duration
from rolemesh_trace.drawing import drawing
from rolemesh_trace.lanes import split
from rolemesh_trace.shares import rates

T = 1_795_730_000_000_000
FLOW = FlowFile(
    "two",
    (FlowOp(0, "rollout", "rollout.generate"), FlowOp(1, "trainer", "trainer.train")),
    (
        FlowEdge(0, 0, 1, "batch", "Split(axis=0) → Split(axis=0)"),
        FlowEdge(1, 1, 0, "weights", "Broadcast() → Broadcast()", "1"),
    ),
    {"rollout": 2, "trainer": 1},
    {},
)


class Shown(NamedTuple):
    """A slice as Perfetto shows it: its track, name, step, times in µs and arrows."""

    track: str
    name: str
    step: int | None
    began: int
    ended: int
    out: tuple[int, ...]
    into: tuple[int, ...]


class Content:
    """The tracks of a trace, and what is on them."""

    def __init__(self, data: bytes) -> None:
        trace = Trace()
        trace.ParseFromString(data)
        self.tracks: dict[int, str] = {}
        self.slices: list[Shown] = []
        self.instants: list[str] = []
        self.counts: dict[str, list[tuple[int, float]]] = {}
        clocks: dict[int, int] = {}
        names: dict[tuple[int, int], str] = {}
        owners: dict[int, int] = {}
        opened: dict[int, list[tuple[Any, int]]] = {}
        parents: set[int] = set()
        cleared: set[int] = set()
        for packet in trace.packet:
            sequence = packet.trusted_packet_sequence_id
            flags = packet.sequence_flags
            assert 0 < sequence < 1 << 32
            if flags & TracePacket.SEQ_INCREMENTAL_STATE_CLEARED:
                assert sequence not in cleared, "names and times that later packets refer to are forgotten"
                cleared.add(sequence)
            if packet.HasField("track_descriptor"):
                told = packet.track_descriptor
                assert told.uuid not in {0, *self.tracks}, "two tracks have one uuid"
                self.tracks[told.uuid] = told.process.process_name or told.thread.thread_name or told.name
                parents |= {told.parent_uuid} if told.HasField("parent_uuid") else set()
            for clock in packet.clock_snapshot.clocks:
                if clock.is_incremental:
                    clocks[sequence] = clock.timestamp
            for name in packet.interned_data.event_names:
                assert names.setdefault((sequence, name.iid), name.name) == name.name, "a number has two names"
            if packet.HasField("trace_packet_defaults"):
                owners[sequence] = packet.trace_packet_defaults.track_event_defaults.track_uuid
            if not packet.HasField("track_event"):
                continue
            event, track = packet.track_event, self.tracks[owners[sequence]]
            assert flags & TracePacket.SEQ_NEEDS_INCREMENTAL_STATE
            assert sequence in cleared
            clocks[sequence] += packet.timestamp
            at = clocks[sequence]
            if event.type == TrackEvent.TYPE_SLICE_BEGIN:
                opened.setdefault(sequence, []).append((event, at))
            elif event.type == TrackEvent.TYPE_SLICE_END:
                first, began = opened[sequence].pop()
                steps = [each.int_value for each in first.debug_annotations]
                ends = tuple(first.flow_ids), tuple(first.terminating_flow_ids)
                name = names[sequence, first.name_iid]
                self.slices.append(Shown(track, name, steps[0] if steps else None, began, at, *ends))
            elif event.type == TrackEvent.TYPE_INSTANT:
                self.instants.append(event.name)
            else:
                self.counts.setdefault(track, []).append((at, event.double_counter_value))
        assert not any(opened.values()), "a slice has no end"
        assert parents <= self.tracks.keys(), "a track is below one that does not exist"
        begun, ended = ({number for each in self.slices for number in getattr(each, side)} for side in ("out", "into"))
        assert begun == ended, "an arrow lacks its begin or its end"
        for at in self.counts.values():
            assert at == sorted(at, key=lambda point: point[0]), "a counter goes back in time"


def drawn(*lines: tuple[RankRef, list[Line]]) -> Content:
    lanes = [lane for ref, each in lines for lane in split(ref, each, 0)]
    return Content(b"".join(drawing("two", FLOW, lanes, ())))


def head(role: str, rank: int) -> Head:
    return Head(role, rank, 0, 1, "node", T)


def test_a_real_run_with_a_failure_is_complete(seen: Path, tmp_path: Path) -> None:
    copy, out = tmp_path / "copied", tmp_path / "out.perfetto-trace"
    shutil.copytree(seen, copy)
    assert main(["trace", str(copy), "-o", str(out)]) == 0
    content = Content(out.read_bytes())
    assert {"job seen", "source/0", "sink/0", "recoveries", "sink/0: steps"} <= set(content.tracks.values())
    (node,) = recorded_nodes(seen)
    assert {f"node {node[:12]}", "cores", "memory", "metric reward"} <= set(content.tracks.values())
    takes = [each for each in content.slices if each.name == "sink.take"]
    assert 19 in {each.step for each in takes}, "before a SIGKILL, half a second is lost"
    assert {each.name for each in content.slices} >= {"starting", "setup", "source.make"}
    assert any(each.name.startswith("recovery 1 by process") for each in content.slices)
    assert any(name.startswith("failure: ") for name in content.instants)
    made = {number: each for each in content.slices for number in each.out}
    assert any(each.into for each in takes)
    assert all(made[number].step == each.step for each in takes for number in each.into)


def test_only_the_chosen_ranks_and_times_are_written(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    for rank in (0, 1):
        folder = rank_folder(tmp_path, "sink", rank)
        folder.mkdir(parents=True)
        spans = [Stretch("computing", T + step * 1_000_000, 900_000, step, 0) for step in range(10)]
        lines = [head("sink", rank), *spans, Account(T, 10_000_000, 9, 10)]
        (folder / "000000.jsonl").write_bytes(b"".join(encode(line) + b"\n" for line in lines))
    out = tmp_path / "out"
    assert main(["trace", str(tmp_path), "-o", str(out), "--ranks", "sink/1", "--since", "2.5s"]) == 0
    assert [(each.track, each.step) for each in Content(out.read_bytes()).slices] == [
        ("sink/1", 7),
        ("sink/1", 8),
        ("sink/1", 9),
    ]


def test_a_span_that_has_not_ended_is_drawn_up_to_the_last_account_of_its_process() -> None:
    """The first process was killed in an operator that ran for 1.2 s; the second one waits since 0.9 s."""
    ms = 1000
    lines: list[Line] = [
        head("trainer", 0),
        Stretch("computing", T, 100 * ms, 1, 1),
        Account(T, 500 * ms, 1, 1, {"computing": 490 * ms}),
        Account(T + 500 * ms, 500 * ms, 1, 0, {"computing": 500 * ms}),
        Account(T + 1000 * ms, 300 * ms, 1, 0, {"computing": 300 * ms}),
        Head("trainer", 0, 1, 2, "node", T + 2000 * ms),
        Stretch("computing", T + 2000 * ms, 100 * ms, 1, 1),
        Account(T + 2000 * ms, 500 * ms, 2, 1, {"computing": 100 * ms, "edge 0": 400 * ms}),
        Account(T + 2500 * ms, 500 * ms, 2, 0, {"edge 0": 500 * ms}),
    ]
    told = [
        (each.name, (each.began - T) // ms, (each.ended - T) // ms)
        for each in drawn((RankRef("trainer", 0), lines)).slices
    ]
    assert [(began, ended) for _, began, ended in told] == [
        (0, 100),
        (100, 490),
        (500, 1300),
        (2000, 2100),
        (2100, 3000),
    ]
    assert told[1][0] == "computing"
    assert told[-1][0].startswith("waits for ")


def test_slices_nest_and_name_their_cause() -> None:
    content = drawn(
        (
            RankRef("rollout", 0),
            [
                head("rollout", 0),
                Life("setup", T, 10),
                Stretch("calling", T + 20, 30, 3, 0, -3),
                Stretch("computing", T + 15, 50, 3, 0),
                Stretch("waiting", T + 60, 20, 4, 0, 1),
                Stretch("brand-new", T + 90, 5, 4),
            ],
        )
    )
    ordered = sorted(content.slices, key=lambda each: each.began)
    shown = [(each.name, each.began - T, each.ended - T, each.step) for each in ordered]
    assert shown == [
        ("setup", 0, 10, None),
        ("rollout.generate", 15, 65, 3),
        ("calls a service", 20, 50, 3),
        ("waits for weights from trainer", 60, 65, 4),
        ("brand-new", 90, 95, 4),
    ]


def test_counters_show_who_waits_for_an_edge() -> None:
    account = Account(T, 1_000_000, 1, 4, {"edge 0": 250_000})
    content = drawn((RankRef("trainer", 0), [head("trainer", 0), account]))
    name = "rollout.generate → trainer.train (batch): consumers wait"
    assert [value for _, value in content.counts[name]] == [25.0, 0.0]
    assert [value for _, value in content.counts["trainer/0: steps"]] == [4.0, 0.0]


def test_an_arrow_comes_from_the_last_producer_of_the_right_step() -> None:
    def run(op: int, step: int, rank: int, began: int) -> tuple[tuple[int, int], Run]:
        return (op, step), Run(began * 10_000 + 9_000, began * 10_000, rank, op * 2 + rank, step)

    runs: dict[tuple[int, int], list[Run]] = {}
    for key, each in (
        *(run(0, 0, rank, 1 + rank) for rank in (1, 0)),
        run(1, 0, 0, 3),
        run(0, 1, 0, 4),
        run(0, 1, 1, 5),
        run(0, 1, 1, 9),  # repeated after a failure
        run(1, 1, 0, 6),
    ):
        runs.setdefault(key, []).append(each)

    found = {(one.lane, one.at, one.began, two.lane, two.at) for one, two in arrows(FLOW, runs)}

    assert found == {(1, 0, 20_000, 2, 0), (1, 1, 50_000, 2, 1), (2, 0, 30_000, 0, 1), (2, 0, 30_000, 1, 1)}


def test_rates_spread_amounts_and_fall_to_zero() -> None:
    assert rates([(0, 200, 100.0), (500, 100, 10.0)], 100) == [(0, 0.5), (200, 0.0), (500, 0.1), (600, 0.0)]


def test_damaged_lines_are_left_out() -> None:
    lines: list[Line] = [
        Stretch("computing", T, 5, 1, 0),
        head("rollout", 0),
        Stretch("computing", 1 << 70, 5, 1, 0),
        Stretch("computing", T, -5, 1, 99),
        Stretch("waiting", T + 10, 5, 1 << 80, 99, 98),
    ]
    found = drawn((RankRef("rollout", 0), lines)).slices
    assert [each.name for each in found] == ["rollout.generate", "waits for memory"]


def test_errors_say_what_there_is(seen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def errors() -> Iterator[str]:
        for arguments in (
            ["no-such-job", "-o", "x"],
            [str(seen), "-o", str(tmp_path / "none" / "x")],
            [str(seen), "-o", "x", "--ranks", "sinc"],
            [str(seen), "-o", "x", "--since", "soon"],
        ):
            assert main(["trace", *arguments]) == 2
            yield capsys.readouterr().err

    texts = list(errors())
    for text, part in zip(texts, ("no run of a job", "choose another place", "did you mean", "write 30s"), strict=True):
        assert part in text
    with pytest.raises(RolemeshError, match="no record"):
        chosen([], (), tmp_path)
    assert [duration(text) for text in ("", "30s", "1.5m", "2h")] == [None, 30, 90, 7200]
