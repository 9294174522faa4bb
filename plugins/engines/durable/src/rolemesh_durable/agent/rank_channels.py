"""The sockets between an agent and its ranks: one for the reports of all ranks, and one per rank for messages to it."""

from __future__ import annotations

import zmq

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.rank.frames import encode_control

__all__ = ["RankChannels"]


class RankChannels:
    """`reports` is bound at `address`. Raises `zmq.ZMQError` if the system refuses a descriptor."""

    def __init__(self, address: str) -> None:
        self._zmq = zmq.Context()
        self._zmq.set(zmq.MAX_SOCKETS, self._zmq.get(zmq.SOCKET_LIMIT))  # each rank has one
        self.address = address
        self.reports = self._zmq.socket(zmq.PULL)
        self.reports.set_hwm(0)
        self.reports.bind(address)
        self._ranks: dict[RankRef, zmq.Socket[bytes]] = {}

    def next_report(self) -> list[bytes]:
        """Return the frames of a rank's report; empty if there is none."""
        return self.reports.recv_multipart() if self.reports.poll(0) else []

    def connect(self, key: RankRef, address: str) -> None:
        """Connect to the rank's process, which listens at `address`. Does nothing if it is already connected to it."""
        if (known := self._ranks.get(key)) is not None:
            if known.get_string(zmq.LAST_ENDPOINT) == address:
                return
            known.close(0)
        peer = self._zmq.socket(zmq.PUSH)
        peer.set_hwm(0)
        peer.linger = 0
        peer.connect(address)
        self._ranks[key] = peer

    def send(self, key: RankRef, message: m.AgentToRank) -> None:
        """Send a message to a rank, if it is connected."""
        if (peer := self._ranks.get(key)) is not None:
            peer.send_multipart(encode_control(m.encode(message)))

    def drop(self, key: RankRef) -> None:
        """Close the connection, because the rank's process is gone."""
        if (peer := self._ranks.pop(key, None)) is not None:
            peer.close(0)

    def close(self) -> None:
        """Close all sockets."""
        self._zmq.destroy(linger=0)
