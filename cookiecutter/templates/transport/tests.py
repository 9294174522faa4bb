"""Frames arrive whole and in order; a peer that dies or does not read disturbs nobody."""

import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq
from rolemesh_dataplane.inbox import Inbox
from rolemesh_dataplane.transports import Site
from rolemesh_testing import TransportConformance

from {{ cookiecutter.__pkg }} import {{ cookiecutter.__class }}


class TestConformance(TransportConformance):
    """The tests that every transport must pass."""

    plugin = "{{ cookiecutter.name }}"
    bad_options = ()


OPTIONS = {{ cookiecutter.__class }}.Options()


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name: a socket's path has 107 bytes at most."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@pytest.fixture
def inbox(folder: Path) -> Iterator[Inbox]:
    with zmq.Context() as context:
        inbox = Inbox(context, str(folder / "inbox"))
        inbox.socket.setsockopt(zmq.RCVTIMEO, 10_000)
        yield inbox
        inbox.close()


@pytest.fixture
def address(inbox: Inbox, folder: Path) -> Iterator[str]:
    transport = {{ cookiecutter.__class }}(OPTIONS)
    yield transport.open(inbox, Site("a", 0, "n0", 0, "127.0.0.1", str(folder), str(folder)))
    transport.close()


def test_frames_arrive_whole_and_in_order(inbox: Inbox, address: str) -> None:
    sender = {{ cookiecutter.__class }}(OPTIONS).connect(address)
    frames = [bytes([number % 256]) * size for number, size in enumerate([1, 100_000, 0, 7] * 50)]
    for frame in frames:
        sender.send(frame)
    assert [inbox.socket.recv() for _ in frames] == frames
    sender.close(1000)


def test_half_a_frame_of_a_peer_that_died_is_dropped(inbox: Inbox, address: str) -> None:
    with socket.socket(socket.AF_UNIX) as dying:
        dying.connect(address)
        dying.sendall(b"\x05\x00\x00\x00he")
    sender = {{ cookiecutter.__class }}(OPTIONS).connect(address)
    sender.send(b"alive")
    assert inbox.socket.recv() == b"alive"
    sender.close(1000)


def test_a_sender_to_a_peer_that_does_not_read_can_be_closed(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as deaf:
        deaf.bind(str(folder / "deaf"))
        deaf.listen()
        sender = {{ cookiecutter.__class }}(OPTIONS).connect(str(folder / "deaf"))
        for _ in range(100):
            sender.send(bytes(100_000))
        sender.close(0)


def test_nothing_is_left_in_the_folder(inbox: Inbox, folder: Path) -> None:
    transport = {{ cookiecutter.__class }}(OPTIONS)
    transport.open(inbox, Site("a", 0, "n0", 0, "127.0.0.1", str(folder), str(folder)))
    transport.close()
    assert [path.name for path in folder.iterdir()] == ["inbox"]
