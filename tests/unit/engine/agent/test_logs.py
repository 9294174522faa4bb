"""The last lines that a rank printed before its process ended. The failure has them, without earlier generations."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.unit.engine.agent.conftest import Node

from rolemesh_durable.agent.logs import TAIL_BYTES, TAIL_LINES, Logs
from rolemesh_durable.protocol import messages as m

ABORTS = """
import os
import sys


class Work:
    def step(self) -> None:
        print("NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.", file=sys.stderr, flush=True)
        os.abort()
"""


def test_a_failure_contains_the_processs_output(node: Callable[..., Node]) -> None:
    here = node(ABORTS, {"work": "step"}, steps=1)
    here.launch("work")
    here.run("work", granted=0)
    failure = here.rank("work", "failed").failure
    assert failure is not None
    assert failure.cause == "signal"
    assert "GPU has fallen off the bus." in failure.log_tail


RAISES = """
class Work:
    def step(self) -> None:
        raise ValueError("boom")
"""


def test_a_failure_is_what_the_rank_has_kept_though_its_message_is_never_read(
    node: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a busy machine, where the message comes later than the news that the process has ended."""
    decode = m.decode_rank_to_agent

    def lost(frame: bytes) -> m.RankToAgent:
        found = decode(frame)
        return m.RankFinish("work", 0, found.failure.generation, "") if isinstance(found, m.RankFailed) else found

    monkeypatch.setattr(m, "decode_rank_to_agent", lost)
    here = node(RAISES, {"work": "step"}, steps=1)
    here.launch("work")
    here.run("work", granted=0)
    failure = here.rank("work", "failed").failure
    assert failure is not None
    assert (failure.cause, failure.operator, failure.message) == ("exception", "work.step", "ValueError: boom")


def test_the_tail_is_short_and_of_the_latest_generation(tmp_path: Path) -> None:
    logs = Logs(tmp_path)
    assert logs.tail("work", 0) == "", "there is no file"
    log = Path(logs.begin("work", 0))
    log.write_text("".join(f"line {n}\n" for n in range(1000)))
    assert logs.tail("work", 0).splitlines() == [f"line {n}" for n in range(1000 - TAIL_LINES, 1000)]
    logs.begin("work", 0)
    assert logs.tail("work", 0) == ""
    with log.open("ab") as more:
        more.write(b"\xff\n\n   \nlast words\n")
    assert logs.tail("work", 0) == "\N{REPLACEMENT CHARACTER}\nlast words"
    with log.open("ab") as more:
        more.write(b"x" * 10 * TAIL_BYTES)
    assert len(logs.tail("work", 0)) == TAIL_BYTES
    log.write_text("cut")
    assert logs.tail("work", 0) == "", "somebody has cut it: nothing is known to be of this generation"
