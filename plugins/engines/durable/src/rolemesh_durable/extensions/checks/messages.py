"""The messages between the parts of checks in the master and in the agents."""

from __future__ import annotations

from typing import TypeAlias

import msgspec

__all__ = ["Measure", "Measured", "Measurements", "NodeMeasured"]


class Measured(msgspec.Struct, frozen=True):
    """The result of a check on a node: numbers of which more is better, or the reason why there are none."""

    check: str
    values: dict[str, float] = {}
    error: str = ""


Measurements: TypeAlias = tuple[Measured, ...]
"""The results of all checks of a job on a node."""


class Measure(msgspec.Struct, frozen=True, tag="checks.measure"):
    """Run the job's checks once on this node and report the results. Other agents do so on the nodes `together`."""

    together: tuple[str, ...]


class NodeMeasured(msgspec.Struct, frozen=True, tag="checks.measured"):
    """All the job's checks have run on the agent's node. The agent reports this from then on."""

    results: Measurements
