"""A filter of system calls for kernels that refuse namespaces: no network, no signal to all processes at once, and no
memory that outlives its processes.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Sequence
from typing import Final

__all__ = ["restrict"]

_CALLS: Final = {"x86_64": (0xC000003E, 41, 62), "aarch64": (0xC00000B7, 198, 129)}
"""Machine → its number in the audit framework, and the numbers of socket(2) and kill(2)."""
_LASTING: Final = {"x86_64": (29, 64, 68, 240), "aarch64": (194, 190, 186, 180)}
"""The numbers of shmget(2), semget(2), msgget(2) and mq_open(2): what they make outlives all processes."""
_LOAD, _EQUAL, _AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | 13  # EACCES
_IO_URING_SETUP, _X32, _AF_UNIX, _ALL = 425, 0x40000000, 1, 0xFFFFFFFF
_PR_SET_SECCOMP, _FILTER_MODE = 22, 2


def restrict(*, network: bool) -> None:
    """Forbid kill(-1, …), which ends all processes of a user; the queues and shared memory of System V, and the message
    queues of POSIX, which nothing removes; and, unless `network`, sockets other than Unix sockets. It holds for this
    process and its descendants, and needs `no_new_privileges`.

    Raises `OSError` if the kernel has no seccomp, or the machine is not a known one.
    """
    machine = os.uname().machine
    if machine not in _CALLS:
        raise OSError(f"no filter of system calls for {machine}")
    program = _program(*_CALLS[machine], _LASTING[machine], network=network)
    buffer = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_SECCOMP, ctypes.c_ulong(_FILTER_MODE), ctypes.byref(head), 0, 0) < 0:
        raise OSError(ctypes.get_errno(), f"prctl seccomp: {os.strerror(ctypes.get_errno())}")


def _program(architecture: int, socket: int, kill: int, denied: Sequence[int], *, network: bool) -> bytes:
    """Return the filter. `seccomp_data` has the call's number at 0, the architecture at 4, the first argument at 16."""
    denied = (*denied, _IO_URING_SETUP)
    count = len(denied)
    lines = (
        (_LOAD, 0, 0, 4),
        (_EQUAL, 0, 8 + count, architecture),
        (_LOAD, 0, 0, 0),
        (_AT_LEAST, 6 + count, 0, _X32),
        *((_EQUAL, 5 + count - at, 0, call) for at, call in enumerate(denied)),
        (_EQUAL, 0, 2, kill),
        (_LOAD, 0, 0, 16),
        (_EQUAL, 3, 4, _ALL),
        (_EQUAL, 3 if network else 0, 3, socket),
        (_LOAD, 0, 0, 16),
        (_EQUAL, 1, 0, _AF_UNIX),
        (_RETURN, 0, 0, _DENY),
        (_RETURN, 0, 0, _ALLOW),
    )
    return b"".join(struct.pack("HBBI", *line) for line in lines)
