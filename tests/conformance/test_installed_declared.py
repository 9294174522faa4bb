"""The commands, the kinds and the scaler of this repository pass the conformance kit."""

from __future__ import annotations

import pytest
from tests.conformance.harness import outcomes

from rolemesh.plugins.discovery import discover
from rolemesh_testing import CommandConformance, KindConformance, ScalerConformance
from rolemesh_testing.kinds.declared import declared

COMMANDS = [record.name for record in discover(("commands",)) if record.distribution.startswith("rolemesh")]
KINDS = [record.name for record in declared() if record.distribution.startswith("rolemesh")]
OFTEN = ("status", "run.chaos", "plan.traffic", "sources")
"""One of each sort; all are imported for ``-m soak``."""


class TestRoom(ScalerConformance):
    plugin = "room"
    options = {"per_node": 2}
    bad_options = ({"per_node": 0}, {"agree": 0})


@pytest.mark.parametrize(
    "name", [n if n in OFTEN else pytest.param(n, marks=pytest.mark.soak) for n in (*COMMANDS, *KINDS)]
)
def test_a_command_or_a_kind_of_this_repository_passes(name: str) -> None:
    kit = CommandConformance if name in COMMANDS else KindConformance
    found = outcomes({"TestIt": type("TestIt", (kit,), {"plugin": name})})
    assert not found.failed, found.output
