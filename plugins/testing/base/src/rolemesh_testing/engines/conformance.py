"""Conformance of an engine: it runs a job as the job file says, reports events, and leaves a run's folder."""

from __future__ import annotations

import json
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
from rolemesh.runs.run import EVENTS_FILE, METRICS_FILE, RESULT_FILE
from rolemesh_inline import InlineEngine
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.engines.job import asking, summing

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
        """All steps run. The run's folder contains a result, the events, and the metrics of each step."""
        handle = start(summing("job", tmp_path))
        result = self._end(handle)
        assert (result["status"], result["exit_code"], result["committed_steps"]) == ("done", EXIT_DONE, 10)
        assert (result["name"], result["steps"], result["message"]) == ("job", 10, "")
        assert json.loads((handle.run_dir / RESULT_FILE).read_text()) == result == handle.result()
        kinds = [event["kind"] for event in _lines(handle.run_dir / EVENTS_FILE)]
        assert (kinds[0], kinds[-1]) == ("job_started", "job_ended")
        assert [line["step"] for line in _lines(handle.run_dir / METRICS_FILE)] == list(range(10))
        assert (handle.run_dir / "job.yaml").exists()

    def test_values_and_states_are_those_of_any_engine(self, start: Start, cls: type[Engine], tmp_path: Path) -> None:
        """A job's results do not depend on the engine. The test compares them with the engine in one process."""
        if cls is InlineEngine:
            pytest.skip("it is what others are compared with")
        job = summing("job", tmp_path)
        alone = InlineEngine(InlineEngine.RunOptions()).start(job.validate("inline"), tmp_path / "alone", say=_silent)
        expected, result = self._end(alone), self._end(start(job))
        assert result["state_sha256"]["sink"] == expected["state_sha256"]["sink"]
        theirs, ours = (_lines(tmp_path / place / METRICS_FILE) for place in ("alone", "runs/job"))
        assert [line["total"] for line in ours] == [line["total"] for line in theirs]

    def test_the_context_of_a_rank_keeps_its_promises(self, start: Start, tmp_path: Path) -> None:
        """Metrics, records, notes, progress, calls and `finish`: the engine's `RankPort` behaves as documented."""
        result = self._end(start(asking("job", tmp_path, last=2)))
        assert (result["status"], result["reason"]) == ("done", "asker/0: enough")
        assert 3 <= result["committed_steps"] < 100_000
        lines = _lines(tmp_path / "runs" / "job" / METRICS_FILE)
        assert len(lines) == result["committed_steps"]
        for step, line in enumerate(lines):
            assert (line["loss"], line["rows"]) == (step + 0.5, 3)
            wanted = {"answer": 2 * step, "caller": "asker/0", "step": step, "noted": {}, "session": True}
            assert line["records"]["asked"] == wanted
        assert [line["records"].get("warning asker/0 #1") for line in lines[:2]] == ["be careful", None]

    def test_an_operator_that_raises_is_a_failed_job(self, start: Start, tmp_path: Path) -> None:
        """The error names the role, the step and the user's lines. The waiting thread gets no other exception."""
        result = self._end(start(summing("job", tmp_path, fail_at=3)))
        failure = result["failure"]
        assert (result["status"], result["exit_code"]) == ("failed", EXIT_FAILED)
        assert (failure["cause"], failure["role"], failure["rank"], failure["step"]) == ("exception", "source", 0, 3)
        assert "it was asked to fail" in failure["message"]
        assert "in numbers" in failure["traceback"]

    def test_it_reports_the_state_of_the_job_and_ends_it_on_request(self, start: Start, tmp_path: Path) -> None:
        """One thread calls `status` while another waits. `stop` ends the job early, and the result is no failure."""
        handle = start(summing("job", tmp_path, steps=100_000, pause_s=0.02))
        seen: list[JobStatus] = []

        def watch() -> None:
            until = time.monotonic() + self.timeout_s
            while time.monotonic() < until:
                status = handle.status()
                if status is not None and status.committed >= 2:
                    seen.append(status)
                    break
                time.sleep(0.02)
            handle.stop("the test has seen enough")

        watcher = threading.Thread(target=watch)
        watcher.start()
        result = self._end(handle)
        watcher.join()
        assert seen, "status() has told nothing of a step"
        assert (seen[0].name, seen[0].steps, len(seen[0].ranks)) == ("job", 100_000, 3)
        assert (result["status"], result["exit_code"]) == ("interrupted", EXIT_INTERRUPTED)
        assert 0 < result["committed_steps"] < 100_000
        assert handle.status() is None

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
        waiting = threading.Thread(target=handle.wait)
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
