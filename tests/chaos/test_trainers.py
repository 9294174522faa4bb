"""The same kills as in `test_kills.py`, with other trainers: `deepspeed` at each stage of ZeRO, and `ddp`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.chaos.harness import ChaosJob, End, as_if_nothing_had_happened, told

Make = Callable[..., ChaosJob]
SEEDS = range(10)
TRAINERS = {
    "ddp": ("roles.trainer.use=ddp",),
    **{
        f"zero-{stage}": (
            "roles.trainer.use=deepspeed",
            f"roles.trainer.options.config={{zero_optimization: {{stage: {stage}}}}}",
        )
        for stage in (1, 2, 3)
    },
}


@pytest.fixture(scope="module", params=TRAINERS)
def trainer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[tuple[str, ...], End]:
    """The arguments of the job, and its end when nothing fails."""
    given = TRAINERS[request.param]
    job = ChaosJob(tmp_path_factory.mktemp("undisturbed"), "undisturbed", ("--backend", "local"))
    done = job.run(*given)
    assert done.returncode == 0, done.stdout + done.stderr
    return given, End.of(job)


@pytest.mark.soak
@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_kills_leave_no_trace(make_job: Make, trainer: tuple[tuple[str, ...], End], seed: int) -> None:
    given, undisturbed = trainer
    job = make_job(f"chaos-{seed}")
    done = job.rehearse(f"kills=6,seed={seed}", *given)
    assert done.returncode == 0, f"{told(job)}\n{done.stdout}{done.stderr}"
    as_if_nothing_had_happened(job, undisturbed)
