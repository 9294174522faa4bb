"""Each decoder takes an input, or refuses it with an error that it declares, soon."""

from __future__ import annotations

import hashlib
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from tests.fuzz.changing import inputs
from tests.fuzz.targets import TARGETS, Target

CORPUS = Path(__file__).parent / "corpus"
EXAMPLES = 60
MOST_S = 5.0
"""Maximum processor time of one input."""


def undeclared(target: Target, data: bytes) -> str:
    """Return the error that a target raises for an input, if it does not declare it."""
    began, told = time.process_time(), ""
    try:
        target.read(data)
    except target.declared:
        pass
    except Exception as error:
        told = f"{type(error).__name__}: {error}"
    took = time.process_time() - began
    return told or (f"it takes {took:.1f} s" if took > MOST_S else "")


def folder(target: Target) -> Path:
    """Return the folder of inputs for which a target once raised another error."""
    return CORPUS / target.name.replace(" ", "-").replace("'", "")


def keep(target: Target, data: bytes) -> Path:
    """Add an input to the corpus."""
    path = folder(target) / hashlib.sha256(data).hexdigest()[:16]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_decoder_takes_its_seeds(target: Target) -> None:
    for seed in target.seeds():
        target.read(seed)


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_errors_of_the_past_are_declared(target: Target) -> None:
    kept = sorted(folder(target).glob("*"))
    assert not [f"{path.name}: {why}" for path in kept if (why := undeclared(target, path.read_bytes()))]


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_a_decoder_refuses_changed_inputs_with_a_declared_error(target: Target) -> None:
    fuzz(target, EXAMPLES, derandomize=True, database=None)  # a find of chance is for `make fuzz`


def fuzz(target: Target, examples: int, **how: Any) -> None:
    """Give a target changed inputs, with other settings of hypothesis in `how`. Raises AssertionError for the smallest
    with an undeclared error."""

    @settings(
        max_examples=examples, deadline=None, report_multiple_bugs=False, suppress_health_check=list(HealthCheck), **how
    )
    @given(inputs(target.seeds(), target.form, target.sealed))
    def given_to(data: bytes) -> None:
        why = undeclared(target, data)
        if why:
            raise AssertionError(f"{target.name}: {why}", data)

    given_to()
