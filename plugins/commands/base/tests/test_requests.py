"""How verbs send a request to a master, and wait for its outcome."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from rolemesh.api.observer import Event
from rolemesh.runs.run import CONTROL_FILE
from rolemesh_durable.api.jobs import ControlClient, LivingRun, MasterGoneError, Request, ask
from rolemesh_durable.control.client import FinishJob
from rolemesh_jobs.asking import request


class Finish(Request):
    """Asks for the end, and takes the event ``job_ended`` for the outcome."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    def send(self, client: ControlClient) -> None:
        client.finish("the test")

    def is_accepted(self, event: Event) -> bool:
        return event.kind == "job_finishing"

    def is_outcome(self, accepted: Event, event: Event) -> bool:
        return event.kind == "finished" and event.data["number"] == accepted.data["number"]

    def progress(self, event: Event) -> None:
        self.seen.append(event.kind)


def asked(master: Any) -> bool:
    return any(isinstance(each, FinishJob) for each in master.requests)


def test_a_request_is_accepted_by_one_event_and_ends_with_another(start_master: Any) -> None:
    master = start_master()

    def answer() -> None:
        while not asked(master):
            over.wait(0.01)
        for kind, number in (("noise", 7), ("job_finishing", 7), ("later", 7), ("finished", 6), ("finished", 7)):
            master.journal(kind, number=number)

    over = threading.Event()
    thread = threading.Thread(target=answer)
    thread.start()
    finish = Finish()
    told = request(LivingRun(master.run_dir), finish, wait=True)
    thread.join()
    assert told is not None
    assert (told.kind, told.data) == ("finished", {"number": 7})
    assert finish.seen == ["later", "finished"], "events from the acceptance to the outcome"


def test_a_request_waits_for_the_next_master(start_master: Any) -> None:
    master = start_master()
    control: Path = master.run_dir / CONTROL_FILE
    content, silences = control.read_bytes(), []
    control.unlink()

    def silent() -> None:
        silences.append(asked(master))
        if len(silences) == 3:
            control.write_bytes(content)

    told = ask(master.run_dir, Finish(), lambda: asked(master), silent=silent)
    assert told is None
    assert silences == [False] * 3, "the master that has come answers"


def test_a_request_to_a_job_without_processes_and_result_fails(start_master: Any) -> None:
    master = start_master()
    (master.run_dir / CONTROL_FILE).unlink()
    with pytest.raises(MasterGoneError, match="the master of job grpo is gone"):
        request(LivingRun(master.run_dir), Finish(), wait=True)


def test_a_request_to_a_job_that_ends_has_no_outcome(start_master: Any) -> None:
    master = start_master()
    master.end()
    assert request(LivingRun(master.run_dir), Finish(), wait=True) is None
