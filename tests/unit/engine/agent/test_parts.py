"""The parts of extensions in an agent that runs: without each of the shipped ones, and with a stranger's."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from tests.unit.engine.agent.conftest import COUNTS, Node
from tests.unit.engine.extensions.agent_process import Answer, Ask, Strange, Told
from tests.waiting import HANG_S

from rolemesh_durable.extensions import Extension, shipped
from rolemesh_durable.protocol.extension_message import FromPart, Sealed, ToPart

IN_AGENT = [each for each in shipped.SHIPPED if each.agent]


@pytest.mark.parametrize("removed", [None, *IN_AGENT], ids=lambda each: each.__name__ if each else "none")
def test_an_agent_runs_ranks_without_one_of_the_shipped_parts_and_with_a_strangers(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch, removed: type[Extension] | None
) -> None:
    left = tuple(each for each in shipped.SHIPPED if each is not removed)
    monkeypatch.setattr(shipped, "SHIPPED", (*left, Strange))
    agent = node(COUNTS, {"work": "step"}, steps=3)
    agent.launch("work")
    agent.run("work", granted=3)
    done = agent.rank("work", "done")
    told = agent.until(lambda report: report.part(Told), "the stranger's report")
    assert told.calls[0] == "starting work/0"
    agent.deliver(ToPart.of(agent.epoch, Ask("alive")))
    answers = (message for message in iter(lambda: agent.sent.get(), None) if isinstance(message, FromPart))
    assert next(answers) == FromPart(Sealed.of(Answer("alive: yes")))
    os.kill(done.pid, signal.SIGKILL)
    agent.until(lambda report: "gone work/0/0" in report.part(Told).calls, "the end of the rank's process")
    agent.stop()
    agent.thread.join(HANG_S)
    assert (agent.run_dir / "logs" / "closed").exists()
