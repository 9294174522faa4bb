"""Messages of any size between two processes, over a SOCK_SEQPACKET pair.

A message is in an anonymous file in memory, whose descriptor is sent. It needs no room in `/dev/shm`, leaves nothing
behind, and is not limited by the socket's buffer.
"""

from __future__ import annotations

import array
import os
import select
import socket

__all__ = ["receive", "send"]

LABEL_BYTES = 4096


def send(control: socket.socket, label: str, data: bytes) -> None:
    """Send `data` and its `label`, which arrives even if the descriptor cannot. Does not wait.

    Raises `BlockingIOError` if the other side does not read, and the system's other errors: no descriptor or memory is
    left, or the other side is gone.
    """
    fd = os.memfd_create("rolemesh", os.MFD_CLOEXEC)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(fd, rest) :]
        travels = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [fd]))]
        control.sendmsg([label.encode()], travels, socket.MSG_DONTWAIT)
    finally:
        os.close(fd)


def receive(control: socket.socket, *, wait: bool = True) -> tuple[str, bytes | None] | None:
    """Return the next label and its data, or None at the end. Data are None if no descriptor was left to receive them.

    Raises `BlockingIOError` if there is nothing and the socket does not block.
    """
    if not wait and not select.select([control], [], [], 0.0)[0]:  # recv_fds passes no flags on
        raise BlockingIOError
    label, fds, _, _ = socket.recv_fds(control, LABEL_BYTES, 1)
    if not label:
        return None
    if not fds:
        return label.decode(), None
    with open(fds[0], "rb") as file:
        file.seek(0)
        return label.decode(), file.read()
