"""The frames between ranks that carry no data, and the frame in which an agent sends a message to a rank.

Frames with data are `rolemesh_dataplane.payload`.
"""

from __future__ import annotations

import struct

__all__ = [
    "ASK", "ASKS", "BARRIER", "BARRIERS", "CHANNEL", "CHANNELS", "CONTROL", "CREDIT", "CREDITS", "encode_control",
]  # fmt: skip

CREDIT, CONTROL, ASK, BARRIER, CHANNEL = 2, 3, 4, 5, 6
"""Tags of frames: the first byte. A frame with data has the tag 1."""
CREDITS = struct.Struct("<BxxxIIIq")
"""tag, edge, consumer rank, generation, step up to which the consumer has released everything."""
ASKS = struct.Struct("<BxxxIIIqq")
"""tag, edge, consumer rank, generation, first step that the consumer lacks, step up to which it has released
everything."""
BARRIERS = struct.Struct("<BBxxIIIq")
"""tag, kind, rank, generation, vote, position: see `protocol.rank.barrier`, and of votes `.agreement`."""
CHANNELS = struct.Struct("<BBHIII")
"""tag, length of the channel's name, zero, number of the sender's role in the flow, rank, generation. The name and the
body follow: see `rolemesh_durable.rank.channel`."""


def encode_control(message: bytes) -> list[bytes]:
    """Return the frames in which an agent pushes an encoded `AgentToRank` message to ``addresses["control"]`` of a
    rank."""
    return [bytes([CONTROL]) + message]
