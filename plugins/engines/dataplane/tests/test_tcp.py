"""The transport `tcp` admits a peer that has the job's key, and refuses and counts all others."""

import random
import socket
from contextlib import suppress
from pathlib import Path

import pytest
import zmq
from tests.waiting import HANG_S

from rolemesh_dataplane.inbox import Inbox
from rolemesh_dataplane.pieces import CUT, LIMIT, PIECE, cut, joined
from rolemesh_dataplane.tcp_transport import TcpTransport
from rolemesh_dataplane.transports import Site, TransportError, TransportKeys

NEEDS_IPV6 = pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="this machine has no IPv6")
HOSTS = ["127.0.0.1", "localhost", pytest.param("::1", marks=NEEDS_IPV6)]


def make_keys():
    pairs = [tuple(key.decode() for key in zmq.curve_keypair()) for _ in range(2)]
    return TransportKeys(*pairs[0], *pairs[1])


@pytest.fixture
def inbox(tmp_path):
    with zmq.Context() as context:
        box = Inbox(context, str(tmp_path / "i"))
        yield box
        box.close()


def attempt(address, keys, wrong):
    """A handshake with `wrong` keys, until it has failed on the client's side."""
    with zmq.Context() as context, context.socket(zmq.PUSH) as socket:
        socket.linger = 0
        socket.ipv6 = "[" in address
        if wrong is not None:
            socket.curve_serverkey = (keys.server_public if wrong == "client" else wrong.server_public).encode()
            other = make_keys()
            socket.curve_publickey = other.client_public.encode()
            socket.curve_secretkey = other.client_secret.encode()
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        socket.connect(address)
        with suppress(zmq.Again):  # the handshake may have failed already: then nothing takes the frame
            socket.send(b"\x01 let me in", zmq.NOBLOCK)
        assert monitor.poll(10_000)
        socket.disable_monitor()


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("kind", ["unknown client key", "wrong server key", "no key at all"])
def test_a_wrong_key_is_refused_and_counted(inbox, kind, host):
    keys = make_keys()
    transport = TcpTransport(None)
    address = transport.open(inbox, Site("a", 0, "n0", 0, host, "/", "/", keys))
    wrong = {"unknown client key": "client", "wrong server key": make_keys(), "no key at all": None}
    attempt(address, keys, wrong[kind])
    good = transport.connect(address)
    good.send(b"mine")
    assert inbox.socket.poll(10_000)
    assert inbox.socket.recv() == b"mine", "the stranger's frame has not come"
    assert transport.refused() >= 1
    good.close(0)
    transport.close()


@pytest.mark.parametrize("size", [LIMIT, LIMIT + 1])
def test_a_peer_that_has_not_proved_that_it_has_the_key_cannot_send_more_than_a_piece(inbox, size):
    transport = TcpTransport(None)
    address = transport.open(inbox, Site("a", 0, "n0", 0, "127.0.0.1", "/", "/", make_keys()))
    with socket.create_connection(("127.0.0.1", int(address.rpartition(":")[2])), HANG_S) as peer:
        greeting = b"\xff" + bytes(8) + b"\x7f\3\0" + b"CURVE".ljust(20, b"\0") + bytes(32)  # ZMTP 3.0 (RFC 23)
        peer.sendall(greeting)
        received = b""
        while len(received) < 64:
            received += peer.recv(64 - len(received))
        large_command = b"\6" + size.to_bytes(8, "big")
        peer.sendall(large_command)
        peer.settimeout(0.5 if size == LIMIT else 20)
        try:
            closed = peer.recv(1) == b""
        except ConnectionResetError:
            closed = True
        except TimeoutError:
            closed = False
    assert closed is (size > LIMIT)
    transport.close()


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, PIECE + 1, 2 * PIECE, 3 * PIECE + 5])
def test_a_frame_in_pieces_is_whole_again(size):
    frames = [b"head", random.Random(size).randbytes(size), b"", bytes(PIECE)]
    with zmq.Context() as context, context.socket(zmq.PAIR) as one, context.socket(zmq.PAIR) as other:
        one.bind("inproc://pieces")
        other.connect("inproc://pieces")
        one.send_multipart(cut(frames), copy=False)
        assert other.recv() == CUT
        assert joined(other) == frames
    assert max(map(len, cut(frames))) == PIECE
    assert cut(frames[:1]) == frames[:1]


def test_tcp_without_keys_is_refused_at_once(inbox):
    with pytest.raises(TransportError, match="need the job's keys"):
        TcpTransport(None).open(inbox, Site("a", 0, "n0", 0, "127.0.0.1", "/", "/"))


def test_a_transport_without_sockets_delivers_through_the_inbox(inbox):
    pusher = inbox.pusher()
    pusher.send(b"from a thread of mine")
    assert inbox.socket.poll(10_000)
    assert inbox.socket.recv() == b"from a thread of mine"
    pusher.close(linger=0)


def test_a_folder_too_long_for_a_socket_is_an_error_with_a_remedy():
    with pytest.raises(TransportError, match="TMPDIR"):
        Site("a", 0, "n0", 0, "h", "/" + "x" * 100, "/").ipc_path("inbox")
