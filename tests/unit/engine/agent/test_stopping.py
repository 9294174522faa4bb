"""How a workload sees the end of its job: `teardown`, and a SIGTERM where an operator takes long."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from tests.unit.engine.agent.conftest import Node
from tests.waiting import HANG_S, until

from rolemesh_durable.protocol import messages as m

SLOW = """
import os
import signal
import subprocess
import sys
import time


class Work:
    def __init__(self, ctx):
        self.ctx = ctx
        self.say("pid", os.getpid())

    def say(self, *words):
        print(*words, flush=True)

    def step(self) -> None:
        self.say("begins")
        BODY
        self.say("ends")

    def teardown(self):
        self.say("teardown")
"""

FINISHES = "time.sleep(0.5)"
TAKES_LONG = """try:
            time.sleep(600)
        finally:
            self.say("cleans up")"""
HAS_A_HANDLER = """signal.signal(signal.SIGTERM, lambda *_: (self.say("its own handler"), os._exit(0)))
        time.sleep(600)"""
HAS_A_CHILD = """subprocess.run([sys.executable, "-c", CHILD])
        time.sleep(600)"""
LEAVES_A_THREAD = """import atexit, threading
        atexit.register(self.say, "handler")
        threading.Thread(target=lambda: (time.sleep(1.0), self.say("thread"))).start()"""
CHILD = """
import signal
import time


def end(*_):
    time.sleep(0.2)
    print("child ends", flush=True)
    exit(0)


signal.signal(signal.SIGTERM, end)
print("child is up", flush=True)
time.sleep(600)
"""


def lines(node: Node) -> list[str]:
    return [line for line in node.log("work").splitlines() if not line.startswith("pid")]


@pytest.mark.parametrize(
    ("body", "grace_s", "says"),
    [
        (FINISHES, 60.0, ["begins", "ends", "teardown"]),
        (TAKES_LONG, 4.0, ["begins", "cleans up", "teardown"]),
        (HAS_A_HANDLER, 4.0, ["begins", "its own handler"]),
        (HAS_A_CHILD, 4.0, ["begins", "child is up", "child ends", "teardown"]),
        (LEAVES_A_THREAD, 60.0, ["begins", "ends", "teardown", "thread", "handler"]),
    ],
    ids=["finishes", "takes long", "has a handler", "has a child", "leaves a thread"],
)
def test_an_operator_may_finish_and_one_that_takes_long_gets_a_sigterm(
    node: Callable[..., Node], body: str, grace_s: float, says: list[str]
) -> None:
    here = node(SLOW.replace("BODY", body).replace("CHILD", repr(CHILD)), {"work": "step"})
    here.launch("work")
    here.run("work", granted=0)
    until(lambda: "begins" in lines(here), "it computes")
    if body is HAS_A_CHILD:
        until(lambda: "child is up" in lines(here), "its child runs")
    here.stop(grace_s)
    here.thread.join(HANG_S)
    assert not here.thread.is_alive()
    assert lines(here) == says


def test_the_teardown_of_a_rank_may_take_longer_than_the_grace_if_the_job_is_over(node: Callable[..., Node]) -> None:
    here = node(SLOW.replace("BODY", LEAVES_A_THREAD), {"work": "step"})
    here.launch("work")
    here.run("work", granted=0)
    until(lambda: "ends" in lines(here), "it has computed")
    here.deliver(m.Stop(here.epoch, 0.2, patient=True))
    here.thread.join(HANG_S)
    assert lines(here) == ["begins", "ends", "teardown", "thread", "handler"]


def test_a_sigterm_from_elsewhere_ends_a_rank_as_it_always_has(node: Callable[..., Node]) -> None:
    here = node(SLOW.replace("BODY", TAKES_LONG), {"work": "step"})
    here.launch("work")
    here.run("work", granted=0)
    until(lambda: "begins" in lines(here), "it computes")
    os.kill(int(here.log("work").split()[1]), signal.SIGTERM)
    failure = here.rank("work", "failed").failure
    assert failure is not None
    assert (failure.cause, failure.signal) == ("signal", signal.SIGTERM)
