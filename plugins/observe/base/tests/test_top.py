"""The screen, its keys and one printed frame, of a run whose files are written here."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import ExitStack
from io import StringIO
from pathlib import Path

import msgspec
import pytest
from rich.console import Console
from textual.widgets import DataTable
from typer import Typer
from typer.testing import CliRunner

from rolemesh.api.observer import Event, RunInfo
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE, RESULT_FILE, RUN_FILE
from rolemesh_recorder.lines import FLOW_FILE, RECORD_DIR, Account, FlowEdge, FlowFile, FlowOp, Head, Stretch, encode
from rolemesh_runtime.waiting import WaitingJob
from rolemesh_top import TopVerb, frame
from rolemesh_top.app import TopApp
from rolemesh_top.frame import Frame, FrameSource, RankLine
from rolemesh_top.text import RANK_HEADS, fitted_ranks, printed

T = 1_795_000_000_000_000
FLOW = FlowFile(
    "small", (FlowOp(0, "maker", "maker.make"), FlowOp(1, "user", "user.use")),
    (FlowEdge(0, 0, 1, "batch", "split"),), {"maker": 2, "user": 1}, {},
)  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> Path:
    folder = tmp_path / "small"
    for role, rank, spent in (
        ("maker", 0, {"computing": 900}),
        ("maker", 1, {"computing": 500}),
        ("user", 0, {"computing": 100, "edge 0": 800}),
    ):
        place = folder / RECORD_DIR / f"{role}-{rank}"
        place.mkdir(parents=True)
        op = 0 if role == "maker" else 1
        lines = [
            Head(role, rank, 0, 4711 + rank, "node-a", T),
            Stretch("computing", T, spent["computing"] * 1000, 3, op),
            Account(T, 1_000_000, 3, 4, {name: ms * 1000 for name, ms in spent.items()}),
        ]
        (place / "000000.jsonl").write_bytes(b"".join(encode(line) + b"\n" for line in lines))
    (folder / RECORD_DIR / FLOW_FILE).write_bytes(encode(FLOW))
    info = RunInfo("small", str(folder), 4, {"maker": 2, "user": 1}, ("maker.make", "user.use"))
    (folder / RUN_FILE).write_bytes(msgspec.json.encode(info))
    hostile = Event(1, 0, T / 1e6, "hang", {"text": "\x1b[2Jgone", "stacks": ""})
    (folder / EVENTS_FILE).write_bytes(msgspec.json.encode(hostile) + b"\n{damaged\n")
    (folder / RESULT_FILE).write_text('{"status": "failed", "message": "no", "committed_steps": 4, "wall_s": 1.0}')
    return folder


def test_the_keys_sort_and_filter_the_ranks_and_quit(run: Path) -> None:
    async def use() -> None:
        app = TopApp(FrameSource(run), 60.0, 3600.0)
        async with app.run_test(size=(160, 48)) as pilot:
            await app.workers.wait_for_complete()
            await pilot.pause()
            table = app.query_one("#ranks", DataTable)

            def ranks() -> list[str]:
                return [str(table.get_row_at(at)[0]) for at in range(table.row_count)]

            assert ranks() == ["maker/0", "maker/1", "user/0"]
            await pilot.press("s", "s", "s", "s", "r")
            assert ranks() == ["user/0", "maker/1", "maker/0"], "by the share of computing, the smallest first"
            await pilot.press("f", *"maker/1")
            await pilot.pause()
            assert ranks() == ["maker/1"]
            await pilot.press("escape")
            await pilot.pause()
            assert len(ranks()) == 3
            await pilot.press("question_mark", "w", "p", "q")
        assert app.return_code == 0

    asyncio.run(use())


@pytest.mark.parametrize(
    ("width", "bars", "out"),
    [
        (140, True, set()),
        (100, False, set()),
        (92, False, {"node"}),
        (80, False, {"node", "pid", "rest"}),
        (70, False, {"node", "pid", "rest", "phase"}),
    ],
)
def test_a_narrow_terminal_gets_one_line_per_rank_with_what_matters_most(width: int, bars: bool, out: set[str]) -> None:
    lines = [
        RankLine(
            f"rollout/{n}", "node-a", 4711, "running", 12345, "rollout.generate", 0.5, 0.4, 0.1, "40% waits for it", 1
        )
        for n in (0, 10)
    ]
    found = fitted_ranks(lines, width)
    heads = [RANK_HEADS[at] for at in found.columns]
    wide = [max(len(head), *(row[at].cell_len for row in found.rows)) for at, head in enumerate(heads)]
    assert sum(wide) + 2 * (len(heads) - 1) <= width
    assert set(RANK_HEADS) - set(heads) == out
    assert any("█" in cell.plain for cell in found.rows[0]) == bars
    assert [row[0].plain for row in found.rows] == ["rollout/0", "rollout/10"]
    long = [msgspec.structs.replace(line, most="x" * 500, phase="y" * 500) for line in lines]
    shown = Frame("small", "running", 1, 2, 1.0, None, "", 60.0, tuple(long))
    console = Console(width=width, file=StringIO())
    console.print(printed(shown, width))
    assert console.file.getvalue().count("\n") == 5, "header, heads and ranks have one line each"  # type: ignore[attr-defined]


def test_a_rank_of_an_ended_job_waits_for_nothing_after_its_last_step(run: Path) -> None:
    (run / RESULT_FILE).write_text('{"status": "done", "committed_steps": 4, "wall_s": 1.0}')
    ends = [
        Stretch("idle", T + 1_000_000, 2_000_000, 3),
        Account(T + 1_000_000, 500_000, 3, 0, {"idle": 500_000}),
        Stretch("computing", T + 2_000_000, 1000, 3, 1),
    ]
    for role, lines in (("maker", ends[:2]), ("user", ends[2:])):
        with (run / RECORD_DIR / f"{role}-0" / "000000.jsonl").open("ab") as file:
            file.writelines(encode(line) + b"\n" for line in lines)
    ranks = FrameSource(run).frame(60.0).ranks
    assert (ranks[0].phase, ranks[0].most) == ("all steps done", "33% all steps done")
    assert "grant" not in json.dumps(msgspec.to_builtins(ranks))


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ({"state": "starting"}, "starts"),
        ({"state": "up"}, "runs setup"),
        ({"state": "ready"}, "waits for the other ranks"),
        ({"state": "running", "phase": "loading", "doing": "use"}, "loading, or making room"),
    ],
)
@pytest.mark.parametrize("role", ["user", "unrecorded"])
def test_a_rank_that_starts_or_loads_says_so(
    run: Path, monkeypatch: pytest.MonkeyPatch, role: str, known: dict[str, str], said: str
) -> None:
    status = frame.job_status(run) | {"state": "running", "ranks": [{"role": role, "rank": 0, **known}]}
    monkeypatch.setattr(frame, "job_status", lambda _: status)
    assert {line.rank: line.phase for line in FrameSource(run).frame(60.0).ranks}[f"{role}/0"] == said


def test_a_frame_begins_with_the_metrics_that_matter_the_speed_and_the_time_left(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest: dict[str, object] = {"operators": {}, "roles": {}, "staleness": {}, "records": {}}
    lines = [
        {"step": at, "steps": 1, "time": T / 1e6 + 4 * at, "load_s": 1.0, "reward": at / 4, **rest} for at in range(3)
    ]
    (run / METRICS_FILE).write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines))
    (run / RESULT_FILE).unlink()
    agents = [{"role": "agent", "rank": n, "phase": "calling", "doing": f"converse {n}/32"} for n in (7, 16)]
    status = frame.job_status(run) | {"state": "running", "ranks": agents}
    monkeypatch.setattr(frame, "job_status", lambda _: status)
    monkeypatch.setattr(time, "time", lambda: T / 1e6 + 11)
    found = FrameSource(run).frame(60.0)
    assert [(each.name, each.value, each.trend) for each in found.metrics] == [
        ("reward", 0.5, "rises"),
        ("load_s", 1.0, "stays"),
    ]
    assert (found.step_s, found.left_s) == (4.0, 1.0), "the last of four steps began three seconds ago"
    console = Console(width=120, file=StringIO())
    console.print(printed(found, 120))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "4.0 s/step  0:01 left" in shown
    assert "in this step  agent.converse: 23 of 64" in shown
    assert [line.split() for line in shown.splitlines()[4:6]] == [
        ["reward", "0.5", "rises", "▁▅█"],
        ["load_s", "1", "stays", "▄▄▄"],
    ]


def test_one_frame_as_text_and_as_json(run: Path) -> None:
    app = Typer()
    app.command()(TopVerb.function())
    shown = CliRunner().invoke(app, [str(run), "--once"], env={"COLUMNS": "200"}).output
    for text in (
        "small",
        "failed",
        "maker/1",
        "80% waits for batch of maker.make",
        "maker.make → user.use",
        "critical path",
    ):
        assert text in shown
    assert "\x1b[2J" not in shown
    found = json.loads(CliRunner().invoke(app, [str(run), "--json"]).output)
    assert [(line["rank"], line["pid"], round(line["waiting"], 2)) for line in found["ranks"]] == [
        ("maker/0", 4711, 0.0), ("maker/1", 4712, 0.0), ("user/0", 4711, 0.8),
    ]  # fmt: skip
    assert found["path"][0]["name"] == "maker.make"


def test_jobs_that_wait_for_room_beside_the_run_are_below_its_state(run: Path) -> None:
    with ExitStack() as stack:
        for number in range(5):
            job = stack.enter_context(WaitingJob(run.parent / f"job-{number}", lambda _: None))
            job.say("job small has cpu 3")
        console = Console(width=120, file=StringIO())
        console.print(printed(FrameSource(run).frame(60.0), 120))
    lines = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    at = next(number for number, line in enumerate(lines) if line.startswith("job-0 waits for room (pid "))
    assert lines[at].endswith(": job small has cpu 3")
    assert [line.partition(" waits")[0] for line in lines[at : at + 3]] == ["job-0", "job-1", "job-2"]
    assert lines[at + 3] == "2 more jobs wait for room"
    assert FrameSource(run).frame(60.0).waiting == ()


def test_an_event_of_several_lines_has_its_first_reason() -> None:
    trail = ["role user, rank 0: RuntimeError: no label", "  process: it would fail again"]
    [said] = frame._news([Event(1, 1, 0.0, "ladder_exhausted", {"trail": trail[:1]})])
    assert said == "00:00:00Z  the job gives up: role user, rank 0: RuntimeError: no label"
    assert frame._news([Event(1, 1, 0.0, "ladder_exhausted", {"trail": trail})])[0].endswith("no label")
