"""The report of a real job, of damaged and hostile files, and what it leaves out."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rolemesh import Job, flow
from rolemesh.api.observer import Event
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE, RESULT_FILE
from rolemesh_facts.recoveries import Story
from rolemesh_facts.run import Summary
from rolemesh_recorder.lines import FLOW_FILE, RECORD_DIR, Account, FlowEdge, FlowFile, FlowOp, Stretch, encode
from rolemesh_report.flow_picture import flow_picture
from rolemesh_report.secrets import without_secrets
from rolemesh_report.sections import CURVES, failures_section, metrics_section
from rolemesh_report.writing import write_report

ROLES = """
from rolemesh import Batch, Split, Workload, operator

class Counter(Workload):
    @operator(returns=Split())
    def count(self):
        return Batch({"number": [1.0, 2.0]})

class User(Workload):
    def setup(self, ctx):
        self.ctx = ctx

    @operator(batch=Split())
    def use(self, batch):
        self.ctx.metric(loss=float(sum(batch["number"])))
"""
FLOW = "from rolemesh import flow\n\n@flow\ndef f(job):\n    job.user.use(job.counter.count())\n"
JOB = """
name: seen
flow: flow.py:f
steps: 5
roles:
  counter: {use: "roles:Counter", runtime_env: {env_vars: {SOME_NAME: hidden-value}}}
  user: {use: "roles:User"}
"""
TITLES = ["Summary", "Advice", "Flow", "Where the time went", "Critical path", "Lanes", "Cost"]
TITLES += ["Metrics", "Failures and recoveries", "Placement", "Versions", "Job file"]


def rolemesh(folder: Path, *arguments: str) -> str:
    command = [Path(sys.executable).with_name("rolemesh"), *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("job")
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (folder / name).write_text(text)
    assert "\nreport: runs/seen/report.html\n" in rolemesh(folder, "run", "job.yaml", "--backend", "local")
    return folder / "runs" / "seen"


def test_a_run_ends_with_a_report_that_needs_nothing_else(run: Path) -> None:
    text = (run / "report.html").read_text()
    assert re.findall("<h2>(.*?)</h2>", text) == TITLES
    assert not re.search(r"<script|<link|<img|<iframe|https?://|url\((?!#)|@import|\bon\w+=", text)
    assert "counter.count" in text
    assert "hidden-value" not in text


def test_no_report_leaves_it_out(run: Path) -> None:
    said = rolemesh(run.parent.parent, "run", "job.yaml", "name=unseen", "--engine", "inline", "--no-report")
    assert "report" not in said
    assert (run.parent / "unseen" / RESULT_FILE).exists()
    assert not (run.parent / "unseen" / "report.html").exists()


def test_a_refused_run_writes_no_report_into_the_folder_of_another(run: Path) -> None:
    foreign = run.parent / "foreign"
    foreign.mkdir()
    command = [Path(sys.executable).with_name("rolemesh"), "run", "job.yaml", "name=foreign", "--backend", "local"]
    done = subprocess.run(command, cwd=run.parent.parent, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "exists and was not made by rolemesh, so it stays as it is" in done.stderr
    assert "report" not in done.stdout + done.stderr
    assert not list(foreign.iterdir())


@flow
def one_call(job: Any) -> None:
    job.a.getuser()


def test_a_job_that_is_run_from_python_has_a_report_unless_it_is_switched_off(tmp_path: Path) -> None:
    for name, options in (("seen", {}), ("unseen", {"no_report": True})):
        job = Job(name, steps=1, observers=[]).role("a", use="function", options={"target": "getpass:getuser"})
        job.flow(one_call).run(engine="inline", runs_dir=tmp_path, **options)
    assert [path.parent.name for path in tmp_path.glob("*/report.html")] == ["seen"]


def test_hostile_and_damaged_files_are_text_or_left_out(run: Path, tmp_path: Path) -> None:
    copy = shutil.copytree(run, tmp_path / "copy")
    failure = {"role": "<script>", "rank": 0, "message": "<script>alert(1)</script>\x00\x1b[2J" + "x" * 10_000_000}
    event = Event(1, 0, 1e300, "failure", {"failure": failure})
    (copy / EVENTS_FILE).write_bytes(msgspec.json.encode(event) + b"\n\xff\xfe\n{")
    (copy / METRICS_FILE).write_bytes(b'{"step": "no"}\n\xff')
    (copy / RESULT_FILE).write_bytes(
        b'{"status": [], "plugins": 3, "goodput": {"share": "x", "lost_s": 4}, "recoveries": 1}'
    )
    (copy / "plan.json").write_bytes(b'{"ranks": [1, {"role": "</table>"}]}')
    (copy / "job.yaml").write_bytes(b"a: [\x00")
    record = next((copy / RECORD_DIR).glob("user-0/*.jsonl"))
    record.write_bytes(record.read_bytes() + encode(Stretch("waiting", 1, 10**18, 1, 99, 99)) + b"\n{\xff")
    flow = FlowFile("f", (FlowOp(0, "user", "<i>"),), (FlowEdge(0, 0, 0, "<b>", "split"),), {}, {})
    (copy / RECORD_DIR / FLOW_FILE).write_bytes(encode(flow))
    write_report(copy, copy / "report.html")
    text = (copy / "report.html").read_text()
    (copy / RECORD_DIR / FLOW_FILE).write_bytes(encode(FlowFile("f", (), flow.edges, {}, {})))
    write_report(copy, tmp_path / "no-flow.html")
    assert "<h2>Flow" not in (tmp_path / "no-flow.html").read_text()
    assert len(text) < 300_000
    assert not re.search(r"<script|<b>&|<i>|\x00|\x1b|</table></td>", text)
    assert "&lt;script&gt;alert(1)" in text
    assert "more characters" in text


def test_the_picture_of_a_flow_has_room_for_edges_that_go_back() -> None:
    ops = tuple(FlowOp(at, "r", f"r.{at}") for at in range(3))
    edges = (FlowEdge(0, 0, 1, "x", "s"), FlowEdge(1, 1, 2, "y", "s"), FlowEdge(2, 2, 0, "z", "s", "1"))
    picture = flow_picture(FlowFile("f", ops, edges, {"r": 1}, {}), {("op", 1): 0.9}, {})
    assert re.findall(r'<rect x="(\d+)"', picture) == ["30", "370", "710"]
    assert "z · lag 1" in picture
    assert "90% of the critical path" in picture


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("roles: {a: {runtime_env: {env_vars: {X: abc}}}}", "abc"),
        ("plugins: {x: [{options: {api_key: abc}}]}", "abc"),
        ("engine: {options: {state: 'postgresql://me:abc@host/db'}}", "abc"),
        ("params: {note: 'hf_ABCDEFGHIJKLMNOPQRSTUVWX'}", "ABCDEFGH"),
    ],
)
def test_the_job_file_is_shown_without_secrets(text: str, secret: str) -> None:
    shown = without_secrets(text)
    assert "(left out)" in shown
    assert secret not in shown


def test_a_limit_of_tokens_is_no_secret() -> None:
    assert "max_tokens: 64" in without_secrets("options: {max_tokens: 64}")


def test_a_lane_has_the_shares_that_its_record_has_also_with_many_short_pieces(tmp_path: Path) -> None:
    """A rank spends 86% of 20 s in calls of 1.72 ms, and waits 7 ms now and then."""
    folder, at, lines = tmp_path / RECORD_DIR / "agent-0", 1_790_000_000_000_000, [b'{"k":"head"}']
    for step in range(400):
        begin = at
        for _ in range(25):
            lines.append(encode(Stretch("calling", at, 1720, step, 0, -2)))
            at += 1720
        lines.append(encode(Stretch("waiting", at, 7000, step, 0, 0)))
        at = begin + 50_000
        lines.append(encode(Account(begin, 50_000, step, 1, {"calling": 43_000, "edge 0": 7000})))
    folder.mkdir(parents=True)
    (folder / "000000.jsonl").write_bytes(b"\n".join(lines) + b"\n")
    write_report(tmp_path, tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text()
    lane = text.partition("<h2>Lanes</h2>")[2].partition("</svg>")[0]
    drawn = re.findall(r'<rect [^>]*width="([\d.]+)" height="17" class="fill-(\w+)">', lane)
    total = sum(float(width) for width, _ in drawn)
    assert total == pytest.approx(950, rel=0.01), "the whole width of a lane"
    calls = sum(float(width) for width, phase in drawn if phase == "calling")
    assert calls / total == pytest.approx(0.86, abs=0.01)
    assert len(drawn) <= 500


def test_the_most_important_metrics_come_first_and_many_others_are_left_out() -> None:
    found = {f"a{at}_s": ([0], [1.0]) for at in range(CURVES + 3)} | {"reward": ([0], [0.5])}
    text = metrics_section(found)
    assert re.findall("<b>(.*?)</b>", text)[0] == "reward"
    assert text.count("<figure") == CURVES
    assert "4 more metrics are not shown" in text


def test_a_recovery_that_another_one_replaced_says_so() -> None:
    found = [Story(number, 1.0, ({"role": "a", "rank": 0},), "process") for number in (1, 2)]
    said = failures_section(found, Summary("a", "failed", 1, None, 0.0, 0.0, "", {}, None))
    assert re.findall("<td>caught up after</td><td>(.*?)</td>", said) == ["replaced by recovery 2", "not caught up"]
