"""`rolemesh trace` of a synthetic record: one hour of 16 ranks."""

from __future__ import annotations

import random
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from benchmarks.report import Report, ratios
from rolemesh_recorder.lines import Account, FlowEdge, FlowFile, FlowOp, Head, Line, Stretch, rank_folder
from rolemesh_recorder.parts import Parts

RANKS, STEP_US, BEGIN = 8, 400_000, 1_795_730_000_000_000
FLOW = FlowFile(
    "hour",
    (FlowOp(0, "rollout", "rollout.generate"), FlowOp(1, "trainer", "trainer.train")),
    (
        FlowEdge(0, 0, 1, "batch", "Split(axis=0) → Split(axis=0)"),
        FlowEdge(1, 1, 0, "weights", "Broadcast() → Broadcast()", "1"),
    ),
    {"rollout": RANKS, "trainer": RANKS},
    {},
    (("rollout", "judge"),),
)
READ = """
import sys
from pathlib import Path
from rolemesh_recorder.reading import read_record, recorded_ranks

run_dir = Path(sys.argv[1])
print(sum(1 for ref in recorded_ranks(run_dir) for _ in read_record(run_dir, ref.role, ref.rank)))
"""
PACKAGE = """
import sys
from pathlib import Path
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackEvent
from perfetto.trace_builder.proto_builder import TraceProtoBuilder
from rolemesh_recorder.lines import Stretch
from rolemesh_recorder.reading import read_flow, read_record, recorded_ranks
from rolemesh_trace.names import Names

run_dir = Path(sys.argv[1])
names = Names(read_flow(run_dir))
builder = TraceProtoBuilder()
for uuid, ref in enumerate(recorded_ranks(run_dir), 1):
    packet = builder.add_packet()
    packet.track_descriptor.uuid = uuid
    packet.track_descriptor.name = str(ref)
    for line in read_record(run_dir, ref.role, ref.rank):
        if isinstance(line, Stretch):
            for kind, at in ((TrackEvent.TYPE_SLICE_BEGIN, line.t), (TrackEvent.TYPE_SLICE_END, line.t + line.d)):
                packet = builder.add_packet()
                packet.timestamp = at * 1000
                packet.trusted_packet_sequence_id = uuid
                packet.track_event.type = kind
                packet.track_event.track_uuid = uuid
                if kind == TrackEvent.TYPE_SLICE_BEGIN:
                    packet.track_event.name = names.span(line.phase, line.op, line.edge)
                    step = packet.track_event.debug_annotations.add()
                    step.name, step.int_value = "step", line.step
Path(sys.argv[2]).write_bytes(builder.serialize())
"""


def measure(quick: bool) -> Report:
    """A trace of at most 50 MB, in a time near to what the package `perfetto` takes for the slices alone."""
    report = Report("trace", "rolemesh trace of one hour of 16 ranks, a synthetic record", quick)
    steps, rounds = (50, 1) if quick else (3600 * 1_000_000 // STEP_US, 5)
    with tempfile.TemporaryDirectory(prefix="rolemesh-bench-") as folder:
        run_dir, ours, theirs = Path(folder, "hour"), Path(folder, "ours"), Path(folder, "theirs")
        write_run(run_dir, steps)
        commands = {
            "reading the record": [sys.executable, "-c", READ, str(run_dir)],
            "rolemesh trace": [sys.executable, "-m", "rolemesh.cli", "trace", str(run_dir), "-o", str(ours)],
            "slices by the package perfetto": [sys.executable, "-c", PACKAGE, str(run_dir), str(theirs)],
        }
        found: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(rounds):
            for name, command in commands.items():
                found[name].append(cpu_s(command))
        sizes = {name: path.stat().st_size / 1e6 for name, path in (("ours", ours), ("theirs", theirs))}
        record = sum(path.stat().st_size for path in run_dir.rglob("*.jsonl")) / 1e6
    for name, samples in found.items():
        report.row(f"CPU: {name}", "s", samples)
    report.row("size of the record", "MB", [record])
    report.row("size by the package perfetto", "MB", [sizes["theirs"]])
    mine = found["rolemesh trace"]
    report.claim("size of the trace", [sizes["ours"]], at_most=50, unit="MB")
    report.claim("size / that by the package perfetto", [sizes["ours"] / sizes["theirs"]], at_most=0.65)
    report.claim("CPU / reading the record", ratios(mine, found["reading the record"]), at_most=12)
    report.claim(
        "CPU / slices by the package perfetto", ratios(mine, found["slices by the package perfetto"]), at_most=1.5
    )
    report.settings = {
        "ranks": 2 * RANKS,
        "steps": steps,
        "seconds of the job": steps * STEP_US / 1e6,
        "rounds": rounds,
    }
    report.notes.append(
        "every sample is the CPU time of a process, its start included; the trace has slices, arrows, counters and "
        "events, and what the package writes has slices only"
    )
    return report


def write_run(run_dir: Path, steps: int) -> None:
    """Write a run's folder with the recorder's own code: each record comes near to its limit of 4 MB."""
    (run_dir / "record").mkdir(parents=True)
    (run_dir / "record" / "flow.json").write_bytes(msgspec.json.encode(FLOW))
    (run_dir / "run.json").write_bytes(
        msgspec.json.encode(
            {"name": "hour", "run_dir": str(run_dir), "steps": steps, "roles": FLOW.sizes, "operators": []}
        )
    )
    for op, edge, role, after in ((0, 1, "rollout", 0), (1, 0, "trainer", STEP_US // 2)):
        for rank in range(RANKS):
            head = Head(role, rank, 0, 1000 + rank, f"node{rank // 4}", BEGIN)
            parts = Parts(rank_folder(run_dir, role, rank), head, 4_000_000)
            for lines in _record(op, edge, after, steps, random.Random(rank)):
                parts.append(lines)
                parts.tidy()
            parts.close()


def _record(op: int, edge: int, after: int, steps: int, chance: random.Random) -> Sequence[list[Line]]:
    """Return the lines of a rank, step by step."""
    found, account = [], BEGIN
    for step in range(steps):
        t = BEGIN + step * STEP_US + after
        lines: list[Line] = [
            Stretch("calling", t + 10_000, 20_000, step, op, -3),
            Stretch("calling", t + 50_000, 20_000, step, op, -3),
            Stretch("computing", t, 150_000 + chance.randrange(20_000), step, op),
            Stretch("waiting", t + 175_000, 150_000 + chance.randrange(30_000), step, op, edge),
        ]
        if step % 10 == 0:
            lines.append(Stretch("saving", t + 390_000, 3000, step))
        while t + STEP_US - account >= 500_000:
            spent = {
                "computing": 200_000 + chance.randrange(50_000),
                f"edge {edge}": 170_000 + chance.randrange(50_000),
            }
            lines.append(Account(account, 500_000, step, 1, spent | {"idle": 2000}))
            account += 500_000
        found.append(lines)
    return found


def cpu_s(command: Sequence[str]) -> float:
    """Return the CPU seconds of a process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
