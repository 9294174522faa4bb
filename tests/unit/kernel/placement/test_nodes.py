"""``--nodes``: clusters that are described instead of seen."""

from __future__ import annotations

import pytest

from rolemesh.api.cluster import NodeView
from rolemesh.errors import PlacementError
from rolemesh.placement.nodes import parse_nodes


def test_groups_become_numbered_nodes() -> None:
    view = parse_nodes("2x(cpu=32,gpu=8), (cpu=1.5, label.rack=a, label.zone=eu, custom.ssd=2)")
    assert view.nodes == (
        NodeView("node-0", cpu=32, gpu=8),
        NodeView("node-1", cpu=32, gpu=8),
        NodeView("node-2", cpu=1.5, custom={"ssd": 2}, labels={"rack": "a", "zone": "eu"}),
    )


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "is no group of nodes"),
        ("4", "'4' is no group of nodes"),
        ("(cpu=1),", "is no group of nodes"),
        ("(cpu=1)(cpu=2)", r"a comma is missing before '\(cpu=2\)'"),
        ("(cpus=1)", r"unknown key 'cpus'\n  → did you mean 'cpu'"),
        ("(cpu)", "'cpu' is not key=value"),
        ("(cpu=lots)", "cpu is 'lots', not an amount"),
        ("(cpu=-1)", "cpu is '-1', not an amount"),
        ("(cpu=nan)", "cpu is 'nan', not an amount"),
        ("(gpu=0.5)", "a node has whole GPUs"),
        ("0x(cpu=1)", "describes no node"),
    ],
)
def test_an_error_quotes_the_wrong_text(text: str, problem: str) -> None:
    with pytest.raises(PlacementError, match=problem):
        parse_nodes(text)
