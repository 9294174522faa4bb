"""Options that a stage refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from rolemesh_ddp import StageOptions, StageWorkload

OWN = str(Path(__file__).with_name("own_stages.py"))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"model": "smollm2"}, "the model of a stage is a function"),
        ({"model": f"{OWN}:front", "epochs": 2}, "epochs is for trainers"),
        ({"model": f"{OWN}:front", "micro_batch_rows": 2}, "micro_batch_rows is for trainers"),
        ({"model": f"{OWN}:front", "task": "value"}, "task is for Hugging Face models"),
    ],
)
def test_wrong_options_are_refused_with_a_hint(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        StageOptions.model_validate(given)


def test_a_stage_has_its_own_operators_and_no_trainers_loop() -> None:
    options = StageOptions.model_validate({"model": f"{OWN}:front"})
    names = {"forward", "loss", "backward", "update", "predict", "weights"}
    assert StageWorkload.operators(options).keys() == names
