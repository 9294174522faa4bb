"""Messages of any size from an agent to its zygotes, over a SOCK_SEQPACKET pair.

A message lies in an anonymous file in memory, whose descriptor travels: it needs no room in `/dev/shm`, leaves nothing
behind, and is not bounded by what the socket holds.
"""

from __future__ import annotations

import array
import os
import select
import socket

__all__ = ["receive", "send"]

LABEL_BYTES = 4096


def send(control: socket.socket, label: str, data: bytes) -> None:
    """Send `data`, and beside it `label`, which arrives even where the descriptor cannot. Does not wait.

    Raises `BlockingIOError` if the other side does not read, and what else the system says: it has no descriptor or
    memory left, or the other side is gone.
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
    """The next label and its data, or None at the end. Data are None if there was no descriptor left to take them.

    Raises `BlockingIOError` if there is nothing, and it is not to wait.
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
