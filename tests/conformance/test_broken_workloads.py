"""For every standard test of a workload there is one that does just that wrong, and it is caught."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.conformance import broken_workloads as broken
from tests.conformance.agents import Forgetting
from tests.conformance.counter import Counter
from tests.conformance.harness import outcomes

from rolemesh import Batch
from rolemesh.errors import OptionsError, raise_all
from rolemesh_testing import WorkloadConformance


class Sound(WorkloadConformance):
    plugin = Counter
    world_sizes = (2, 1, 5)
    steps = 2

    def step(self, role: Any, step: int) -> None:
        rows = role.noisy(rows=Batch({"index": np.arange(4 * step, 4 * step + 4)}))
        role.add(rows=role.squared(rows=rows))


class Partly(Sound):
    """Leaves an operator out."""

    def step(self, role: Any, step: int) -> None:
        role.add(rows=Batch({"number": np.ones(4)}))


class Asking(Sound):
    """Calls a service."""

    def step(self, role: Any, step: int) -> None:
        role.call_service("double", 3)


class Refused(Sound):
    bad_options = ({"start": 3},)


CARELESS = type("Careless", (Counter,), {"__module__": "tests.conformance.careless"})

BROKEN: dict[str, type[Any] | str | dict[str, Any]] = {
    "test_the_kernel_finds_it_by_its_name": "no-such-workload",
    "test_its_distribution_says_which_kernels_it_fits": "loose",
    "test_it_has_the_base_class_of_its_kind": broken.FromTheFuture,
    "test_importing_it_is_light": CARELESS,
    "test_importing_it_does_nothing_but_define": CARELESS,
    "test_it_says_what_it_is": broken.Undocumented,
    "test_its_options_are_accepted": {"options": {"start": -1}},
    "test_a_misspelled_option_is_an_error": broken.Forgiving,
    "test_every_option_is_described": broken.Unexplained,
    "test_its_options_have_a_schema": broken.Unspeakable,
    "test_its_options_survive_json": broken.Doubling,
    "test_defaults_are_not_shared": broken.Sharing,
    "test_bad_options_are_refused_with_a_remedy": {"bad_options": ({"start": 3},)},
    "test_its_attributes_are_those_that_the_kernel_reads": broken.OneWord,
    "test_it_has_operators_that_a_flow_can_call": broken.Idle,
    "test_every_operator_is_described": broken.Silent,
    "test_its_operators_are_always_the_same": broken.Moody,
    "test_checking_the_options_is_light": broken.Thorough,
    "test_preloaded_modules_survive_a_fork": broken.Threaded,
    "test_set_up_and_torn_down_twice": broken.Once,
    "test_nothing_is_left_after_teardown": broken.Littering,
    "test_a_kill_during_a_write_does_not_disturb_the_next_writer": broken.Locking,
    "test_its_operators_work_at_every_world_size": broken.Greedy,
    "test_every_operator_is_called": {"step": Partly.step},
    "test_the_world_size_does_not_change_results": broken.Personal,
    "test_results_of_ranks_lie_as_declared": broken.Disagreeing,
    "test_inputs_are_not_written_to": broken.Scribbling,
    "test_the_cut_into_chunks_does_not_change_results": broken.Chunky,
    "test_the_same_seed_gives_the_same_results": broken.Hashing,
    "test_its_generation_does_not_change_results": broken.Reborn,
    "test_a_snapshot_changes_nothing": broken.Disturbed,
    "test_its_state_has_the_same_names_from_the_start": broken.Late,
    "test_it_continues_from_a_snapshot_without_a_difference": broken.Forgetful,
    "test_a_state_that_was_restored_is_the_state": broken.Rounding,
    "test_a_kill_at_every_operator_boundary_changes_nothing": broken.LeavesOrphans,
    "test_kills_at_drawn_places_of_a_long_run_change_nothing": broken.Clocked,
    "test_a_killed_rank_leaves_no_process": broken.Helped,
    "test_any_rank_answers_a_service_alike": {"plugin": Forgetting, "step": Asking.step},
    "test_giving_memory_back_changes_nothing": broken.Dropping,
}


@pytest.fixture
def loose(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A distribution that fits any kernel, it says."""
    info = tmp_path / "loose-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: loose\nVersion: 1.0\nRequires-Dist: rolemesh>=0.1\n")
    (info / "entry_points.txt").write_text("[rolemesh.workloads]\nloose = tests.conformance.counter:Counter\n")
    monkeypatch.syspath_prepend(tmp_path)


def conformance(wrong: type[Any] | str | dict[str, Any]) -> type[Any]:
    members = wrong if isinstance(wrong, dict) else {"plugin": wrong}
    return type("Broken", (Sound,), members)


def test_each_standard_test_has_a_broken_workload() -> None:
    assert BROKEN.keys() == {name for name in dir(WorkloadConformance) if name.startswith("test_")}


@pytest.mark.slow
@pytest.mark.usefixtures("loose")
def test_the_kit_finds_each_mistake_of_a_workload() -> None:
    classes = {f"Test{index:02}": conformance(wrong) for index, wrong in enumerate(BROKEN.values())}
    found = outcomes(classes, chosen={f"Test{index:02}": {test} for index, test in enumerate(BROKEN)})
    missed = [test for index, test in enumerate(BROKEN) if test not in found.failed.get(f"Test{index:02}", {})]
    assert not missed, found.output


class AskingToo(Sound):
    """Calls operators and a service."""

    def step(self, role: Any, step: int) -> None:
        Sound.step(self, role, step)
        role.call_service("double", 3)


@pytest.mark.parametrize(
    ("wrong", "step", "who"),
    [(broken.Lending, AskingToo.step, "the service double"), (broken.LendingToThread, Sound.step, "a thread")],
)
def test_a_write_to_lent_memory_while_no_operator_runs_is_found(wrong: type[Any], step: Any, who: str) -> None:
    test = "test_its_operators_work_at_every_world_size"
    cls = type("Lent", (Sound,), {"plugin": wrong, "step": step})
    found = outcomes({"TestIt": cls}, chosen={"TestIt": {test}}).failed["TestIt"][test]
    assert f"{who} writes to memory that is lent (w), which consumers may be reading" in found


LONG = "test_kills_at_drawn_places_of_a_long_run_change_nothing"
LATE: dict[type[Any], str] = {
    broken.Epochs: LONG,
    broken.Warming: LONG,
    broken.Racing: LONG,
    broken.Aliased: LONG,
    broken.Global: LONG,
    broken.Numbered: LONG,
    broken.HashingLate: LONG,
    broken.Detaching: "test_a_killed_rank_leaves_no_process",
    broken.ScribblingLate: "test_inputs_are_not_written_to",
    broken.Warmed: "test_its_state_has_the_same_names_from_the_start",
    broken.PersonalLate: "test_the_world_size_does_not_change_results",
}


@pytest.mark.parametrize(
    "wrong", [each if each is broken.Epochs else pytest.param(each, marks=pytest.mark.soak) for each in LATE]
)
def test_a_fault_that_shows_late_or_now_and_then_gets_no_certificate(wrong: type[Any]) -> None:
    cls = type("Late", (conformance(wrong),), {"long_steps": 100})
    assert outcomes({"TestIt": cls}, chosen={"TestIt": {LATE[wrong]}}).failed


@pytest.mark.soak  # so do the workloads of test_function.py and test_services.py
def test_a_sound_workload_passes_them_all() -> None:
    assert not outcomes({"TestSound": Sound}).failed


def refusing(*errors: OptionsError) -> type[Any]:
    return type("Refusing", (Counter,), {"check": classmethod(lambda cls, options, world_size: raise_all(errors))})


def test_several_errors_at_once_may_refuse_bad_options(tmp_path: Path) -> None:
    both = refusing(OptionsError("start is wrong", remedy="set 1"), OptionsError("so is end", remedy="set 2"))
    Refused().test_bad_options_are_refused_with_a_remedy(both, tmp_path)


def test_each_of_several_errors_needs_a_remedy(tmp_path: Path) -> None:
    one = refusing(OptionsError("start is wrong", remedy="set 1"), OptionsError("so is end"))
    with pytest.raises(AssertionError, match="without a remedy: so is end"):
        Refused().test_bad_options_are_refused_with_a_remedy(one, tmp_path)
