"""The state that a job without snapshots leaves on disk at its end."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import pytest
from tests.e2e.harness import Job
from tests.e2e.ladder import LADDER

from rolemesh_checkpoint import disk
from rolemesh_runtime.digest import digest

Make = Callable[..., Job]


def sink_after(steps: int) -> str:
    """The sha256 of the role `sink` after `steps` steps."""
    state = {"total": float(sum(x * x for x in range(6 * steps))), "calls": steps}
    return sha256(digest(state).encode()).hexdigest()


def test_a_job_that_ends_early_keeps_its_last_state_and_another_goes_on_from_it(make_job: Make) -> None:
    job = make_job()
    done = job.run("steps=null", "until={metric: sink.add/reward, at_least: 2000}", "metrics.every=1")
    assert done.returncode == 0, done.stdout + done.stderr
    result = job.result()
    kept = result["kept"]
    last = result["committed_steps"] - 1
    assert (kept["step"], kept["roles"], kept["exports"]) == (last, ["source", "sink"], [])
    assert result["not_kept"] == ""
    folder = disk.step_folder(job.run_dir, last)
    assert kept["bytes"] == sum(path.stat().st_size for path in folder.rglob("*.safetensors"))
    assert f"runs/squares/snapshots/step-{last}/" in done.stdout
    assert f"runs/squares/snapshots/step-{last}/" in job.cli("status", "squares").stdout
    on = job.run("--resume", "squares", f"steps={last + 10}")
    assert on.returncode == 0, on.stdout + on.stderr
    assert job.result()["state_sha256"]["sink"] == sink_after(last + 10)
    assert [line["step"] for line in job.metrics()] == list(range(last + 1, last + 10))


@pytest.mark.soak
def test_a_job_that_keeps_none_leaves_none_although_it_has_a_ladder(make_job: Make) -> None:
    job = make_job(extra=LADDER)
    done = job.run("steps=5", "engine.options.snapshots.keep=none", "engine.options.snapshots.persist_every=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert (job.result()["kept"], job.result()["not_kept"]) == (None, "")
    assert not disk.snapshots_folder(job.run_dir).exists()
    verified = job.cli("checkpoint", "verify", "squares")
    assert verified.returncode == 2
    assert "snapshots.keep" in verified.stderr
    refused = job.run("--resume", "squares", "steps=10")
    assert refused.returncode == 2
    assert "snapshots.persist_every" in refused.stderr


def test_a_job_whose_state_cannot_be_written_is_done_and_says_so(make_job: Make) -> None:
    job = make_job()
    roles = job.folder / "roles.py"
    text = roles.read_text().replace('return {"made": self.made}', 'raise ValueError("no state today")')
    roles.write_text(text)
    done = job.run("steps=4")
    assert done.returncode == 0, done.stdout + done.stderr
    result = job.result()
    assert (result["status"], result["kept"], result["state_sha256"]["source"]) == ("done", None, None)
    assert result["state_sha256"]["sink"] == sink_after(4)
    assert "source/0 has given no last state: ValueError: no state today" in result["not_kept"]
    assert "no state today" in done.stdout
    assert not disk.snapshots_folder(job.run_dir).exists(), "parts of a checkpoint that is not whole stay"
