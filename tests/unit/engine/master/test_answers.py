"""The control socket: whatever comes, the master answers or drops it and lives; and no answer is larger than a page."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq

from rolemesh.api.observer import Event, JobStatus, RankStatus, StepMetrics
from rolemesh.runs.run import CONTROL_FILE
from rolemesh_dataplane.curve import new_keys
from rolemesh_durable.control.client import REQUEST_BYTES, ControlClient, MasterGoneError, RefusedError, Watch
from rolemesh_durable.extensions.rehearsal.requests import InjectFault, Release
from rolemesh_durable.master.answers import PAGE_BYTES, PAGE_EVENTS, PAGE_LINES, Answers
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.runs import ControlFile
from rolemesh_processes.boot import boot_id
from rolemesh_runtime.json_file import write_json

GARBAGE: list[list[bytes]] = [
    [],
    [b""],
    [b"\xc1"],
    [b"", b""],
    [b"", b"\xc1"],
    [b"1", b"", b"not msgpack at all"],
    [b"1", msgspec.msgpack.encode({"type": "Dance"})],
    [b"1", msgspec.msgpack.encode({"type": "Watch", "event": "one"})],
    [b"1", b"\x91" * 60_000],
    [b"x"] * 50,
    [b"1", os.urandom(REQUEST_BYTES - 100)],
    [b"1", bytes(REQUEST_BYTES + 1)],
]


class Served:
    """Real answers, served by a thread as the master's loop does."""

    def __init__(self, folder: Path, events: int = 0, lines: int = 0, values: int = 1, host: str = "") -> None:
        self.asked: list[e.Event] = []
        self.injected: list[tuple[str, str]] = []
        self.events = deque((Event(n + 1, 1, 0.0, "noise", {"n": n}) for n in range(events)), maxlen=4096)
        metrics = {f"metric-{n}": 0.5 for n in range(values)}
        self.lines = deque((StepMetrics(n, 1, 0.0, metrics, {}, {}) for n in range(lines)), maxlen=4096)
        self.endpoint = f"ipc://{folder}/master"
        self._context = zmq.Context()
        self._answers = Answers(
            self._context,
            self.endpoint,
            host,
            status=lambda: JobStatus("j", "running", 1, 0, 9, 0.0, 1, "", ranks=(RankStatus("a", 0, "", 1, "", 0),)),
            events=lambda: self.events,
            lines=lambda: self.lines,
            put=self.asked.append,
            others={InjectFault: self._inject},
        )
        self._poller = zmq.Poller()
        for socket in self._answers.sockets:
            self._poller.register(socket, zmq.POLLIN)
        self.control = ControlFile(
            "j", "j-1", "local", self.endpoint, 1, 0.0, "", "", boot_id(), self._answers.remote, self._answers.keys
        )
        write_json(folder / CONTROL_FILE, self.control)
        self.longest_s = 0.0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _inject(self, request: InjectFault) -> str:
        self.injected.append((request.kind, request.target))
        return "there is no such rank to inject a failure into" if request.target == "nobody/0" else ""

    def _serve(self) -> None:
        while not self._over.is_set():
            if self._poller.poll(10):
                began = time.thread_time()
                self._answers.serve()
                self.longest_s = max(self.longest_s, time.thread_time() - began)

    def close(self) -> None:
        self._over.set()
        self._thread.join()
        self._answers.close()
        self._context.term()


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="rolemesh-test-"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def serve(folder: Path) -> Iterator[Any]:
    made: list[Served] = []

    def start(**remembered: Any) -> Served:
        made.append(Served(folder, **remembered))
        return made[-1]

    yield start
    for served in made:
        served.close()


@pytest.mark.parametrize("kind", [zmq.DEALER, zmq.REQ])
def test_garbage_on_the_control_socket_keeps_nobody_from_an_answer(serve: Any, folder: Path, kind: int) -> None:
    served = serve()
    for frames in GARBAGE:
        with zmq.Context() as context, context.socket(kind) as stranger, ControlClient(folder, 20) as client:
            stranger.linger = 0
            stranger.connect(served.endpoint)
            stranger.send_multipart(frames or [b""])
            if frames != GARBAGE[-1]:
                stranger.poll(200)  # it may be answered or not
            assert client.status().name == "j"
    assert served.asked == []


def test_a_request_of_an_extension_goes_to_it_and_its_refusal_comes_back(serve: Any, folder: Path) -> None:
    served = serve()
    with ControlClient(folder, 20) as client:
        with pytest.raises(RefusedError, match="to inject a failure into"):
            client.ask(InjectFault("kill", "nobody/0"))
        client.ask(InjectFault("kill", "a/0"))
        with pytest.raises(RefusedError, match="no question to a master: Invalid value 'Release'"):
            client.ask(Release(3))
    assert served.injected == [("kill", "nobody/0"), ("kill", "a/0")]


def test_a_client_that_never_reads_costs_a_bounded_queue_and_the_others_nothing(serve: Any, folder: Path) -> None:
    served = serve(lines=4096, values=50)
    with zmq.Context() as context, context.socket(zmq.DEALER) as deaf, ControlClient(folder, 20) as client:
        deaf.linger = 0
        deaf.set_hwm(0)
        deaf.setsockopt(zmq.RCVHWM, 1)
        deaf.connect(served.endpoint)
        for number in range(200):
            deaf.send_multipart([bytes([number]), msgspec.msgpack.encode(Watch())])
        for _ in range(5):
            assert client.status().name == "j"


@pytest.mark.parametrize("values", [1, 2000])
def test_an_answer_is_a_page_however_far_behind_who_asks_is(serve: Any, folder: Path, values: int) -> None:
    served = serve(events=200_000, lines=4096 if values == 1 else 600, values=values)
    first = served.events[0].seq
    with ControlClient(folder, 20) as client:
        update = client.watch()
        assert len(msgspec.msgpack.encode(update)) < PAGE_BYTES + (1 << 20)
        assert [event.seq for event in update.events] == list(range(first, first + PAGE_EVENTS))
        assert len(update.lines) == PAGE_LINES if values == 1 else 0 < len(update.lines) < 600
        assert (update.event, update.step) == (200_000, served.lines[-1].step)

        event, step = 200_000 - 3, served.lines[-1].step - 2
        update = client.watch(event, step)
        assert [e.seq for e in update.events] == [event + 1, event + 2, event + 3]
        assert [line.step for line in update.lines] == [step + 1, step + 2]

        assert client.status().name == "j"
        assert not client.stop("please").events


def test_pages_follow_each_other_without_gap_to_the_end(serve: Any, folder: Path) -> None:
    serve(events=1300, lines=2500)
    events: list[int] = []
    steps = [-1]
    with ControlClient(folder, 20) as client:
        while True:
            update = client.watch(events[-1] if events else 0, steps[-1])
            events += [event.seq for event in update.events]
            steps += [line.step for line in update.lines]
            if events[-1] == update.event and steps[-1] == update.step:
                break
    assert events == list(range(1, 1301))
    assert steps == list(range(-1, 2500))


def test_from_another_machine_a_master_is_asked_over_tcp_with_the_keys_in_the_runs_folder(
    serve: Any, folder: Path
) -> None:
    served = serve(events=3, host="127.0.0.1")
    elsewhere = msgspec.structs.replace(served.control, boot="another machine's", endpoint="ipc:///nowhere/master")
    write_json(folder / CONTROL_FILE, elsewhere)
    assert os.stat(folder / CONTROL_FILE).st_mode & 0o077 == 0
    with ControlClient(folder, 20) as client:
        assert [event.seq for event in client.watch().events] == [1, 2, 3]
    keys = served.control.keys
    strangers = new_keys()
    wrong = msgspec.structs.replace(strangers, server_public=keys.server_public, server_secret="")
    write_json(folder / CONTROL_FILE, msgspec.structs.replace(elsewhere, keys=wrong))
    with ControlClient(folder, 0.5) as client, pytest.raises(MasterGoneError):
        client.status()
    write_json(folder / CONTROL_FILE, served.control)
    with ControlClient(folder, 20) as client:
        client.status()


def test_a_master_that_nobody_asks_from_elsewhere_listens_on_no_port(serve: Any) -> None:
    served = serve()
    assert served.control.remote == ""
    assert len(served._answers.sockets) == 1
