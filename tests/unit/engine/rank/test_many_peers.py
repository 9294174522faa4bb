"""A rank with more peers than zmq has sockets by default."""

import os
import resource
from multiprocessing import get_context

from tests.waiting import HANG_S

from rolemesh_dataplane.shm_transport import ShmTransport
from rolemesh_dataplane.transports import Site
from rolemesh_durable.protocol.messages import Peer
from rolemesh_durable.rank.endpoint import Endpoint

PEERS = 1100


def connect_to_all(folder):
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    site = Site("a", 0, "n", 0, "127.0.0.1", folder, f"{folder}/shm")
    endpoint = Endpoint(site, transports={"shm": ShmTransport(None)}, local="shm")
    endpoint.connect([Peer("b", rank, "n", {"shm": f"ipc://{folder}/{rank}"}) for rank in range(PEERS)])
    for rank in range(PEERS):
        endpoint.sender("b", rank)
    endpoint.stop()
    endpoint.close(0)
    os._exit(0)


def test_a_rank_connects_to_more_than_a_thousand_peers(tmp_path):
    process = get_context("fork").Process(target=connect_to_all, args=(str(tmp_path),))
    process.start()
    process.join(HANG_S)
    assert process.exitcode == 0
