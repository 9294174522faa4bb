"""Elastic roles get what there is room for."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from rolemesh.job.planning import largest

RANGES = {"a": (1, 4), "b": (2, 6)}


def test_all_get_the_most_where_it_fits() -> None:
    assert largest(RANGES, lambda sizes: sum(sizes.values()) <= 10) == {"a": 4, "b": 6}


def test_roles_share_free_resources_in_turns() -> None:
    assert largest(RANGES, lambda sizes: sum(sizes.values()) <= 6) == {"a": 3, "b": 3}
    assert largest(RANGES, lambda sizes: sizes["a"] <= 1 and sum(sizes.values()) <= 6) == {"a": 1, "b": 5}


def test_sizes_that_a_strategy_refuses_are_stepped_over() -> None:
    assert largest({"a": (2, 9)}, lambda sizes: sizes["a"] % 2 == 0 and sizes["a"] < 8) == {"a": 6}


def test_if_nothing_fits_the_error_names_the_smallest_size() -> None:
    assert largest(RANGES, lambda sizes: False) == {"a": 1, "b": 2}


@given(
    st.dictionaries(st.sampled_from("abc"), st.tuples(st.integers(1, 4), st.integers(4, 8)), min_size=1),
    st.integers(0, 30),
)
def test_no_role_could_have_one_more(ranges: dict[str, tuple[int, int]], room: int) -> None:
    def fits(sizes: Mapping[str, int]) -> bool:
        return sum(sizes.values()) <= room

    sizes = largest(ranges, fits)
    assert all(least <= sizes[role] <= most for role, (least, most) in ranges.items())
    if fits(sizes):
        for role, (_, most) in ranges.items():
            assert sizes[role] == most or not fits({**sizes, role: sizes[role] + 1})
    else:
        assert sizes == {role: least for role, (least, _) in ranges.items()}


def test_a_range_far_beyond_the_room_costs_few_plans() -> None:
    plans = 0

    def fits(sizes: dict[str, int]) -> bool:
        nonlocal plans
        plans += 1
        return sizes["a"] + 2 * sizes["b"] <= 3000

    assert largest({"a": (1, 8000), "b": (1, 8000)}, fits) == {"a": 1000, "b": 1000}  # type: ignore[arg-type]
    assert plans < 500
