"""A process of the same user sends what is no message to every socket of a job: the job does not care."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import zmq
from tests.e2e.harness import Job
from tests.waiting import HANG_S, until
from zmq.utils.monitor import recv_monitor_message

GARBAGE = [
    [b""],
    [b"\xc1"],
    [b"", b""],
    [b"a", b"b", b"c", b"d", b"e"],
    [msgspec.msgpack.encode({"type": "Report"})],
    [msgspec.msgpack.encode({"type": "RankMetrics", "role": 1})],
    [b"\x91" * 60_000],
    [os.urandom(100), os.urandom(200_000)],
    *([bytes([tag]) + os.urandom(size)] for tag in range(16) for size in (0, 1, 19)),
]


def takes_packets(path: Path) -> bool:
    """Whether it is one of those on which a zygote waits for its agent's next incarnation."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
        return stranger.connect_ex(str(path)) == errno.EPROTOTYPE


def throw_packets(path: Path) -> None:
    """Everything in `GARBAGE`, each in a connection of its own: the zygote closes it as soon as it has read it."""
    for frames in GARBAGE:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as stranger:
            stranger.settimeout(HANG_S)
            stranger.connect(str(path))
            stranger.send(b"".join(frames)[:100_000])
            assert stranger.recv(1000) == b""


def throw_messages(path: Path) -> bool:
    """Everything in `GARBAGE`, as sockets of each kind that may connect, and under the name of no agent.

    A socket whose kind does not fit ends the connection itself for good, and then has nowhere to send to. It sends the
    greeting only. Return whether any fits.
    """
    fits = False
    with zmq.Context() as context:
        for kind, name in ((zmq.PUSH, b""), (zmq.DEALER, b""), (zmq.DEALER, b"\xff/1"), (zmq.DEALER, b"node0/one")):
            with context.socket(kind) as stranger:
                stranger.linger, stranger.sndtimeo = 500, 30_000  # whoever listens there may have ended
                if name:
                    stranger.identity = name
                greeted = stranger.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
                stranger.connect(f"ipc://{path}")
                assert greeted.poll(30_000), path
                if recv_monitor_message(greeted)["event"] == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    fits = True
                    for frames in GARBAGE:
                        stranger.send_multipart(frames)
                stranger.disable_monitor()
    return fits


def throw_bytes(path: Path) -> None:
    """Everything in `GARBAGE`, in connections of their own."""
    for frames in GARBAGE:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stranger:
            stranger.connect(str(path))
            with contextlib.suppress(ConnectionError):  # it may close the connection before it has read all
                stranger.sendall(b"".join(frames))


def sockets_of(job_id: str) -> list[Path]:
    folders = Path(tempfile.gettempdir()).glob(f"*{job_id}*")
    found = [path for folder in folders for path in folder.rglob("*") if stat.S_ISSOCK(path.lstat().st_mode)]
    return sorted(found)


def test_garbage_on_every_socket_of_a_job_is_dropped_counted_and_said(make_job: Callable[..., Job]) -> None:
    job = make_job(extra="failover: [{use: process}]\n")
    process = job.start("steps=100000", "engine.options.grant=20", "roles.work.options.kwargs.sleep=0.01")
    job.running()
    (job_id,) = job.ids()
    sockets = sockets_of(job_id)
    assert len(sockets) >= 7, sockets  # the master's two, the agent's, and an inbox per rank
    packets = [path for path in sockets if takes_packets(path)]
    assert packets
    for path in packets:
        throw_packets(path)
    others = [path for path in sockets if path not in packets and not throw_messages(path)]
    assert [path.name for path in others] == ["supervisor"]
    throw_bytes(*others)
    until(lambda: any(event["kind"] == "connections_refused" for event in job.events()), what="it is journalled")

    assert job.cli("stop", "squares", "--drain").returncode == 0
    out, _ = process.communicate()
    assert process.returncode == 0, out
    result = job.result()
    assert result["recoveries"] == []
    assert result["refused_connections"] > 0
    assert job.metrics()[-1]["reward"] == sum(n * n for n in range(6 * result["committed_steps"]))
    log = (job.run_dir / "logs" / "master.log").read_text()
    assert "messages to the master's control socket could not be read" in log
    assert "messages to the master's socket for agents could not be read" in log
