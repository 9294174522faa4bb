"""The standard tests of a workload, for a script."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rolemesh_testing import WorkloadConformance

SCRIPT = """
import torch

weight = torch.nn.Parameter(torch.zeros(4))
optimizer = torch.optim.SGD([weight], lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    weight.sum().backward()
    optimizer.step()
"""


class TestScript(WorkloadConformance):
    plugin = "script"
    options = {"target": "train.py"}
    bad_options = ({"how": "folder"}, {"max_restarts": -1})
    world_sizes = (1, 2)
    steps = 1

    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        """The folder of the script."""
        (tmp_path / "train.py").write_text(SCRIPT)
        return tmp_path

    def step(self, role: Any, step: int) -> None:
        role.step()
