"""Between nodes: CurveZMQ lets in who has the job's key, and nobody else."""

import subprocess
import sys

import numpy as np
import pytest
import zmq

from rolemesh.api.partition import Split
from rolemesh_durable.dataplane.tcp_transport import TcpTransport
from rolemesh_durable.dataplane.transport import Inbox
from rolemesh_durable.transports import Site, TransportError, TransportKeys


def make_keys():
    pairs = [tuple(key.decode() for key in zmq.curve_keypair()) for _ in range(2)]
    return TransportKeys(*pairs[0], *pairs[1])


@pytest.mark.parametrize("rows", [10, 300_000])
def test_values_cross_nodes_and_stay_on_one_where_they_can(fleet, flow, role, rows):
    graph, edge = flow
    chain = graph(
        ("a", "make", Split()), ("b", "double", Split()), ("c", "take", None), edges=[edge(0, 0, 1), edge(1, 1, 2)]
    )
    out = fleet.run(
        chain,
        {
            "a": (lambda: role(make=lambda self: np.full(rows, self.ctx.step)), 1),
            "b": (lambda: role(double=lambda self, x: x * 2), 1),
            "c": (lambda: role(take=lambda self, x: self.seen.append((x.size, int(x.min()), int(x.max())))), 1),
        },
        steps=6,
        nodes={("a", 0): "n0", ("b", 0): "n1", ("c", 0): "n1"},
    )
    assert out["c", 0].seen == [(rows, 2 * s, 2 * s) for s in range(6)]
    assert [o.refused for o in out.values()] == [0, 0, 0]


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
        if wrong is not None:
            socket.curve_serverkey = (keys.server_public if wrong == "client" else wrong.server_public).encode()
            other = make_keys()
            socket.curve_publickey = other.client_public.encode()
            socket.curve_secretkey = other.client_secret.encode()
        monitor = socket.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH)
        socket.connect(address)
        socket.send(b"\x01 let me in")
        assert monitor.poll(10_000)
        socket.disable_monitor()


@pytest.mark.parametrize("kind", ["unknown client key", "wrong server key", "no key at all"])
def test_a_wrong_key_is_refused_and_counted(inbox, kind):
    keys = make_keys()
    transport = TcpTransport(None)
    address = transport.open(inbox, Site("a", 0, "n0", 0, "127.0.0.1", "/", "/", keys))
    wrong = {"unknown client key": "client", "wrong server key": make_keys(), "no key at all": None}
    attempt(address, keys, wrong[kind])
    good = transport.connect(address)
    good.send(b"mine")
    assert inbox.socket.poll(10_000)
    assert inbox.socket.recv() == b"mine", "the stranger's frame has not come"
    assert transport.refused() >= 1
    good.close(0)
    transport.close()


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


def test_an_endpoint_that_cannot_be_opened_leaves_nothing_that_keeps_the_process_from_ending(tmp_path):
    script = (
        "from rolemesh_durable.dataplane.tcp_transport import TcpTransport\n"
        "from rolemesh_durable.rank.endpoint import Endpoint\n"
        "from rolemesh_durable.transports import Site\n"
        f"site = Site('a', 0, 'n0', 0, '127.0.0.1', {str(tmp_path)!r}, {str(tmp_path)!r})\n"
        "Endpoint(site, transports={'tcp': TcpTransport(None)}, local='tcp')\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert "tcp edges need the job's keys" in done.stderr
    assert not list(tmp_path.iterdir())
