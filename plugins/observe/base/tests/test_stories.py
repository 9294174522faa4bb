"""The stories of failures name what a rehearsal did to their ranks."""

from __future__ import annotations

from rolemesh.api.observer import Event
from rolemesh_facts.recoveries import stories
from rolemesh_view.stories import told_of


def test_a_failure_that_was_injected_belongs_to_the_recovery_of_its_rank() -> None:
    """Two ranks are hit within 10 ms, then an agent, with no rank of that name."""

    def failed(at: float, role: str, number: int) -> list[Event]:
        failure = {"role": role, "rank": 0, "message": "gone"}
        planned = {"number": number, "plan": {"level": "process"}}
        return [Event(0, 1, at, "failure", {"failure": failure}), Event(0, 1, at + 0.01, "recovery_planned", planned)]

    def injected(at: float, target: str) -> Event:
        return Event(0, 1, at, "injected", {"kind": "kill", "target": target})

    events = [injected(9.7, "a/0"), injected(9.71, "b/0"), *failed(10.0, "a", 1), *failed(10.1, "b", 2)]
    events += [Event(0, 1, 11.0, "recovered", {"number": 2}), injected(19.5, "node1"), *failed(20.0, "b", 3)]
    told = [[*each.injected] for each in told_of(stories(events), events, "done")]
    assert told == [["rehearsal: kill a/0"], ["rehearsal: kill b/0"], ["rehearsal: kill node1"]]
