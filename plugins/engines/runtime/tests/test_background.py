"""Observers run beside the process that has the events, each at its own speed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from tests.waiting import HANG_S, until

from rolemesh.api.observer import Event, Missed, StepMetrics
from rolemesh_runtime import background
from rolemesh_runtime.background import Background, Teller


class Recorder:
    """Notes its calls; waits at the first until it may go on."""

    def __init__(self, waits: bool = True) -> None:
        self.seen: list[tuple[str, Any]] = []
        self.entered, self.go_on = threading.Event(), threading.Event()
        if not waits:
            self.go_on.set()

    def broadcast(self, hook: str, /, **arguments: Any) -> None:
        self.entered.set()
        assert self.go_on.wait(HANG_S)
        self.seen.append((hook, next(iter(arguments.values()))))

    def each(self) -> Mapping[str, Teller]:
        return {"slow": self.broadcast}

    @property
    def steps(self) -> list[int]:
        return [line.step for hook, lines in self.seen if hook == "steps_finished" for line in lines]


class Both:
    """Two observers."""

    def __init__(self, slow: Recorder, quick: Recorder) -> None:
        self._both = {"slow": slow.broadcast, "quick": quick.broadcast}

    def each(self) -> Mapping[str, Teller]:
        return self._both


def line(step: int) -> StepMetrics:
    return StepMetrics(step, 1, 0.0, {}, {}, {})


def event(seq: int) -> Event:
    return Event(seq, 1, 0.0, "rank_up", {})


def test_a_problem_lasts_until_the_observers_next_answer() -> None:
    answers: list[Any] = ["no service", "still none", None, "none again", 5]

    class Picky:
        def each(self) -> Mapping[str, Teller]:
            return {"picky": lambda hook, event: answers[event.seq], "content": lambda hook, event: ""}

    relay = Background(Picky())

    def told(number: int, *shown: str) -> None:
        relay.broadcast("event", event=event(number))
        until(lambda: relay.warnings == shown, what=f"the job shows {shown}")

    told(0, "observer picky: no service")
    told(1, "observer picky: still none")
    told(2)
    told(3, "observer picky: none again")
    told(4)
    relay.close()


def test_hooks_are_called_in_order_and_only_with_the_latest_waiting_status() -> None:
    slow = Recorder()
    relay = Background(slow)
    relay.broadcast("event", event=1)
    assert slow.entered.wait(HANG_S)
    for number in range(3):
        relay.broadcast("status", status=number)
    relay.broadcast("event", event=2)
    relay.close()

    assert not relay.wait(0)
    slow.go_on.set()
    assert relay.wait(HANG_S)
    assert slow.seen == [("event", 1), ("status", 2), ("event", 2)]


def test_a_hung_observer_delays_no_other_and_its_missed_events_are_reported() -> None:
    slow, quick = Recorder(), Recorder(waits=False)
    relay = Background(Both(slow, quick))
    relay.broadcast("job_started", run="run")
    assert slow.entered.wait(HANG_S)
    relay.broadcast("event", event=event(1))
    relay.broadcast("steps_finished", metrics=(line(0), line(1)))
    relay.broadcast("job_ended", result="result")
    relay.close()
    while [hook for hook, _ in quick.seen][-1:] != ["job_ended"]:
        assert not relay.wait(0.01)

    assert quick.steps == [0, 1]
    assert not relay.hang(1e9)
    assert relay.hang(0.0)
    (said,) = relay.give_up()
    assert said.startswith("observer slow has not returned from its hook 'job_started' for ")
    assert said.endswith(
        "it has not been told of 1 events (1 to 1) and 2 lines of metrics (steps 0 to 1) and the job's end"
    )
    slow.go_on.set()


def test_a_slow_observer_gets_missed_in_place_of_the_oldest_notifications(caplog: pytest.LogCaptureFixture) -> None:
    slow = Recorder()
    relay = Background(slow, most_behind=4)
    relay.broadcast("job_started", run="run")
    assert slow.entered.wait(HANG_S)
    with caplog.at_level(logging.WARNING):
        for step in range(10):
            relay.broadcast("steps_finished", metrics=(line(step),))
            relay.broadcast("event", event=event(step + 1))
    relay.broadcast("job_ended", result="result")
    (warning,) = relay.warnings
    assert "too slow for this job" in warning
    relay.close()
    slow.go_on.set()
    assert relay.wait(HANG_S)

    missed = Missed(events=8, first_event=1, last_event=8, lines=8, first_step=0, last_step=7)
    assert slow.seen[:2] == [("job_started", "run"), ("missed", missed)]
    assert slow.steps == [8, 9]
    assert slow.seen[-1] == ("job_ended", "result")
    assert caplog.text.count("it is not told of everything") == 1
    assert relay.warnings == ()


def test_lines_that_wait_are_passed_on_together() -> None:
    slow = Recorder()
    relay = Background(slow)
    relay.broadcast("event", event=event(1))
    assert slow.entered.wait(HANG_S)
    for step in range(3):
        relay.broadcast("steps_finished", metrics=(line(step),))
    relay.close()
    slow.go_on.set()
    assert relay.wait(HANG_S)
    assert [hook for hook, _ in slow.seen] == ["event", "steps_finished"]


def test_a_caller_with_more_events_waits_for_a_working_observer_and_for_no_hung_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(background, "HANGS_S", 0.05)
    slow, quick = Recorder(), Recorder(waits=False)
    relay = Background(Both(slow, quick), most_behind=8)
    for step in range(100):
        relay.settle()
        relay.broadcast("steps_finished", metrics=(line(step),))
    slow.go_on.set()
    relay.close()
    assert relay.wait(HANG_S)
    assert quick.steps == list(range(100))
    (missed,) = [what for hook, what in slow.seen if hook == "missed"]
    assert missed.last_step == 91
