"""The standard tests of checks, with little work for each."""

from __future__ import annotations

import pytest

from rolemesh_testing import CheckConformance


class TestDisk(CheckConformance):
    plugin = "disk"
    options = {"mb": 1}
    bad_options = ({"mb": 0}, {"timeout_s": 0}, {"slower": 1})


class TestNetwork(CheckConformance):
    plugin = "network"
    options = {"mb": 1}
    bad_options = ({"mb": 0}, {"slower": 0.5})
    alone = False


@pytest.mark.soak
class TestSharedMemory(CheckConformance):
    plugin = "shm"
    bad_options = ({"timeout_s": 0},)


@pytest.mark.soak
class TestMemory(CheckConformance):
    plugin = "memory"
    bad_options = ({"mb": 0},)


@pytest.mark.soak
class TestMatmul(CheckConformance):
    plugin = "matmul"
    bad_options = ({"size": 0},)
