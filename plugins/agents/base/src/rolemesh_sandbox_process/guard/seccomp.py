"""A filter of system calls, for what namespaces do not separate, and for kernels that refuse namespaces."""

from __future__ import annotations

import ctypes
import os
import struct
from typing import Final

__all__ = ["restrict"]

_MACHINES: Final = {"x86_64": (0xC000003E, 41, 62), "aarch64": (0xC00000B7, 198, 129)}
"""Machine → its number in the audit framework, and the numbers of socket(2) and kill(2)."""
_SHARED: Final = {"x86_64": (248, 249, 250), "aarch64": (217, 218, 219)}
"""The numbers of add_key(2), request_key(2) and keyctl(2): keyrings belong to a user, or come from the rank."""
_LASTING: Final = {"x86_64": (29, 64, 68, 240), "aarch64": (194, 190, 186, 180)}
"""The numbers of shmget(2), semget(2), msgget(2) and mq_open(2): what they make outlives all processes."""
_IO_URING_SETUP: Final = 425
"""Its requests, such as the one for a socket, pass no filter."""
_AF_UNIX, _AF_VSOCK = 1, 40
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_X32, _ALL = 0x40000000, 0xFFFFFFFF
_ALLOW, _DENY = (_RETURN, 0, 0, 0x7FFF0000), (_RETURN, 0, 0, 0x00050000 | 13)  # EACCES
_NUMBER, _ARCHITECTURE, _ARGUMENT = ((_LOAD, 0, 0, at) for at in (0, 4, 16))
_PR_SET_SECCOMP, _FILTER_MODE = 22, 2

Line = tuple[int, int, int, int]
"""An instruction: its code, the lines to skip if it is true and if it is false, and its operand."""


def restrict(*, network: bool, namespaces: bool) -> None:
    """Forbid keyrings, sockets to other virtual machines and their host (AF_VSOCK), io_uring, and foreign calls.

    Without `namespaces`, also forbid kill(-1, …), which ends all processes of a user; the queues and shared memory of
    System V, and the message queues of POSIX, which nothing removes; and, unless `network`, all sockets other than
    Unix sockets. It holds for this process and its descendants, and needs `no_new_privileges`.

    Raises `OSError` if the kernel has no seccomp, or the machine is not a known one.
    """
    machine = os.uname().machine
    if machine not in _MACHINES:
        raise OSError(f"no filter of system calls for {machine}")
    lines = _program(machine, network=network, namespaces=namespaces)
    program = b"".join(struct.pack("HBBI", *line) for line in lines)
    buffer = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_FILTER_MODE), ctypes.byref(head), 0, 0) < 0:
        raise OSError(ctypes.get_errno(), f"prctl seccomp: {os.strerror(ctypes.get_errno())}")


def _program(machine: str, *, network: bool, namespaces: bool) -> list[Line]:
    """Return the filter."""
    architecture, socket, kill = _MACHINES[machine]
    denied = (_IO_URING_SETUP, *_SHARED[machine], *(() if namespaces else _LASTING[machine]))
    sockets = [*_refuse(_AF_VSOCK), _ALLOW] if namespaces or network else [(_EQUAL, 1, 0, _AF_UNIX), _DENY, _ALLOW]
    return [
        _ARCHITECTURE,
        (_EQUAL, 1, 0, architecture),
        _DENY,
        _NUMBER,
        (_AT_LEAST, 0, 1, _X32),
        _DENY,
        *(line for call in denied for line in _refuse(call)),
        *([] if namespaces else _call(kill, *_refuse(_ALL), _ALLOW)),
        *_call(socket, *sockets),
        _ALLOW,
    ]


def _refuse(value: int) -> tuple[Line, Line]:
    return (_EQUAL, 0, 1, value), _DENY


def _call(number: int, *lines: Line) -> list[Line]:
    """Return the lines for one call, which judge its first argument and end the filter."""
    return [(_EQUAL, 0, 1 + len(lines), number), _ARGUMENT, *lines]
