"""The ladders of the README work as written."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from rolemesh_failover_job import JobLevel
from rolemesh_failover_more_memory import MoreMemoryLevel
from rolemesh_failover_node import NodeLevel
from rolemesh_failover_process import ProcessLevel
from rolemesh_failover_shrink import ShrinkLevel

LEVELS = {
    "process": ProcessLevel,
    "node": NodeLevel,
    "more-memory": MoreMemoryLevel,
    "shrink": ShrinkLevel,
    "job": JobLevel,
}


def test_the_readmes_ladders_have_levels_and_options_that_exist() -> None:
    text = (Path(__file__).parents[1] / "README.md").read_text()
    ladders = [yaml.safe_load(each)["failover"] for each in re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)]
    for use in (use for ladder in ladders for use in ladder):
        LEVELS[use["use"]].Options(**use.get("options", {}))
    assert [[use["use"] for use in ladder] for ladder in ladders] == [
        ["process", "node", "job"],
        ["more-memory", "process", "job"],
        ["process", "node", "shrink", "job"],
    ]
