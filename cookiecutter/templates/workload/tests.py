"""The curriculum goes up when tasks are solved, down when they are not, and goes on where a snapshot was taken."""

from typing import Any

import numpy as np
from rolemesh import Batch, RankContext
from rolemesh_testing import WorkloadConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(WorkloadConformance):
    """The tests that every role must pass."""

    plugin = "{{ cookiecutter.name }}"
    options = {"rows": 7, "levels": 3}
    bad_options = ({"rows": 0}, {"up": 0.1})

    def step(self, role: Any, step: int) -> None:
        tasks = role.next()
        role.learn(answers=Batch({"score": np.float32(tasks["level"] <= step // 2)}))


def made(rank: int = 0, world_size: int = 1, **options: float) -> {{ cookiecutter.__class }}:
    checked = {{ cookiecutter.__class }}.Options.model_validate(options)
    workload = {{ cookiecutter.__class }}(checked)
    workload.setup(RankContext(rank=rank, world_size=world_size, seed=1))
    return workload


def answers(score: float) -> Batch:
    return Batch({"score": np.full(4, score, dtype=np.float32)})


def test_the_level_goes_up_when_tasks_are_solved_and_down_when_they_are_not() -> None:
    workload = made(levels=3)
    seen = []
    for score in [1] * 6 + [0] * 3:
        workload.learn(answers(score))
        seen.append(workload.level)
    assert seen == [0, 1, 1, 2, 2, 2, 2, 2, 1]


def test_three_ranks_deal_out_the_rows_that_one_rank_would() -> None:
    whole = made(rows=8).next()
    parts = [made(rank, 3, rows=8).next() for rank in range(3)]
    assert [part.rows for part in parts] == [2, 3, 3]
    assert np.concatenate([part["seed"] for part in parts]).tolist() == whole["seed"].tolist()


def test_a_restored_workload_goes_on_as_the_first_one_would_have() -> None:
    first, second = made(), made()
    first.learn(answers(0.9))
    second.restore(first.snapshot())
    for workload in (first, second):
        workload.learn(answers(1.0))
    assert (second.level, second.solved) == (first.level, first.solved) == (1, 0.5)
