"""Counting what is free, GPU by GPU."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from rolemesh.api.cluster import ClusterView, NodeView
from rolemesh.placement import Capacity, Slot

NODE = ClusterView((NodeView("n", cpu=4, gpu=2, custom={"ssd": 1}),))


def test_whole_gpus_are_taken_by_index_and_fractions_fill_devices_up() -> None:
    capacity = Capacity(NODE)
    taken = [capacity.take(i, "n", {"gpu": gpu}) for i, gpu in enumerate((0.5, 0.25, 1, 0.25))]
    assert [slot.gpus for slot in taken if slot] == [((0, 0.5),), ((0, 0.25),), ((1, 1.0),), ((0, 0.25),)]
    assert capacity.take(4, "n", {"gpu": 0.1}) is None
    assert capacity.free("n")["gpu"] == 0


def test_a_whole_gpu_is_not_made_of_two_halves() -> None:
    capacity = Capacity(NODE, [Slot(0, "n", 0, 0.5, ((0, 0.5),)), Slot(1, "n", 0, 0.5, ((1, 0.5),))])
    assert capacity.free("n")["gpu"] == 1
    assert capacity.short("n", {"gpu": 1}) == ("gpu",)


def test_one_and_a_half_gpus_are_a_whole_and_a_share() -> None:
    slot = Capacity(NODE).take(0, "n", {"gpu": 1.5})
    assert slot is not None
    assert slot.gpus == ((0, 1.0), (1, 0.5))


def test_custom_resources_are_counted_and_unknown_ones_are_missing() -> None:
    capacity = Capacity(NODE)
    slot = capacity.take(0, "n", {"cpu": 1, "gpu": 0, "ssd": 1})
    assert slot is not None
    assert slot.custom == {"ssd": 1}
    assert capacity.short("n", {"ssd": 0.5, "tpu": 1}) == ("ssd", "tpu")


def test_a_tenth_taken_ten_times_is_one() -> None:
    capacity = Capacity(ClusterView((NodeView("n", cpu=1, gpu=1),)))
    assert all(capacity.take(i, "n", {"cpu": 0.1, "gpu": 0.1}) for i in range(10))
    assert capacity.free("n") == {"cpu": 0, "gpu": 0}


def test_trying_on_a_copy_takes_nothing() -> None:
    capacity = Capacity(NODE)
    assert capacity.room("n", {"cpu": 1.5, "gpu": 1}, 9) == 2
    assert capacity.free("n") == {"cpu": 4, "gpu": 2, "ssd": 1}


@given(st.lists(st.sampled_from([0.1, 0.25, 0.5, 1, 2, 1.5]), max_size=12))
def test_no_device_is_given_away_twice(wishes: list[float]) -> None:
    capacity = Capacity(ClusterView((NodeView("n", gpu=4),)))
    shares: dict[int, float] = {}
    for i, gpu in enumerate(wishes):
        slot = capacity.take(i, "n", {"gpu": gpu})
        for index, share in slot.gpus if slot else ():
            shares[index] = shares.get(index, 0) + share
        assert slot is None or abs(sum(share for _, share in slot.gpus) - gpu) < 1e-9
    assert all(0 <= index < 4 and share < 1 + 1e-9 for index, share in shares.items())
