"""Following a job: every event and step once and in order, to its end, whatever the master still remembers."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
from tests.waiting import HANG_S, until

from rolemesh_durable.control.client import ControlClient, MasterGoneError, Update, Watch
from rolemesh_durable.control.watch import follow
from rolemesh_durable.driver import stop_job
from rolemesh_runtime.background import Teller
from rolemesh_runtime.unreadable import UnreadableError

FAST = 0.01


class Seen:
    """Keeps what is broadcast; `when` maps a hook to what to do at its first call."""

    def __init__(self, **when: Callable[[], None]) -> None:
        self.calls: list[tuple[str, Any]] = []
        self._when = when

    def each(self) -> dict[str, Teller]:
        return {"seen": self.broadcast}

    def broadcast(self, hook: str, /, **arguments: Any) -> None:
        self.calls.append((hook, next(iter(arguments.values()))))
        if hook in self._when:
            self._when.pop(hook)()

    @property
    def steps(self) -> list[int]:
        return [line.step for hook, lines in self.calls if hook == "steps_finished" for line in lines]

    @property
    def kinds(self) -> list[str]:
        return [event.kind for hook, event in self.calls if hook == "event"]


def test_observers_see_every_event_and_step_once_and_then_the_end(start_master: Any) -> None:
    master = start_master()
    master.journal("job_started")
    master.step(reward=0.5)

    def more() -> None:
        master.journal("job_running")
        master.step(reward=0.75)
        master.end()

    seen = Seen(status=more)
    result = follow(master.run_dir, seen, owner=False, interval_s=FAST)

    assert result is not None
    assert result["status"] == "done"
    assert seen.kinds == ["job_started", "job_running", "job_ended"]
    assert seen.steps == [0, 1]
    assert seen.calls[-1] == ("job_ended", result)


def test_events_that_the_master_has_forgotten_come_from_the_runs_files(start_master: Any) -> None:
    master = start_master(remembers=2)
    for _ in range(6):
        master.step(reward=0.0)
    seen = Seen(status=master.end)
    follow(master.run_dir, seen, owner=False, interval_s=FAST)

    assert seen.steps == [0, 1, 2, 3, 4, 5]


def test_a_job_that_has_ended_is_shown_from_its_files(start_master: Any) -> None:
    master = start_master()
    master.journal("job_started")
    master.step(reward=0.5)
    master.end("failed", 1, "role trainer died")
    seen = Seen()
    result = follow(master.run_dir, seen, owner=False, interval_s=FAST)

    assert result is not None
    assert result["message"] == "role trainer died"
    assert seen.kinds == ["job_started", "job_ended"]
    assert seen.steps == [0]
    assert master.requests == []


def test_a_master_that_dies_without_a_result_is_given_up(start_master: Any) -> None:
    master = start_master()
    seen = Seen(status=master.die)

    assert follow(master.run_dir, seen, owner=False, interval_s=FAST, patience_s=0.2) is None
    assert "job_ended" not in [hook for hook, _ in seen.calls]


def test_the_result_of_an_earlier_job_of_this_name_is_not_taken_for_this_ones(start_master: Any) -> None:
    master = start_master()
    (master.run_dir / "result.json").write_text('{"job_id": "an earlier one", "status": "failed"}')
    result = follow(master.run_dir, Seen(status=master.end), owner=False, interval_s=FAST)

    assert result is not None
    assert result["status"] == "done"


def test_a_result_that_cannot_be_read_does_not_end_the_watch(
    start_master: Any, caplog: pytest.LogCaptureFixture
) -> None:
    master = start_master()
    place = master.run_dir / "result.json"
    place.mkdir()  # reading it fails, as on a broken disk

    def mend() -> None:
        place.rmdir()
        master.end()

    def start_after_some_looks() -> None:
        until(lambda: caplog.records)
        asked = len(master.requests)
        until(lambda: len(master.requests) > asked + 5)
        master.journal("job_started")

    seen = Seen(event=mend)
    threading.Thread(target=start_after_some_looks).start()
    result = follow(master.run_dir, seen, owner=True, interval_s=FAST)

    assert result is not None
    assert result["status"] == "done"
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "result.json: the file cannot be read: it is no regular file" in warning


def test_a_result_that_cannot_be_read_after_the_master_is_gone_is_an_error(start_master: Any) -> None:
    master = start_master()
    (master.run_dir / "result.json").mkdir()
    with pytest.raises(UnreadableError, match="no regular file"):
        follow(master.run_dir, Seen(status=master.die), owner=False, interval_s=FAST, patience_s=0.2)


def test_a_master_that_answers_is_asked_again_without_a_look_at_the_store(start_master: Any) -> None:
    master = start_master()
    with ControlClient(master.run_dir, 5.0) as client:
        client.status()
        address = master.run_dir / "control.json"
        address.rename(master.run_dir / "elsewhere")
        client.status()
        master.die()
        with pytest.raises(MasterGoneError):
            client.status()


@pytest.mark.parametrize("owner", [True, False])
def test_the_master_learns_the_owner_of_the_job(start_master: Any, owner: bool) -> None:
    master = start_master()
    follow(master.run_dir, Seen(status=master.end), owner=owner, interval_s=FAST)

    assert master.requests
    assert all(isinstance(request, Watch) and request.owner is owner for request in master.requests)


def test_a_master_that_is_started_again_is_waited_for_however_long_it_takes(start_master: Any) -> None:
    master = start_master()
    asked = 0

    def alive() -> bool:
        nonlocal asked
        asked += 1
        if asked == 3:
            master.come_up()
            master.journal("master_recovered")
        return True

    seen = Seen(status=master.die, event=master.end)
    result = follow(master.run_dir, seen, owner=True, interval_s=FAST, patience_s=0.0, alive=alive)

    assert result is not None
    assert result["status"] == "done"
    assert asked >= 3


def test_a_result_that_a_master_leaves_as_it_goes_is_not_missed(start_master: Any) -> None:
    master = start_master()

    def alive() -> bool:
        master.end()
        return False

    seen = Seen(status=master.die)
    result = follow(master.run_dir, seen, owner=True, interval_s=FAST, patience_s=0.0, alive=alive)

    assert result is not None
    assert seen.calls[-1] == ("job_ended", result)


def test_a_question_that_was_not_answered_in_time_does_not_spoil_the_next(start_master: Any) -> None:
    master = start_master()
    with ControlClient(master.run_dir, 0.1) as client:
        until_answered(client)
        master.answers.clear()
        with pytest.raises(MasterGoneError, match="pid 4242"):
            all(iter(client.watch, None))  # the master may have been about to answer once more
        master.answers.set()
        assert until_answered(client).status.name == "grpo"


def test_the_next_question_goes_to_the_master_that_there_is_by_then(start_master: Any) -> None:
    master = start_master()
    with ControlClient(master.run_dir, 0.1) as client:
        until_answered(client)
        master.die()
        with pytest.raises(MasterGoneError):
            client.watch()
        master.come_up()
        assert until_answered(client).status.name == "grpo"


def test_a_ctrl_c_while_the_master_is_away_stops_the_job_when_it_is_back(start_master: Any) -> None:
    master = start_master()
    master.die()
    asking = threading.Thread(target=stop_job, args=(master.run_dir, "a test"))
    asking.start()
    asking.join(0.3)
    assert asking.is_alive()
    master.come_up()
    asking.join()

    assert [request.reason for request in master.requests] == ["a test"]


def until_answered(client: ControlClient) -> Update:
    deadline = time.monotonic() + HANG_S
    while True:
        try:
            return client.watch()
        except MasterGoneError:
            assert time.monotonic() < deadline


def _interrupt() -> None:
    os.kill(os.getpid(), signal.SIGINT)


def test_ctrl_c_leaves_the_job_alone(start_master: Any) -> None:
    master = start_master()
    with pytest.raises(KeyboardInterrupt):
        follow(master.run_dir, Seen(status=_interrupt), owner=False, interval_s=FAST)

    assert all(isinstance(request, Watch) for request in master.requests)


def test_after_the_first_ctrl_c_nothing_is_repeated_and_the_end_is_awaited(start_master: Any) -> None:
    master = start_master()
    master.journal("job_started")
    master.step(reward=0.5)
    seen = Seen(status=_interrupt)
    result = follow(
        master.run_dir, seen, owner=True, interval_s=FAST, interrupted=lambda: master.end("interrupted", 130)
    )

    assert result is not None
    assert result["status"] == "interrupted"
    assert seen.kinds == ["job_started", "job_ended"]
    assert seen.steps == [0]


def test_a_late_answer_is_not_waited_for_and_not_taken_for_that_of_the_next_question(start_master: Any) -> None:
    """The answer to the first question comes while the second one waits, and to that one nobody answers."""
    master = start_master()
    with ControlClient(master.run_dir, 0.2) as client:
        until_answered(client)
        master.hush()
        for _ in range(2):
            with pytest.raises(MasterGoneError):
                client.watch()
        asked = len(master.requests)
        threading.Timer(0.05, master.answer_one).start()
        began = time.monotonic()
        with pytest.raises(MasterGoneError):
            client.stop("never answered")
        while len(master.requests) == asked:  # on a busy machine the answer comes later still
            assert time.monotonic() - began < 60
            time.sleep(FAST)
        assert len(master.requests) == asked + 1
