"""``breakpoint()`` in a rank: no debugger that reads nothing, but an error that says where there is a terminal."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.unit.engine.agent.conftest import Node

STOPS = """
class Work:
    def step(self) -> None:
        breakpoint()
"""


def test_a_breakpoint_error_has_a_remedy(node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)  # Ray names a debugger in each process that it is used in
    here = node(STOPS, {"work": "step"}, steps=1)
    here.launch("work")
    here.run("work", granted=0)
    failure = here.rank("work", "failed").failure
    assert failure is not None
    assert failure.cause == "exception"
    assert "rolemesh run JOB --engine inline" in failure.message
    assert "breakpoint()" in failure.traceback


@pytest.mark.parametrize("hook", ["0", "builtins.print"])
def test_a_debugger_of_ones_own_is_left(node: Callable[..., Node], hook: str) -> None:
    here = node(STOPS, {"work": "step"}, steps=1, env={"PYTHONBREAKPOINT": hook})
    here.launch("work")
    here.run("work", granted=0)
    here.rank("work", "done")
