"""Cut large frames into pieces, and join them.

libzmq has one limit of a frame's size for values and for CurveZMQ's handshake. So a listener that takes values in
pieces holds little for a peer that has not proved that it has the key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import zmq

from rolemesh_dataplane.codec import Buffer

__all__ = ["CUT", "LIMIT", "PIECE", "cut", "joined", "rest"]

PIECE = 1 << 19
"""Bytes of a piece. A frame of fewer bytes is one piece; each frame ends with a piece of fewer bytes."""
LIMIT = PIECE + 256
"""Maximum bytes of a frame with what CurveZMQ adds to a piece."""
CUT = b"\7"
"""The first frame of a message in pieces. No other frame has this tag."""


def cut(frames: Sequence[Buffer]) -> Sequence[Buffer]:
    """Return the message for these frames: in pieces if one of them is large. Nothing is copied."""
    if max(map(len, frames)) < PIECE:
        return frames
    message: list[Buffer] = [CUT]
    for frame in frames:
        view = memoryview(frame)
        message += [view[at : at + PIECE] for at in range(0, len(view) + 1, PIECE)]
    return message


def rest(socket: zmq.Socket[bytes]) -> Iterator[Buffer]:
    """Receive the rest of a message. Nothing is copied."""
    while socket.getsockopt(zmq.RCVMORE):
        yield socket.recv(copy=False).buffer.toreadonly()


def joined(socket: zmq.Socket[bytes]) -> list[Buffer]:
    """Receive the rest of a message behind `CUT`, and return its frames."""
    frames: list[Buffer] = []
    pieces: list[Buffer] = []
    for piece in rest(socket):
        pieces.append(piece)
        if len(piece) < PIECE:
            frames.append(_whole(pieces))
            pieces = []
    return frames


def _whole(pieces: list[Buffer]) -> Buffer:
    """Return the frame of these pieces. Each is freed after it has been copied."""
    if len(pieces) == 1:
        return pieces[0]
    whole, at = np.empty(sum(map(len, pieces)), np.uint8).data, 0
    for piece in map(pieces.pop, [0] * len(pieces)):
        whole[at : (at := at + len(piece))] = piece
    return whole.toreadonly()
