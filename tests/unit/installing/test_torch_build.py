"""Which build of torch `make install` takes, from what the indexes offer."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from requirements.torch_build import Choice, Offer, Probe, Refusal, build_of, decide, has_driver, wanted

CPU_INDEX = "https://cpu.example/whl"
LABELLED = Probe("torch==2.13.0+cpu")
PLAIN = Probe("torch==2.13.0")
EXACT = Probe("torch===2.13.0")
ELSEWHERE = Probe("torch==2.13.0+cpu", CPU_INDEX)

CPU = Offer("2.13.0+cpu", "cpu")
CUDA = Offer("2.13.0", "cuda")


def decided(want: str, offers: Mapping[Probe, Offer]) -> tuple[Choice | Refusal, list[Probe]]:
    """Return the decision, and the probes before it."""
    answers: dict[Probe, Offer | None] = {}
    while isinstance(step := decide(want, "2.13.0", answers, CPU_INDEX), Probe):
        answers[step] = offers.get(step)
    return step, list(answers)


@pytest.mark.parametrize(
    ("want", "offers", "choice"),
    [
        ("cpu", {LABELLED: CPU, PLAIN: CUDA}, Choice("torch==2.13.0+cpu", "cpu")),
        ("cpu", {PLAIN: CUDA, ELSEWHERE: CPU}, Choice("torch==2.13.0+cpu", "cpu", CPU_INDEX)),
        ("cpu", {PLAIN: Offer("2.13.0", "cpu")}, Choice("torch==2.13.0", "cpu")),
        ("cpu", {ELSEWHERE: CPU}, Choice("torch==2.13.0+cpu", "cpu", CPU_INDEX)),
        ("cuda", {PLAIN: CUDA}, Choice("torch==2.13.0", "cuda")),
        ("cuda", {PLAIN: Offer("2.13.0+cu130", "cuda")}, Choice("torch==2.13.0+cu130", "cuda")),
        ("cuda", {PLAIN: CPU, EXACT: CUDA}, Choice("torch===2.13.0", "cuda")),
        ("any", {PLAIN: CUDA}, Choice("torch==2.13.0", "cuda")),
        ("any", {PLAIN: CPU}, Choice("torch==2.13.0+cpu", "cpu")),
    ],
)
def test_the_right_build_is_taken_from_the_index_that_has_it(
    want: str, offers: dict[Probe, Offer], choice: Choice
) -> None:
    assert decided(want, offers)[0] == choice


@pytest.mark.parametrize(
    ("want", "offers", "instead"),
    [
        ("cpu", {PLAIN: CUDA}, "any"),
        ("cpu", {}, None),
        ("cuda", {PLAIN: CPU}, "cpu"),
        ("cuda", {}, None),
        ("any", {}, None),
    ],
)
def test_without_the_right_build_the_refusal_names_a_setting_that_works(
    want: str, offers: dict[Probe, Offer], instead: str | None
) -> None:
    refusal, _ = decided(want, offers)
    assert isinstance(refusal, Refusal)
    assert refusal.instead == instead
    if instead:
        assert isinstance(decided(instead, {**offers, LABELLED: CPU} if instead == "cpu" else offers)[0], Choice)


def test_pytorchs_index_is_asked_only_when_the_configured_ones_have_no_cpu_build() -> None:
    assert decided("cpu", {LABELLED: CPU, ELSEWHERE: CPU})[1] == [LABELLED]


@pytest.mark.parametrize(
    ("version", "requires", "build"),
    [
        ("2.13.0+cpu", ["filelock"], "cpu"),
        ("2.13.0+cpu.cxx11.abi", [], "cpu"),
        ("2.13.0+cu130", [], "cuda"),
        ("2.13.0+rocm7.0", [], "cuda"),
        ("2.13.0", ["filelock", "sympy"], "cpu"),
        ("2.13.0", ["filelock", "nvidia-cudnn-cu13"], "cuda"),
        ("2.13.0", ["cuda-toolkit"], "cuda"),
        ("2.13.0", ["triton"], "cuda"),
    ],
)
def test_a_builds_label_or_its_requirements_identify_it(version: str, requires: list[str], build: str) -> None:
    assert build_of(version, requires) == build


def test_the_setting_wins_over_the_earlier_build_and_that_over_the_driver() -> None:
    assert wanted("cpu", "cuda", driver=True) == "cpu"
    assert wanted(None, "any", driver=True) == "any"
    assert wanted("", None, driver=True) == "cuda"
    assert wanted(None, None, driver=False) == "cpu"


def test_a_setting_that_does_not_exist_is_an_error() -> None:
    with pytest.raises(ValueError, match="ROLEMESH_TORCH=gpu is none of cpu, cuda, any"):
        wanted("gpu", None, driver=False)


def test_a_driver_is_found_if_nvidia_smi_lists_a_gpu_or_a_file_of_the_driver_exists() -> None:
    assert has_driver(listed=True, present=[False, False])
    assert has_driver(listed=False, present=[False, True])
    assert not has_driver(listed=False, present=[False, False])
