"""The console: what a person sees while a job runs and when it has ended, on a terminal and in a pipe."""

from __future__ import annotations

import io
import math
import re
from pathlib import Path
from typing import Any

import pytest
from docs.generator.events import journalled
from msgspec.structs import replace
from pydantic import ValidationError
from rich.console import Console

from rolemesh.api.observer import AgentStatus, Event, JobStatus, RankStatus, RoleTimes, RunInfo, StepMetrics
from rolemesh_console.console import ConsoleObserver, ConsoleOptions
from rolemesh_console.live_view import live_view
from rolemesh_console.sentences import _QUIET, _SENTENCES, described, sentence
from rolemesh_console.statistics import Statistics

STARTED = 1_000_000.0


class Clock:
    """A clock that stands until it is set."""

    def __init__(self) -> None:
        self.now = STARTED

    def __call__(self) -> float:
        return self.now


def line(step: int, records: dict[str, Any] | None = None, **values: float) -> StepMetrics:
    roles = {"rollout": RoleTimes(3.0, 1.0, 0.0), "trainer": RoleTimes(1.0, 2.0, 1.0)}
    operators = {"rollout.generate": {"generated_tokens": 640.0}}
    time = STARTED + 10.0 + 2.0 * (step + 1)
    staleness = {"trainer.weights → rollout.load_weights": 1.0}
    return StepMetrics(step, 1, time, values, operators, roles, staleness, records or {})


def rank(
    role: str, n: int = 0, state: str = "running", phase: str = "", doing: str = "", node: str = "n0"
) -> RankStatus:
    return RankStatus(role, n, node, 4700 + n, state, 7 if state == "running" else -1, phase, doing)


def status(*ranks: RankStatus, state: str = "running", committed: int = 6, agent: str = "up") -> JobStatus:
    agents = (AgentStatus("agent-0", "n0", 43, agent),)
    return JobStatus("grpo", state, 1, committed, 20, STARTED, 42, "host", agents, ranks)


def info(run_dir: Path | str = "runs/grpo", steps: int = 20) -> RunInfo:
    return RunInfo("grpo", str(run_dir), steps, {"rollout": 1, "trainer": 2}, ("rollout.generate",), "ray")


def planned(failure: str, *reasons: str, **plan: Any) -> Event:
    verdicts = [{"kind": "software", "reason": reason} for reason in reasons]
    plan = {"level": "process", "restart": [["work", 0]]} | plan
    return Event(
        1, 1, 0.0, "recovery_planned", {"number": 1, "plan": plan, "failures": [failure], "verdicts": verdicts}
    )


def result(run_dir: Path | str = "runs/grpo", **more: Any) -> dict[str, Any]:
    known = {"name": "grpo", "job_id": "x", "status": "done", "message": "", "committed_steps": 20, "steps": 20}
    return known | {"wall_s": 134.2, "state_sha256": {}, "plugins": {}, "run_dir": str(run_dir)} | more


def plain(options: ConsoleOptions | None = None) -> tuple[ConsoleObserver, io.StringIO, Clock]:
    out, clock = io.StringIO(), Clock()
    console = Console(file=out, width=100, force_terminal=False)
    return ConsoleObserver(options or ConsoleOptions(), console, clock), out, clock


def seen(stats: Statistics, status: JobStatus | None, now: float = STARTED + 30.0) -> str:
    console = Console(file=io.StringIO(), width=100, record=True, force_terminal=True)
    console.print(live_view(stats, status, now))
    return console.export_text()


# ---------------------------------------------------------------------------------------------------- the live view


def test_the_live_view_shows_progress_metrics_rates_staleness_and_ranks() -> None:
    stats = Statistics(run=info())
    stats.event(Event(1, 1, STARTED + 10.0, "job_running"))
    stats.steps(line(step, reward=0.1 * step, loss=1.0) for step in range(7))
    ranks = (
        rank("rollout", 0, phase="computing", doing="generate"),
        rank("trainer", 0, phase="waiting", doing="reward.score"),
        rank("trainer", 1, phase="blocked", doing="rollout.load_weights"),
    )
    text = seen(stats, status(*ranks), now=STARTED + 24.0)

    assert "grpo · running · ray" in text
    assert "step 7/20" in text
    assert "35 %" in text
    assert "0:26 left" in text
    assert "2.0 s/step" in text
    assert "generated 320" in text
    assert "trainer.weights → rollout.load_weights 1" in text
    reward = next(row for row in text.splitlines() if "reward  " in row)
    assert "0.6" in reward
    assert "0.05 → 0.55" in reward
    assert "▁" in reward
    assert "█" in reward
    rows = {row.split()[1]: row for row in text.splitlines() if len(row.split()) > 1}
    assert "computing generate" in rows["rollout/0"]
    assert "4700" in rows["rollout/0"]
    assert "75/25/0 %" in rows["rollout/0"]
    assert "waiting for reward.score" in rows["trainer/0"]
    assert "25/50/25 %" in rows["trainer/0"]
    assert "blocked by rollout.load_weights" in rows["trainer/1"]


def test_a_terminal_of_80_columns_shows_how_far_each_rank_is() -> None:
    stats = Statistics(run=info())
    stats.steps(line(step, reward=0.1) for step in range(7))
    ranks = rank("agent", 0, phase="computing", doing="converse 25/64"), rank("trainer", 1, phase="waiting")
    console = Console(file=io.StringIO(), width=80, record=True, force_terminal=True)
    console.print(live_view(stats, status(*ranks), STARTED + 24.0, 78))
    text = console.export_text()
    assert "computing converse 25/64 " in text
    assert "25/50/25 %" in text
    assert "4700" not in text


def test_a_metric_that_is_not_logged_at_every_step_says_of_which_step_it_is() -> None:
    stats = Statistics(run=info())
    stats.steps([line(0, reward=0.1, eval_accuracy=0.31), line(1, reward=0.2)])

    assert "0.31 (step 0)" in seen(stats, status())


def test_while_a_job_starts_it_says_who_is_not_ready_and_for_how_long() -> None:
    stats = Statistics(run=info())
    stats.event(Event(1, 1, STARTED + 2.0, "rank_up", {"role": "rollout", "rank": 0}))
    ranks = (rank("rollout", 0, "up"), rank("trainer", 0, "ready"))
    text = seen(stats, status(*ranks, state="starting", committed=-1), now=STARTED + 5.0)

    assert "starting: rollout/0 setting up (3.0 s)" in text
    assert "ready, waiting for the others" in text


def test_before_any_rank_is_up_it_says_how_many_agents_are() -> None:
    ranks = (rank("rollout", 0, "starting"),)
    text = seen(Statistics(run=info()), status(*ranks, state="starting", committed=-1, agent="starting"))

    assert "starting: 0 of 1 agents are up (30 s)" in text


def test_many_ranks_become_a_row_per_role() -> None:
    ranks = [
        rank("rollout", n, phase="computing" if n % 4 else "waiting", doing="generate", node=f"n{n // 8}")
        for n in range(64)
    ]
    text = seen(Statistics(run=info()), status(*ranks, rank("trainer")))

    assert "rollout ×64" in text
    assert "8 nodes" in text
    assert "48× computing generate" in text
    assert len(text.splitlines()) < 12


@pytest.mark.parametrize("now", [STARTED, STARTED - 50.0, STARTED + 1e9])
def test_a_view_without_anything_to_show_is_shown_all_the_same(now: float) -> None:
    assert "starting" in seen(Statistics(), None, now)
    assert "step 0/0" in seen(Statistics(run=info(steps=0)), status(committed=-1), now)


def test_odd_numbers_do_not_break_the_view() -> None:
    stats = Statistics(run=info())
    odd = {"nan": math.nan, "inf": math.inf, "huge": 1e308, "tiny": -1e-300, "markup": 1.0, "[red]x[/]": 2.0}
    stats.steps([line(0, **odd), line(1, **{**odd, "huge": -1e308}), line(2, **odd)])
    text = seen(stats, status(rank("[bold]"), rank("rollout", phase="?", doing="[/]")))

    assert "[red]x[/]" in text
    assert "[bold]/0" in text
    assert "nan" in text


def test_on_a_terminal_the_view_is_redrawn_and_gone_at_the_end_and_the_summary_stays() -> None:
    out = io.StringIO()
    observer = ConsoleObserver(ConsoleOptions(), Console(file=out, width=100, force_terminal=True), Clock())
    observer.job_started(info())
    observer.status(status(rank("rollout")))
    observer.steps_finished((line(0, reward=0.5),))
    drawn = out.getvalue()
    observer.job_ended(result())

    assert "rollout/0" in drawn
    assert out.getvalue().count("\x1b[?25l") == out.getvalue().count("\x1b[?25h") == 1, "the cursor is back"
    assert "grpo done" in out.getvalue().removeprefix(drawn)


# ------------------------------------------------------------------------------------------------------- without one


def test_in_a_pipe_there_is_at_most_a_line_per_second_and_always_the_last() -> None:
    observer, out, clock = plain()
    observer.job_started(info())
    for step in range(20):
        clock.now = STARTED + 100.0 + 0.3 * step
        observer.steps_finished((line(step, reward=0.5),))
    observer.job_ended(result())

    lines = [text for text in out.getvalue().splitlines() if text.startswith("step ")]
    assert [text.split()[1] for text in lines] == ["1/20", "5/20", "9/20", "13/20", "17/20", "20/20"]
    assert "reward 0.5" in lines[0]
    assert "generated_tokens/s 320" in lines[1]


def test_present_warnings_are_shown_and_printed_once_into_a_pipe() -> None:
    full = "metrics and events cannot be written since {} s: [Errno 28] No space left on device"
    wrong = [replace(status(), warnings=(full.format(seconds),)) for seconds in (0, 12)]
    assert f"warning: {full.format(12)}"[:60] in seen(Statistics(run=info()), wrong[1])
    many = replace(status(), warnings=tuple(f"warning {n}" for n in range(6)))
    assert "… and 2 more warnings" in seen(Statistics(run=info()), many)

    observer, out, _ = plain()
    observer.job_started(info())
    for picture in (*wrong, status(), status()):
        observer.status(picture)
    assert out.getvalue().splitlines()[1:] == [f"warning: {full.format(0)}", "what was warned of is over"]


def test_a_warning_that_an_event_has_told_is_told_once_whichever_comes_first() -> None:
    told = {"agent": "node0", "message": "the snapshot of step 1 is not on disk"}
    warned = replace(status(), warnings=("node0: the snapshot of step 1 is not on disk",))
    for event_first in (True, False):
        out = io.StringIO()
        observer = ConsoleObserver(ConsoleOptions(), Console(file=out, width=200))
        steps = [
            lambda o=observer: o.event(Event(1, 1, 0.0, "snapshot_warning", told)),
            lambda o=observer: o.status(warned),
        ]
        for step in steps if event_first else steps[::-1]:
            step()
        observer.status(warned)
        observer.event(Event(2, 1, 0.0, "snapshot_warning_over", told))
        observer.status(status())
        lines = out.getvalue().splitlines()
        assert [line for line in lines if line.startswith("warning")] == [lines[0]]
        assert len(lines) == 2


def test_a_line_of_a_million_characters_is_cut() -> None:
    observer, out, _ = plain()
    observer.job_started(info())
    observer.status(replace(status(), warnings=("x" * 1_000_000,)))
    assert out.getvalue().endswith("xxx …\n")
    assert len(out.getvalue()) < 21_000


def test_in_a_pipe_nothing_is_coloured_or_moved() -> None:
    observer, out, _ = plain()
    observer.job_started(info())
    observer.steps_finished((line(0, reward=0.5),))
    observer.job_ended(result())

    assert "\x1b" not in out.getvalue()


def test_in_a_pipe_failures_and_slow_starts_are_said() -> None:
    observer, out, clock = plain()
    observer.job_started(info())
    clock.now += 6.0
    observer.status(status(rank("rollout", 0, "up"), state="starting", committed=-1))
    failed = {"failure": {"cause": "exception", "role": "rollout", "rank": 0, "message": "ValueError: bad"}}
    observer.event(Event(9, 1, clock.now, "failure", failed))

    assert "starting: rollout/0 setting up (6.0 s)" in out.getvalue()
    assert "failure: role rollout, rank 0: ValueError: bad" in out.getvalue()


@pytest.mark.parametrize(
    ("failure", "reasons", "plan", "told"),
    [
        ("work/0: CUDA error", ("a kernel crashed",), {}, "restarting work/0 (a kernel crashed)"),
        ("work/0: CUDA error", ("a kernel crashed", "a kernel crashed"), {}, "restarting work/0 (a kernel crashed)"),
        ("work/0: killed", ("killed", "its node is lost"), {}, "restarting work/0 (its node is lost)"),
        ("work/0: Out of memory", ("out of memory",), {}, "restarting work/0\n"),
        ("work/0: killed", (), {}, "restarting work/0\n"),
        (
            "work/0: killed",
            ("out of memory",),
            {"resources": {"work": {"memory_gb": 2}}, "reason": "memory_gb 2 instead of 1"},
            "restarting work/0 (out of memory; memory_gb 2 instead of 1)",
        ),
    ],
)
def test_a_recovery_shows_the_verdict_unless_the_failure_shows_it(
    failure: str, reasons: tuple[str, ...], plan: dict[str, Any], told: str
) -> None:
    observer, out, _ = plain()
    observer.event(planned(failure, *reasons, **plan))
    assert f"recovery 1 by level process: {told}" in out.getvalue().replace("\n", " ").strip() + "\n"


def test_a_return_to_disk_names_the_calls_that_may_be_made_twice() -> None:
    data = {"step": 3, "folder": "", "lost_steps": 2, "timeline": 1}
    said = "the whole job goes on after step 3; up to 2 steps are run again"
    assert sentence(Event(1, 1, 0.0, "rolled_back", data)) == said
    again = f"{said}; calls that must not be repeated may be made again: mail.send, bank.pay"
    assert sentence(Event(1, 1, 0.0, "rolled_back", {**data, "calls": ["mail.send", "bank.pay"]})) == again
    moved = {"moves": [{"role": "agent", "rank": 1}], "calls": ["mail.send"]}
    assert sentence(Event(1, 1, 0.0, "replanned", {**moved, "calls": []})) is None
    assert (sentence(Event(1, 1, 0.0, "replanned", moved)) or "").startswith("agent/1 start in other places; calls")


def test_each_kind_of_event_has_a_sentence() -> None:
    assert _SENTENCES.keys() | _QUIET.keys() == journalled().keys()


@pytest.mark.parametrize(
    ("kind", "data", "said"),
    [
        ("persisted", {"step": 7}, "the checkpoint after step 7 is on disk"),
        ("rank_ready", {"role": "a", "rank": 1, "setup_s": 0.25}, "a/1 is ready; its setup took 0.25 s"),
        ("job_started", {"agents": ["node0"], "ranks": 3}, "the job starts, with 3 ranks and 1 agent"),
        (
            "recovery_launched",
            {"number": 2, "ranks": [{"role": "a", "rank": 1, "resume": 204}]},
            "recovery 2 starts a/1 from step 205",
        ),
    ],
)
def test_an_event_that_can_wait_has_a_sentence_for_a_reader_of_all_events(
    kind: str, data: dict[str, Any], said: str
) -> None:
    event = Event(1, 1, 0.0, kind, data)
    assert (sentence(event), described(event)) == (None, said)
    assert described(Event(1, 1, 0.0, kind, {})) is None, "data of another version"


def test_an_event_of_an_engine_that_is_not_known_here_has_no_sentence() -> None:
    assert sentence(Event(1, 1, 0.0, "tea_is_ready", {"cups": 2})) is None


# -------------------------------------------------------------------------------------------------------- the summary


def summary_of(lines: list[StepMetrics], options: ConsoleOptions | None = None, **more: Any) -> str:
    observer, out, _ = plain(options)
    observer.job_started(info(more.get("run_dir", "runs/grpo")))
    observer.event(Event(1, 1, STARTED + 10.0, "job_running"))
    observer.steps_finished(tuple(lines))
    observer.job_ended(result(**more))
    return out.getvalue().partition("─" * 20)[2]


def test_the_summary_has_thirds_first_and_last_values_times_and_rates() -> None:
    lines = [line(step, reward=step / 10) for step in range(9)]
    lines[0].values["eval_accuracy"] = 0.31
    lines[8].values["eval_accuracy"] = 0.83
    text = summary_of(lines)

    assert "✔ grpo done · 20 of 20 steps · 2:14" in text
    rows = {row.split()[0]: row.split()[1:] for row in text.splitlines() if row.split()}
    assert rows["reward"] == ["0", "0.8", "0.1", "0.7"]
    assert rows["eval_accuracy"] == ["0.31", "0.83"]
    assert rows["rollout"] == ["75", "%", "25", "%", "0", "%", "0", "%"]
    assert rows["generated_tokens"] == ["320/s", "(5760)"]


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf])
def test_the_summary_says_which_metric_has_become_nan_or_infinite(odd: float) -> None:
    text = summary_of([line(step, reward=step / 10 if step < 6 else odd) for step in range(9)])
    assert re.search(rf"reward +0 +{odd} ", text)
    assert "! reward was NaN or infinite in 3 steps, first in step 6; no mean has them" in text


def test_records_are_shown_before_and_after_with_common_parts_once() -> None:
    before = [{"question": f"reverse [{n}]", "answer": "wrong", "reward": 0.0} for n in range(10)]
    after = [row | {"answer": "right", "reward": 1.0} for row in before]
    lines = [line(0, {"answers": before}), line(1), line(2, {"answers": after})]
    text = summary_of(lines, ConsoleOptions(records=["answers"]))

    assert "answers  before (step 0) and after (step 2)" in text
    header = next(row for row in text.splitlines() if "question" in row)
    assert header.split("  ")[0].strip() == "question"
    assert header.count("question") == 1
    assert "answer before" in header
    assert "reward after" in header
    first = next(row for row in text.splitlines() if "reverse [0]" in row)
    assert first.split() == ["reverse", "[0]", "wrong", "right", "0", "1"]
    assert "and 2 more in metrics.jsonl" in text


@pytest.mark.parametrize("values", [("one", "two"), ([1], [1, 2]), ([], []), (None, {"a": 1}), ([{"a": 1}], [])])
def test_records_of_any_shape_are_shown(values: tuple[Any, Any]) -> None:
    lines = [line(0, {"it": values[0]}), line(1, {"it": values[1]})]
    text = summary_of(lines, ConsoleOptions(records=["it", "missing"]))

    assert f"before: {values[0] if values[0] is not None else ''}".rstrip() in text


def test_an_interrupted_job_says_by_what() -> None:
    text = summary_of([line(0)], status="interrupted", message="interrupted by Ctrl-C", committed_steps=1)

    assert "■ grpo interrupted · 1 of 20 steps" in text
    assert "interrupted by Ctrl-C" in text


def test_the_summary_says_where_the_files_are_and_the_states_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs").mkdir()
    for name in ("reward.png", "metrics.jsonl"):
        (tmp_path / name).write_bytes(b"")
    text = summary_of([], run_dir=str(tmp_path), state_sha256={"trainer": "0123456789abcdef", "data": None})

    assert "reward.png · metrics.jsonl · result.json · logs/" in text
    assert "state sha256  trainer 0123456789ab" in text


def test_an_empty_result_is_a_summary_too() -> None:
    observer, out, _ = plain()
    observer.job_ended({})

    assert "job ended" in out.getvalue()


def test_featured_metrics_are_those_of_the_options() -> None:
    text = summary_of([line(0, reward=1.0, loss=2.0, kl=3.0)], ConsoleOptions(metrics=["kl", "reward"]))

    assert [row.split()[0] for row in text.splitlines() if row[:2] in ("kl", "re", "lo")] == ["kl", "reward"]


@pytest.mark.parametrize("options", [{"metric": ["reward"]}, {"refresh_hz": 0}, {"metrics": "reward"}])
def test_wrong_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        ConsoleOptions.model_validate(options)
