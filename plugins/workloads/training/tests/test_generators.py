"""The states of the generators: what is drawn after they are put back is what was drawn before."""

import random

import numpy as np
import pytest
import torch

from rolemesh_training.generators import generator_states, restore_generators, seed_generators

CPU = torch.device("cpu")


def draw() -> list[float]:
    normal = [np.random.normal() for _ in range(3)], [random.gauss() for _ in range(3)], torch.randn(3).tolist()
    return [*normal[0], *normal[1], *normal[2], np.random.rand(), random.random()]


@pytest.mark.parametrize("before", range(3))
def test_a_state_continues_in_the_middle_of_a_pair_of_normal_variates(before: int) -> None:
    seed_generators(2**63 - 1)
    for _ in range(before):
        np.random.normal(), random.gauss()
    states = generator_states(CPU)
    wanted = draw()
    seed_generators(7)
    restore_generators(states, CPU)
    assert draw() == wanted


def test_a_snapshot_of_an_older_version_restores_torch_alone() -> None:
    seed_generators(1)
    states = {"cpu": generator_states(CPU)["cpu"]}
    wanted = torch.rand(1)
    seed_generators(2)
    numpys = np.random.get_state()[1].tolist()
    restore_generators(states, CPU)
    assert torch.rand(1) == wanted
    assert np.random.get_state()[1].tolist() == numpys
