"""The error of a failed job."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolemesh.api.failures import job_failed


def result(**fields: Any) -> dict[str, Any]:
    return {"status": "failed", "exit_code": 1, "message": "", "run_dir": "runs/grpo"} | fields


def test_a_failure_shows_the_rank_the_cause_the_users_traceback_and_the_log(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "rollout-0.log"
    log.parent.mkdir()
    log.touch()
    traceback = 'Traceback (most recent call last):\n  File "flow.py", line 3, in f\n    raise ValueError("[x]")\n'
    failure = {"cause": "exception", "role": "rollout", "rank": 0, "operator": "generate", "step": 7}
    failure |= {"message": "ValueError: [x]", "traceback": traceback}
    said = "role rollout, rank 0 (in operator generate at step 7): ValueError: [x]"
    error = job_failed(result(message=said, failure=failure, failures=[said, "echo"], run_dir=str(tmp_path)))

    assert error.what.startswith(said + "\n")
    assert error.what.count(said) == 1
    assert 'File "flow.py", line 3, in f' in error.what
    assert "also: echo" in error.what
    assert error.remedy is not None
    assert "logs/rollout-0.log" in error.remedy
    assert error.exit_code == 1


def test_the_failure_includes_the_answers_of_the_failover_levels() -> None:
    failure = {"cause": "exception", "role": "work", "rank": 1, "message": "killed", "traceback": "Traceback: …"}
    said = "role work, rank 1: killed\n    licence ends the job: the licence server is gone"
    error = job_failed(result(message=said, failure=failure, failures=["role work, rank 1: killed"]))

    assert error.what.startswith(said + "\n\n  Traceback")
    assert "also:" not in error.what


def test_a_job_that_failed_without_a_failure_record_says_why_and_keeps_its_exit_code() -> None:
    error = job_failed(result(message="no agent came up", exit_code=2))

    assert error.what == "no agent came up"
    assert error.exit_code == 2
