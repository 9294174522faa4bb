"""The pages of `rolemesh view` for a synthetic run of 10,000 ranks on 1,250 nodes, with 50,000 kept rows."""

from __future__ import annotations

import gc
import statistics
import tempfile
import time
from pathlib import Path

import msgspec
from starlette.testclient import TestClient

from benchmarks.report import Report
from rolemesh_recorder.lines import Account, FlowEdge, FlowFile, FlowOp, Head, Stretch, encode, rank_folder
from rolemesh_recorder.rows import Row
from rolemesh_recorder.usage import Usage, node_file
from rolemesh_view import application
from rolemesh_view.command import COLLECT
from rolemesh_view.guard import Access
from rolemesh_view.viewed import Runs

BEGIN, STEP_US, RANKS_PER_NODE, ROW_FILES = 1_795_730_000_000_000, 1_000_000, 8, 10
FLOW = (
    (FlowOp(0, "rollout", "rollout.generate"), FlowOp(1, "trainer", "trainer.train")),
    (
        FlowEdge(0, 0, 1, "batch", "Split(axis=0) → Split(axis=0)"),
        FlowEdge(1, 1, 0, "weights", "Broadcast() → Broadcast()", "1"),
    ),
)
PAGES = (
    "overview", "flow", "time", "data/lanes", "failures", "metrics", "data/metrics?name=reward", "rows", "rows?step=60",
    "rows?find=a text that one row has: 123", "rows?find=the question", "rows?step=60&row=3", "logs", "events",
    "events?find=rollout/77 ", "placement", "job", "advice",
)  # fmt: skip


def measure(quick: bool) -> Report:
    """No page takes more than 12 × the processor time of decoding the run's 11,250 events."""
    report = Report("pages", "processor time of the viewer's answers for a run of 10,000 ranks", quick)
    gc.set_threshold(*COLLECT)  # as the viewer does
    ranks, steps, rows, rounds = (200, 5, 500, 2) if quick else (10_000, 100, 50_000, 20)
    with tempfile.TemporaryDirectory(prefix="rolemesh-bench-") as folder:
        run_dir = Path(folder, "large")
        write_run(run_dir, ranks, steps, rows)
        runs = Runs(run_dir.parent)
        run = runs.find("large")
        assert run is not None
        for read in (run.look, run.whole, run.rows.entries):  # in the background, before somebody asks
            read()
        viewer = TestClient(application(runs, Access("a-token")), "http://127.0.0.1:8000")
        viewer.headers["authorization"] = "Bearer a-token"
        while "The viewer reads" in viewer.get("/run/large/flow").text:
            time.sleep(0.5)
        for page in PAGES:
            assert viewer.get(f"/run/large/{page}").status_code == 200, page
        found: dict[str, list[float]] = {page: [] for page in ("its events", *PAGES)}
        for _ in range(rounds):
            for page, samples in found.items():
                began = time.process_time()
                if page == "its events":
                    [msgspec.json.decode(line) for line in (run_dir / "events.jsonl").read_bytes().splitlines()]
                else:
                    viewer.get(f"/run/large/{page}")
                samples.append(1e3 * (time.process_time() - began))
    for page, samples in found.items():
        report.row(page, "ms", samples)
    late = {page: statistics.quantiles(samples, n=20)[-1] for page, samples in found.items() if page != "its events"}
    slowest = max(late, key=late.__getitem__)
    report.claim(
        f"p95 of the slowest page ({slowest.partition('?')[0]}) / decoding the events",
        [late[slowest] / statistics.median(found["its events"])],
        at_most=12,
    )
    report.settings = {"ranks": ranks, "steps": steps, "kept rows": rows, "rounds": rounds}
    report.notes.append(f"95th percentile of the slowest page, {slowest}: {late[slowest]:.0f} ms of processor time")
    return report


def write_run(run_dir: Path, ranks: int, steps: int, rows: int) -> None:
    """Write the files of a run that has ended: one rank in five is a trainer."""
    sizes = {"rollout": ranks - ranks // 5, "trainer": ranks // 5}
    refs = [(role, rank) for role, size in sizes.items() for rank in range(size)]
    (run_dir / "logs").mkdir(parents=True)
    (run_dir / "logs" / "rollout-0.log").write_text("a line\n" * 1000)
    (run_dir / "record").mkdir()
    (run_dir / "record" / "flow.json").write_bytes(encode_json(FlowFile("large", *FLOW, sizes, {})))
    info = {"name": "large", "run_dir": str(run_dir), "steps": steps, "roles": sizes, "operators": []}
    (run_dir / "run.json").write_bytes(encode_json(info))
    (run_dir / "job.yaml").write_text("name: large\n")
    (run_dir / "result.json").write_bytes(encode_json({"status": "done", "message": ""}))
    events: list[tuple[str, dict[str, object]]] = []
    for at, (role, rank) in enumerate(refs):
        node = f"node{at // RANKS_PER_NODE}"
        if at % RANKS_PER_NODE == 0:
            events.append(("agent_up", {"agent": f"agent-{node}", "node": node}))
            usage = [Usage(BEGIN + 2_000_000 * n, 2_000_000, n % 8, 8, 1 << 30, 1 << 34, n << 20) for n in range(50)]
            node_file(run_dir, node).parent.mkdir(exist_ok=True)
            node_file(run_dir, node).write_bytes(b"".join(encode_json(each) + b"\n" for each in usage))
        events.append(("rank_up", {"role": role, "rank": rank, "generation": 0, "pid": 1000 + at, "node": node}))
        rank_folder(run_dir, role, rank).mkdir()
        (rank_folder(run_dir, role, rank) / "000000.jsonl").write_bytes(_record(role, rank, node, steps))
    told = (
        {"seq": n, "epoch": 1, "time": BEGIN / 1e6, "kind": kind, "data": data} for n, (kind, data) in enumerate(events)
    )
    (run_dir / "events.jsonl").write_bytes(b"".join(encode_json(each) + b"\n" for each in told))
    lines = (
        {
            "step": step, "steps": 1, "time": (BEGIN + (step + 1) * STEP_US) / 1e6, "reward": step % 7, "loss": 1.0,
            "operators": {}, "roles": {}, "staleness": {}, "records": {},
        }
        for step in range(steps)
    )  # fmt: skip
    (run_dir / "metrics.jsonl").write_bytes(b"".join(encode_json(each) + b"\n" for each in lines))
    for rank in range(ROW_FILES):
        kept = run_dir / "record" / "rows" / f"rollout-{rank}"
        kept.mkdir(parents=True)
        (kept / "000000.jsonl").write_bytes(
            b"".join(encode_json(_row(number, steps)) + b"\n" for number in range(rank, rows, ROW_FILES))
        )


def _record(role: str, rank: int, node: str, steps: int) -> bytes:
    op, edge = (0, 1) if role == "rollout" else (1, 0)
    lines: list[Head | Stretch | Account] = [Head(role, rank, 0, 1000 + rank, node, BEGIN)]
    for step in range(steps):
        t = BEGIN + step * STEP_US
        lines.append(Stretch("computing", t, 600_000, step, op))
        lines.append(Stretch("waiting", t + 600_000, 400_000, step, op, edge))
        lines.append(Account(t, STEP_US, step, 1, {"computing": 600_000, f"edge {edge}": 400_000}))
    return b"".join(encode(line) + b"\n" for line in lines)


def _row(number: int, steps: int) -> Row:
    columns = {
        "prompt": f"the question {number}: what is {number} + {number}?",
        "completion": f"{'some words ' * 20}a text that one row has: {number}.",
        "completion_ids": list(range(40)), "logprobs": [-0.5] * 40, "reward": number % 5 / 4,
        "group": f"g{number // 8}", "finish_reason": ("stop", "length")[number % 3 == 0],
    }  # fmt: skip
    return Row(number * steps // 50_000 if steps > 50 else number % steps, "rollout.generate", number % 500, columns)


encode_json = msgspec.json.Encoder().encode
