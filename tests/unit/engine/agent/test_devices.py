"""Which devices a rank sees."""

from rolemesh_durable.agent.devices import visible_devices


def test_without_a_choice_of_the_backend_the_plans_indices_are_the_nodes() -> None:
    assert visible_devices([1, 3], [0, 1, 3], {}) == "1,3"


def test_devices_that_the_backend_chose_stand_for_the_plans_in_order() -> None:
    assert visible_devices([3], [0, 1, 3], {"CUDA_VISIBLE_DEVICES": "4,5,GPU-7"}) == "GPU-7"


def test_a_rank_without_devices_sees_none() -> None:
    assert visible_devices([], [0], {"CUDA_VISIBLE_DEVICES": "2"}) == ""
