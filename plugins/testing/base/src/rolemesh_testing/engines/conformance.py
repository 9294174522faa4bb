"""Conformance of an engine: it runs a job as the job file says, reports events, and leaves a run's folder."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from rolemesh import Job
from rolemesh.api.observer import JobStatus
from rolemesh.errors import EXIT_DONE, EXIT_FAILED, EXIT_INTERRUPTED, RolemeshError
from rolemesh.job.engine import Engine, RunHandle
from rolemesh.job_file.loading import Written, load
from rolemesh.runs.run import EVENTS_FILE, JOB_FILE, METRICS_FILE, RESULT_FILE
from rolemesh_inline import InlineEngine
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.engines.job import HERE, asking, expected, summing, various
from rolemesh_testing.leftovers import marking, outliving, still_running

__all__ = ["EngineConformance"]

Start = Callable[..., RunHandle]


class EngineConformance(PluginConformance):
    """Subclass it with `plugin` and `options`, which are those of a run. `job_options` are those of the job file.

    The tests run a job of three ranks in two roles: to its end, into a failure, and until a user stops it.
    """

    kind = "engines"
    timeout_s: ClassVar[float] = 120.0
    job_options: ClassVar[dict[str, Any]] = {}

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def checked_options(self, cls: type[Engine], base: Path) -> BaseModel:
        """`job_options` in the form that a job file has."""
        found: BaseModel = cls.Options.model_validate(self.job_options, context={"base": str(base)})
        return found

    @pytest.fixture
    def run_options(self, cls: type[Engine]) -> BaseModel:
        """`options` as the engine gets them."""
        chosen = {name: str(value) for name, value in self.options.items()}
        return cls.options_for(chosen).model_validate(self.options)

    @pytest.fixture
    def start(
        self, cls: type[Engine], run_options: BaseModel, tmp_path: Path, request: pytest.FixtureRequest
    ) -> Iterator[Start]:
        """``start(job)`` returns a handle. The run is in ``runs/NAME`` of the test's folder, and ends with the test."""
        handles: list[RunHandle] = []

        def begin(job: Job, *, detached: bool = False) -> RunHandle:
            named = self.plugin if isinstance(self.plugin, str) else f"{cls.__module__}:{cls.__qualname__}"
            checked = job.validate(named)
            run_dir = tmp_path / "runs" / checked.job.spec.name
            said: list[str] = []
            made = needed(request, "it cannot be created", lambda: cls(run_options))
            handles.append(made.start(checked, run_dir, detached=detached, say=said.append))
            return handles[-1]

        yield begin
        for handle in handles:
            if handle.result() is None and handle.status() is not None:
                handle.stop("the test is over")
            handle.close()

    # --------------------------------------------------------------------------------------------------------- tests

    def test_a_job_runs_to_its_end(self, start: Start, tmp_path: Path) -> None:
        """All steps run. The run's folder contains the job file, a result, the events, and metrics of all steps. An
        observer gets the same, once. No thread or process is left.
        """
        job = summing("job", tmp_path).set(metrics={"every": 4}, observers=[{"use": f"{HERE}:Noting"}])
        threads, _ = still_running()
        with marking() as mark:
            handle = start(job)
            result = self._end(handle)
        assert (result["status"], result["exit_code"], result["committed_steps"]) == ("done", EXIT_DONE, 10)
        assert (result["name"], result["steps"], result["message"]) == ("job", 10, "")
        assert json.loads((handle.run_dir / RESULT_FILE).read_text()) == result == handle.result()
        events = [(event["seq"], event["kind"]) for event in _lines(handle.run_dir / EVENTS_FILE)]
        assert (events[0][1], events[-1][1]) == ("job_started", "job_ended")
        assert [seq for seq, _ in events] == list(range(1, len(events) + 1))
        lines = [(line["step"], line["steps"]) for line in _lines(handle.run_dir / METRICS_FILE)]
        assert lines == [(3, 4), (7, 4), (9, 2)]
        written = load(handle.run_dir / JOB_FILE).spec.model_dump(mode="json")
        assert written == load(Written(job.text(), tmp_path, "job")).spec.model_dump(mode="json")
        noted: list[Any] = _lines(handle.run_dir / "noted.jsonl")
        assert (noted[0], noted[-1]) == (["job_started", {"source": 1, "sink": 2}], ["job_ended", "done"])
        assert [tuple(rest) for kind, *rest in noted if kind == "event"] == events
        assert [tuple(rest) for kind, *rest in noted if kind == "line"] == lines
        left = outliving(mark) + sorted({*still_running()[0]} - {*threads})
        assert not left, f"left after close(): {left}"

    def test_values_and_states_are_those_of_any_engine(self, start: Start, cls: type[Engine], tmp_path: Path) -> None:
        """Values that are split, broadcast, late, shared, streamed and rare arrive as they must. States are compared
        with those of the engine in one process.
        """
        job = various("job", tmp_path)
        result = self._end(start(job))
        assert result["status"] == "done", result["message"]
        for step, line in enumerate(_lines(tmp_path / "runs" / "job" / METRICS_FILE)):
            assert line["records"] == expected(step), f"in step {step}"
        if cls is not InlineEngine:
            alone = InlineEngine(InlineEngine.RunOptions())
            wanted = self._end(alone.start(job.validate("inline"), tmp_path / "alone", say=_silent))
            assert result["state_sha256"] == wanted["state_sha256"]

    def test_the_context_of_a_rank_keeps_its_promises(self, start: Start, tmp_path: Path) -> None:
        """Names, seed, folders, variables, metrics, records, notes, progress, calls, `finish`, `committed` and
        `teardown` are as documented, in each of two ranks.
        """
        result = self._end(start(asking("job", tmp_path, last=2)))
        assert (result["status"], result["reason"]) == ("done", "asker/0: enough")
        assert 3 <= result["committed_steps"] < 100_000
        run_dir = tmp_path / "runs" / "job"
        lines = _lines(run_dir / METRICS_FILE)
        assert len(lines) == result["committed_steps"]
        for step, line in enumerate(lines):
            assert (line["loss"], line["rows"]) == (step + 0.5, 6)
            answer = {"answer": 2 * step, "step": step, "theirs": "of the tool"}
            for rank in range(2):
                wanted = {"noted": {}, "session": True, "own": "of the asker", "caller": f"asker/{rank}", **answer}
                assert line["records"][f"asked {rank}"] == wanted, f"in step {step}"
        for rank in range(2):
            assert [line["records"].get(f"warning asker/{rank} #1") for line in lines[:2]] == ["be careful", None]
            who = lines[0]["records"][f"who {rank}"]
            assert not Path(who.pop("tmp_dir")).exists(), "the folder tmp_dir is left"
            assert Path(who.pop("run_dir")).samefile(run_dir)
            assert Path(who.pop("base")).samefile(tmp_path)
            names = {"job": "job", "role": "asker", "rank": rank, "ranks": 2}
            assert who == {**names, "seed": 11, "steps": 100_000}
            committed = json.loads((run_dir / f"asker-{rank}.json").read_text())
            assert committed, "committed() was not called"
            assert committed == sorted({*committed}), "the steps of committed() do not increase"

    @pytest.mark.parametrize("how", ["raises", "leaves", "setup"])
    def test_an_operator_that_raises_is_a_failed_job(self, start: Start, tmp_path: Path, how: str) -> None:
        """So is one that calls ``sys.exit(0)``, and a rank that raises at its start. The error names the role, the step
        and the user's lines. The waiting thread gets no other exception.
        """
        asked: dict[str, Any] = {"fail": True} if how == "setup" else {"fail_at": 3, "leave": how == "leaves"}
        result = self._end(start(summing("job", tmp_path, **asked)))
        assert (result["status"], result["exit_code"]) == ("failed", EXIT_FAILED)
        failure = result["failure"]
        if how == "setup":
            assert (failure["cause"], failure["role"], failure["operator"]) == ("exception", "sink", "setup")
        else:
            place = failure["role"], failure["rank"], failure["operator"], failure["step"]
            assert (failure["cause"], *place) == ("exception", "source", 0, "source.numbers", 3)
        assert ("SystemExit" if how == "leaves" else "it was asked to fail") in failure["message"]
        assert ("in __init__" if how == "setup" else "in numbers") in failure["traceback"]
        assert "failure" in [event["kind"] for event in _lines(tmp_path / "runs" / "job" / EVENTS_FILE)]

    def test_it_reports_the_state_of_the_job_and_ends_it_on_request(self, start: Start, tmp_path: Path) -> None:
        """One thread calls `status` while another waits. `stop` ends the job early, and the result is no failure."""
        (begun := tmp_path / "begun").touch()
        handle = start(summing("job", tmp_path, steps=100_000, pause_s=0.02, begun=str(begun)))
        seen: list[JobStatus] = []
        reached: list[int] = []

        def watch() -> None:
            until = time.monotonic() + self.timeout_s
            while time.monotonic() < until and len(seen) < 5:
                status = handle.status()
                if status is not None and status.committed >= 2:
                    reached.append(begun.stat().st_size)
                    seen.append(status)
                time.sleep(0.02)
            handle.stop("the test has seen enough")

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        result = self._end(handle)
        watcher.join()
        assert seen, "status() has told nothing of a step"
        for status, step in zip(seen, reached, strict=True):
            ranks = sorted((rank.role, rank.rank) for rank in status.ranks)
            assert (status.name, status.steps) == ("job", 100_000)
            assert ranks == [("sink", 0), ("sink", 1), ("source", 0)]
            assert status.committed < step, f"status() says that step {status.committed} is done, of {step} that began"
        committed = [status.committed for status in seen]
        assert committed == sorted(committed)
        assert (result["status"], result["exit_code"]) == ("interrupted", EXIT_INTERRUPTED)
        assert committed[-1] < result["committed_steps"] < 100_000
        assert handle.status() is None

    @pytest.mark.skipif(
        threading.current_thread() is not threading.main_thread(), reason="signals go to another thread"
    )
    def test_an_interrupt_calls_back_and_ends_no_wait(self, start: Start, tmp_path: Path) -> None:
        """At Ctrl-C `wait` ends the job, or calls `interrupted` and goes on waiting. It raises nothing."""
        if threading.current_thread() is not threading.main_thread():
            pytest.skip("Python raises KeyboardInterrupt in another thread")
        handle = start(summing("job", tmp_path, steps=100_000, pause_s=0.02))
        ended = threading.Event()

        def interrupt() -> None:
            while not ended.wait(0.02):
                if (status := handle.status()) is not None and status.committed >= 1:
                    os.kill(os.getpid(), signal.SIGINT)
                    return

        watcher = threading.Thread(target=interrupt, daemon=True)
        watcher.start()
        try:
            result = handle.wait(lambda: handle.stop("interrupted by the test"))
        except KeyboardInterrupt:
            pytest.fail("wait() raised KeyboardInterrupt, and the job has no end")
        finally:
            ended.set()
            watcher.join()
        assert result is not None
        assert (result["status"], result["exit_code"]) == ("interrupted", EXIT_INTERRUPTED)

    def test_an_earlier_run_of_the_name_is_set_aside(self, start: Start, tmp_path: Path) -> None:
        """The earlier run keeps all its files, and the new run uses none of them."""
        first = self._end(start(summing("job", tmp_path, steps=3)))
        second = self._end(start(summing("job", tmp_path, steps=5)))
        assert (first["committed_steps"], second["committed_steps"]) == (3, 5)
        kept = [json.loads(path.read_text()) for path in (tmp_path / "runs").rglob(RESULT_FILE)]
        assert sorted(result["committed_steps"] for result in kept) == [3, 5]

    def test_a_job_that_is_alive_keeps_its_name(self, start: Start, tmp_path: Path) -> None:
        """A second start in the same folder is refused, and the running job goes on."""
        handle = start(summing("job", tmp_path, steps=100_000, pause_s=0.02))
        waiting = threading.Thread(target=handle.wait, daemon=True)
        waiting.start()
        until = time.monotonic() + self.timeout_s
        while handle.status() is None and time.monotonic() < until:
            time.sleep(0.02)
        try:
            with pytest.raises(RolemeshError, match="job"):
                start(summing("job", tmp_path, steps=1)).wait()
            assert handle.status() is not None
        finally:
            handle.stop("the test is over")
            waiting.join(self.timeout_s)

    def test_a_detached_job_outlives_its_starter(self, start: Start, cls: type[Engine], tmp_path: Path) -> None:
        """`leave` returns while the job runs. The job then runs to its end."""
        if not cls.outlives:
            pytest.skip("its jobs live in the process that waits for them")
        handle = start(summing("job", tmp_path, steps=20, pause_s=0.02), detached=True)
        handle.leave()
        handle.close()
        until = time.monotonic() + self.timeout_s
        while (result := handle.result()) is None and time.monotonic() < until:
            time.sleep(0.05)
        assert result is not None
        assert (result["status"], result["committed_steps"]) == ("done", 20)

    def _end(self, handle: RunHandle) -> dict[str, Any]:
        result = handle.wait()
        handle.close()
        assert result is not None, "the job has ended without a result"
        return result


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _silent(text: str) -> None:
    """Ignore the log."""
