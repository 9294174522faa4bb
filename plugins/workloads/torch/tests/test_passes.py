"""The order of a pipeline's passes, for many sizes."""

from __future__ import annotations

import subprocess
import sys
from itertools import product

import pytest

from rolemesh_torch import Pass, passes

SIZES = list(product(range(1, 6), range(1, 8), ("1f1b", "gpipe")))


def in_flight(order: list[Pass], stage: int) -> int:
    """The most micro-batches whose activations the stage holds at once."""
    held = [0]
    for each in order:
        if each.stage == stage:
            held.append(held[-1] + (1 if each.kind == "forward" else -1))
    return max(held)


@pytest.mark.parametrize(("stages", "micros", "schedule"), SIZES)
def test_each_pass_is_there_once_and_after_what_it_takes(stages: int, micros: int, schedule: str) -> None:
    order = passes(stages, micros, schedule)  # type: ignore[arg-type]
    at = {each: number for number, each in enumerate(order)}
    assert len(at) == len(order) == 2 * stages * micros
    for (stage, kind, micro), number in at.items():
        if kind == "forward" and stage:
            assert at[Pass(stage - 1, "forward", micro)] < number
        if kind == "backward":
            assert at[Pass(stage, "forward", micro)] < number
            assert stage == stages - 1 or at[Pass(stage + 1, "backward", micro)] < number


@pytest.mark.parametrize(("stages", "micros", "schedule"), SIZES)
def test_gradients_are_added_up_in_one_order(stages: int, micros: int, schedule: str) -> None:
    for stage in range(stages):
        order = [p.micro for p in passes(stages, micros, schedule) if p[:2] == (stage, "backward")]  # type: ignore[arg-type]
        assert order == list(range(micros))


@pytest.mark.parametrize(("stages", "micros"), list(product(range(1, 6), range(1, 8))))
def test_1f1b_holds_as_many_micro_batches_as_stages_are_left_and_gpipe_all(stages: int, micros: int) -> None:
    for stage in range(stages):
        assert in_flight(passes(stages, micros, "1f1b"), stage) == min(stages - stage, micros)
        assert in_flight(passes(stages, micros, "gpipe"), stage) == micros


def test_stages_that_are_no_pipeline_are_refused() -> None:
    with pytest.raises(ValueError, match="at least 1 stage and 1 micro-batch, not 0 and 4"):
        passes(0, 4)
    with pytest.raises(ValueError, match="'zb' is no schedule; known: 1f1b, gpipe"):
        passes(2, 4, "zb")  # type: ignore[arg-type]


def test_a_flow_that_needs_the_order_imports_no_torch() -> None:
    code = "import sys, rolemesh_torch; rolemesh_torch.passes(2, 2); print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
