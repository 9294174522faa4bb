"""The harness `program` before the conformance kit, with a program that calls the environment's tools."""

from __future__ import annotations

from pathlib import Path

from rolemesh_testing import HarnessConformance


class TestProcess(HarnessConformance):
    plugin = "program"
    options = {"command": ["{python}", str(Path(__file__).parent / "programs" / "tools.py")]}
    kills = 2
    bad_options = ({"command": []}, {"command": ["x"], "reward": "luck"})
