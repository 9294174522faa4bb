"""`rolemesh status`, `events`, `logs`, `stop` and `attach`, against a master's outside."""

from __future__ import annotations

import gc
import json
import os
import shutil
import signal
import socket
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest

from rolemesh.api.failures import Failure
from rolemesh.api.observer import Event
from rolemesh.cli import main
from rolemesh.runs.jsonl import event_line
from rolemesh.runs.run import write_job_file
from rolemesh_durable.control.claim import claim
from rolemesh_durable.control.client import StopJob, Watch
from rolemesh_durable.runs import Run, UnknownRunError
from rolemesh_jobs import job_status, job_statuses
from rolemesh_jobs.logs import BLOCK, Tail
from rolemesh_runtime.waiting import WaitingJob


@pytest.fixture(autouse=True)
def _wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")


# -------------------------------------------------------------------------------------------------------------- status


def test_status_lists_all_runs_running_ended_and_dead(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    start_master("alive").step(reward=0.5)
    start_master("finished").end()
    start_master("broken").end("failed", 1, "role trainer, rank 0: killed\nmore")
    start_master("lost").die()

    assert main(["status"]) == 0

    rows = {row.split()[0]: row for row in capsys.readouterr().out.splitlines()}
    assert rows["alive"].split()[1:3] == ["running", "1/10"]
    assert rows["finished"].split()[1:3] == ["done", "0/10"]
    assert rows["broken"].split()[1:3] == ["failed", "0/10"]
    assert "role trainer, rank 0: killed" in rows["broken"]
    assert rows["lost"].split()[1:3] == ["dead", "?/10"]
    assert "does not answer" in rows["lost"]


def test_status_of_a_job_shows_master_agents_and_ranks(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    start_master().step(reward=0.5)

    assert main(["status", "grpo"]) == 0

    rows = {row.split()[0]: row.split()[1:] for row in capsys.readouterr().out.splitlines()}
    assert rows["master"] == ["host-a", "4242", "up", "local"]
    assert rows["agent-0"] == ["node-a", "4300", "up"]
    assert rows["data/0"] == ["node-a", "4301", "running", "1", "waiting", "for", "trainer.train"]
    assert rows["trainer/0"] == ["node-a", "4302", "running", "1", "computing", "train"]


def test_status_of_a_job_shows_its_speed_and_the_time_left(
    start_master: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    master, now = start_master(), time.time() + 1000
    for second in (0, 4, 8):
        with monkeypatch.context() as changed:
            changed.setattr(time, "time", lambda second=second: now + second)
            master.step(reward=0.5)
    assert main(["status", "grpo"]) == 0
    assert "  4.0 s/step  0:28 left" in capsys.readouterr().out.partition("\n")[0]
    with (master.run_dir / "events.jsonl").open("ab") as events:
        events.write(event_line(Event(10**6, 1, now + 9, "resized", {"sizes": {"a": 2}}))[1])
    for second in (10, 11):
        with monkeypatch.context() as changed:
            changed.setattr(time, "time", lambda second=second: now + second)
            master.step(reward=0.5)
    assert main(["status", "grpo"]) == 0
    assert "  1.0 s/step  0:05 left" in capsys.readouterr().out.partition("\n")[0], "at the speed since the resize"


def test_status_as_json_has_the_same_keys_alive_and_ended(
    start_master: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    master = start_master()
    master.step(reward=0.5)
    assert main(["status", "grpo", "--json"]) == 0
    alive = json.loads(capsys.readouterr().out)
    master.end("failed", 1, "why")
    assert main(["status", "--json"]) == 0
    (ended,) = json.loads(capsys.readouterr().out)
    assert json.loads(json.dumps(job_status("grpo"))) == ended == job_statuses()[0] == job_status(ended["run_dir"])
    with pytest.raises(UnknownRunError, match="there is no run of a job 'grop'"):
        job_status("grop")

    assert (alive["state"], alive["committed_steps"], alive["steps"]) == ("running", 1, 10)
    assert alive["master"] == {"pid": 4242, "node": "host-a", "epoch": 1}
    assert [f"{rank['role']}/{rank['rank']}" for rank in alive["ranks"]] == ["data/0", "trainer/0"]
    assert (ended["state"], ended["committed_steps"], ended["wall_s"], ended["message"]) == ("failed", 1, 1.5, "why")
    assert (ended["master"], ended["agents"], ended["ranks"]) == (None, [], [])
    assert alive.keys() <= ended.keys()


def test_a_verb_about_a_job_that_waits_for_room_says_what_it_waits_for(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with WaitingJob(runs / "second", lambda _: None) as waiting:
        waiting.say("job first has cpu 3")
        for verb in ("logs", "events", "attach", "stop", "top", "view"):
            assert main([verb, "second"]) != 0
            told = " ".join(capsys.readouterr().err.split())
            assert f"second has not begun: it waits for room (pid {os.getpid()} on {os.uname().nodename})" in told, verb
            assert ": job first has cpu 3" in told
            assert f"kill {os.getpid()} on" in told
        assert main(["top"]) != 0
        assert "job first has cpu 3" in " ".join(capsys.readouterr().err.split())


def test_without_runs_status_says_so(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status"]) == 0
    assert "no runs in" in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["status", "events", "logs", "stop", "attach"])
def test_an_unknown_job_is_exit_code_2_with_the_runs_that_there_are(
    start_master: Any, capsys: pytest.CaptureFixture[str], verb: str
) -> None:
    start_master("grpo").end()
    start_master("hello").end()

    assert main([verb, "grop"]) == 2
    assert "did you mean 'grpo'?" in capsys.readouterr().err
    assert main([verb, "xyz"]) == 2
    assert "known: grpo, hello" in capsys.readouterr().err


def test_a_run_can_be_named_by_its_folder(
    start_master: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    master = start_master()
    master.end()
    monkeypatch.delenv("ROLEMESH_RUNS")

    assert main(["status", str(master.run_dir)]) == 0
    assert "grpo  done" in capsys.readouterr().out


# -------------------------------------------------------------------------------------------------------------- events


def test_events_are_read_from_the_journal_after_the_job(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    master = start_master()
    master.journal("job_started", name="grpo")
    failed = Failure("exception", "trainer", 1, message="bad", traceback="Traceback:\n  line 1\nE: bad\n")
    master.journal("failure", failure=msgspec.to_builtins(failed))
    master.journal("noise", amount=3, text="one\ntwo\n")
    master.end("failed", 1)

    assert main(["events", "grpo"]) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[0] == "1"
    assert lines[0].split()[2:] == ["job_started", "name=grpo"]
    assert lines[1].split()[2:] == ["failure", "role", "trainer,", "rank", "1:", "bad"]
    assert lines[2:5] == ["        Traceback:", "          line 1", "        E: bad"]
    assert lines[5].split()[2:] == ["noise", "amount=3"]
    assert lines[6:8] == ["        one", "        two"]
    assert "job_ended" in lines[8]


def test_events_as_json_are_one_a_line_and_can_be_chosen_by_kind(
    start_master: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    master = start_master()
    for step in range(3):
        master.journal("committed", step=step)
        master.journal("noise")
    master.end()

    assert main(["events", "grpo", "--json", "--kind", "committed", "-k", "job_ended"]) == 0

    events = [json.loads(text) for text in capsys.readouterr().out.splitlines()]
    assert [(event["seq"], event["kind"]) for event in events] == [
        (1, "committed"),
        (3, "committed"),
        (5, "committed"),
        (7, "job_ended"),
    ]


def test_events_are_followed_until_the_job_ends(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    master = start_master()
    master.journal("job_started")
    later = threading.Timer(0.3, lambda: (master.journal("job_running"), master.end()))
    later.start()

    assert main(["events", "grpo", "-f", "--json"]) == 0
    later.join()

    kinds = [json.loads(text)["kind"] for text in capsys.readouterr().out.splitlines()]
    assert kinds == ["job_started", "job_running", "job_ended"]


def forget_the_end(master: Any) -> None:
    """Take the last event from events.jsonl, so that a reader needs the journal."""
    file = master.run_dir / "events.jsonl"
    file.write_bytes(b"".join(file.read_bytes().splitlines(keepends=True)[:-1]))


def test_the_journals_url_may_come_from_the_environment(
    start_master: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    master = start_master()
    master.journal("job_started")
    master.end()
    forget_the_end(master)
    (master.run_dir / "job.yaml").write_text(
        "name: grpo\nengine: {options: {state: ${JOURNAL}}}\nseed: ${NOT_SET_AND_NOT_ASKED_FOR}\n"
    )

    assert main(["events", "grpo"]) == 2
    assert "JOURNAL is not set" in capsys.readouterr().err
    monkeypatch.setenv("JOURNAL", "sqlite:///state.sqlite")
    assert main(["events", "grpo"]) == 0
    assert "job_started" in capsys.readouterr().out


@pytest.mark.parametrize("url", ["postgresql+psycopg://u:${SECRET}@{host}/d", "postgresql+psycopg://u@{host}/d"])
@pytest.mark.parametrize(
    ("owner", "folder", "file", "why"),
    [
        (65534, 0o755, 0o644, "user 65534 owns the run"),
        (None, 0o777, 0o644, "other users may write there (mode 777)"),
        (None, 0o755, 0o664, "other users may write there (mode 664)"),
    ],
)
def test_a_job_file_that_others_may_have_written_opens_no_database(
    start_master: Any,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    url: str,
    owner: int | None,
    folder: int,
    file: int,
    why: str,
) -> None:
    if owner is not None and os.geteuid() != 0:
        pytest.skip("needs another user's folder")
    master = start_master()
    master.journal("job_started")
    master.end()
    forget_the_end(master)
    monkeypatch.setenv("SECRET", "swordfish")
    job_file = master.run_dir / "job.yaml"
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        state = url.replace("{host}", f"127.0.0.1:{server.getsockname()[1]}")
        job_file.write_text(f"name: grpo\nengine: {{options: {{state: {state}}}}}\n")
        job_file.chmod(file)
        master.run_dir.chmod(folder)
        if owner is not None:
            os.chown(master.run_dir, owner, -1)
        assert main(["events", "grpo"]) == 1
        with pytest.raises(BlockingIOError):
            server.accept()
    said = capsys.readouterr()
    assert "job_started" in said.out  # what is in the folder is shown
    assert why in said.err
    assert "swordfish" not in said.err
    assert ("run this as user" if owner else "chmod go-w") in said.err


def test_a_run_is_its_users_alone_whatever_the_umask(runs: Path) -> None:
    before = os.umask(0)
    try:
        with claim(runs / "grpo"):
            write_job_file(runs / "grpo", "engine: {options: {state: sqlite:///${NAME:-state}.sqlite}}\n")
    finally:
        os.umask(before)
    assert Run(runs / "grpo").job_value("engine", None, "options", "state") == "sqlite:///state.sqlite"


def test_a_copied_run_whose_events_are_complete_needs_no_journal(
    start_master: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    master = start_master()
    master.end()
    copy = shutil.copytree(master.run_dir, tmp_path / "copy", ignore=shutil.ignore_patterns("state.sqlite*"))
    started, ended = (Event(seq, 1, float(seq), kind) for seq, kind in ((1, "job_started"), (2, "job_ended")))

    (copy / "events.jsonl").write_bytes(event_line(started)[1])
    assert main(["events", str(copy)]) == 1, "the newest events are in the journal"
    assert "there is no journal" in capsys.readouterr().err

    foreign = Event(2, 1, 2.0, "recovery_planned", {"plan": {}})
    ended = msgspec.structs.replace(ended, seq=3)
    (copy / "events.jsonl").write_bytes(b"".join(event_line(each)[1] for each in (started, foreign, ended)))
    assert main(["events", str(copy)]) == 0, "another version wrote one of them"
    assert "recovery_planned  plan={}" in capsys.readouterr().out
    for more in ([], ["--follow"], ["--after", "3"], ["-n", "1"]):
        assert main(["events", str(copy), *more]) == 0, more
        assert ("job_ended" in capsys.readouterr().out) == ("--after" not in more)


def test_a_damaged_journal_is_exit_code_1(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    master = start_master()
    master.end()
    forget_the_end(master)
    master.close()
    (master.run_dir / "state.sqlite").write_bytes(b"no database" * 1000)
    for leftover in master.run_dir.glob("state.sqlite-*"):
        leftover.unlink()

    assert main(["events", "grpo"]) == 1
    assert "the journal is damaged" in capsys.readouterr().err


# ---------------------------------------------------------------------------------------------------------------- logs


def log(master: Any, name: str, text: str) -> Path:
    path: Path = master.run_dir / "logs" / f"{name}.log"
    path.write_text(text)
    return path


def test_logs_of_several_ranks_begin_with_the_rank(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    master = start_master()
    log(master, "trainer-10", "ten\n")
    log(master, "trainer-2", "two\nhalf")
    log(master, "data-0", "\x1b[31mred\x1b[0m [bold]\n")

    assert main(["logs", "grpo"]) == 0

    assert capsys.readouterr().out.splitlines() == [
        "data/0     │ \x1b[31mred\x1b[0m [bold]",
        "trainer/2  │ two",
        "trainer/2  │ half",
        "trainer/10 │ ten",
    ]


def test_the_log_of_one_rank_is_printed_as_it_is(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    master = start_master()
    log(master, "trainer-0", "a\nb\nc\n")
    log(master, "data-0", "other\n")

    assert main(["logs", "grpo", "trainer/0", "-n", "2"]) == 0
    assert capsys.readouterr().out == "b\nc\n"
    assert main(["logs", "grpo", "data"]) == 0
    assert capsys.readouterr().out == "other\n"


def test_a_log_that_is_a_pipe_is_exit_code_2_and_others_are_shown(
    start_master: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    master = start_master()
    log(master, "data-0", "fine\n")
    os.mkfifo(master.run_dir / "logs" / "trainer-0.log")

    assert main(["logs", "grpo"]) == 2
    assert "trainer-0.log: this log cannot be read: it is no regular file" in capsys.readouterr().err
    assert main(["logs", "grpo", "data"]) == 0
    assert capsys.readouterr().out == "fine\n"


def test_logs_are_followed_until_the_job_ends(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    master = start_master()
    path = log(master, "trainer-0", "early\n")

    shown: list[str] = []

    def later() -> None:
        while "early" not in "".join(shown):
            shown.append(capsys.readouterr().out)
            time.sleep(0.01)
        with path.open("a") as file:
            file.write("late\nlast words")
        log(master, "data-0", "appeared\n")
        master.end()

    writer = threading.Thread(target=later)
    writer.start()
    assert main(["logs", "grpo", "-f"]) == 0
    writer.join()

    shown.append(capsys.readouterr().out)
    lines = [text.split("│")[-1].strip() for text in "".join(shown).splitlines()]
    assert lines[0] == "early"
    assert sorted(lines) == ["appeared", "early", "last words", "late"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["trainr"], "there is no log of 'trainr'"),
        (["trainer/7"], "there is no log of 'trainer/7'"),
        (["trainer/7", "-f"], "the job has no role or rank 'trainer/7'"),
    ],
)
def test_an_unknown_role_or_rank_is_exit_code_2_with_the_known_ones(
    start_master: Any, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    master = start_master()
    log(master, "trainer-0", "a\n")

    assert main(["logs", "grpo", *arguments]) == 2

    error = capsys.readouterr().err
    assert message in error
    assert "did you mean 'trainer" in error


@pytest.mark.parametrize("text", ["", "one\n", "one", "one\ntwo\n", "one\ntwo", "\n\n\n", "x" * 3 * BLOCK + "\nend\n"])
@pytest.mark.parametrize("last", [0, 1, 2, 5])
def test_a_tail_begins_with_the_last_lines(tmp_path: Path, text: str, last: int) -> None:
    path = tmp_path / "log"
    path.write_text(text)
    tail = Tail(path, last)

    assert list(tail.lines(rest=True)) == (text.splitlines()[-last:] if last else [])
    with path.open("a") as file:
        file.write("more\n")
    assert list(tail.lines()) == ["more"]
    tail.close()


def test_a_tail_of_a_long_file_is_right_across_blocks(tmp_path: Path) -> None:
    path = tmp_path / "log"
    lines = [f"line {n} " + "y" * (n % 97) for n in range(20_000)]
    path.write_text("\n".join(lines) + "\n")
    tail = Tail(path, 5000)

    assert list(tail.lines()) == lines[-5000:]
    tail.close()


# ---------------------------------------------------------------------------------------------------------------- stop


def test_stop_waits_for_the_end(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    master = start_master()
    master.step(reward=0.5)

    assert main(["stop", "grpo"]) == 0
    assert capsys.readouterr().out == "grpo interrupted · 1 of 10 steps\n"
    (stop,) = [request for request in master.requests if isinstance(request, StopJob)]
    assert stop.reason.startswith("rolemesh stop, by ")


def test_stop_without_waiting_returns_at_once(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    master = start_master()
    master.on_stop = lambda: None

    assert main(["stop", "grpo", "--no-wait"]) == 0
    assert "grpo is stopping" in capsys.readouterr().out


def test_stopping_an_ended_job_is_no_error(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    start_master().end()

    assert main(["stop", "grpo"]) == 0
    assert capsys.readouterr().out == "grpo has ended already: done\n"


@pytest.mark.slow
def test_stopping_a_job_whose_master_is_dead_is_exit_code_2(
    start_master: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    start_master().die()

    assert main(["stop", "grpo"]) == 2
    assert "lease" in capsys.readouterr().err


# -------------------------------------------------------------------------------------------------------------- attach


def test_attach_shows_the_job_until_it_ends_and_exits_as_it_did(
    start_master: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    master = start_master()
    master.step(reward=0.25)

    def end_once_watched() -> None:
        while len(master.requests) < 2:
            time.sleep(0.01)
        master.step(reward=0.75)
        master.end("failed", 1, "out of luck")

    ending = threading.Thread(target=end_once_watched)
    ending.start()

    assert main(["attach", "grpo"]) == 1
    ending.join()

    shown = capsys.readouterr()
    assert "reward 0.25" in shown.out
    assert "✘ grpo failed · 2 of 10 steps" in shown.out
    assert "error: out of luck" in shown.err
    assert all(isinstance(request, Watch) and not request.owner for request in master.requests)


def test_attaching_to_an_ended_job_shows_its_summary(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    master = start_master()
    for step in range(3):
        master.step(reward=step / 2)
    master.end()

    assert main(["attach", "grpo"]) == 0
    out = capsys.readouterr().out
    assert "✔ grpo done · 3 of 10 steps" in out
    assert ["reward", "0", "1", "0", "1"] in [row.split() for row in out.splitlines()]


def test_attach_uses_the_jobs_own_console_options(start_master: Any, capsys: pytest.CaptureFixture[str]) -> None:
    master = start_master()
    observers = "observers: [{use: console, options: {metrics: [loss]}}]\n"
    (master.run_dir / "job.yaml").write_text("name: grpo\n" + observers)
    master.step(reward=0.25, loss=1.0)
    master.end()

    assert main(["attach", "grpo"]) == 0
    out = capsys.readouterr().out
    assert "loss" in out
    assert "reward" not in out


def test_ctrl_c_leaves_the_view_and_not_the_job(
    start_master: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    master = start_master()
    main_thread = threading.main_thread().ident
    assert main_thread is not None

    def interrupt() -> None:
        while not master.requests:
            assert threading.main_thread().is_alive()
        signal.pthread_kill(main_thread, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    gc.disable()  # Hypothesis has a callback there, and an interrupt that it raises is lost
    try:
        thread.start()
        assert main(["attach", "grpo"]) == 0
    finally:
        gc.enable()
    thread.join()

    assert "grpo goes on" in capsys.readouterr().out
    assert not [request for request in master.requests if isinstance(request, StopJob)]
    assert os.path.exists(master.run_dir / "control.json")


@pytest.mark.parametrize("verb", ["status", "events", "logs", "stop", "attach"])
def test_help_teaches_with_examples_and_exit_codes(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([verb, "--help"]) == 0

    text = capsys.readouterr().out
    assert f"rolemesh {verb}" in text
    assert "Exit code" in text
