"""Takes rights from this process before it runs code of others: to files, signals, programs, sockets, memory.

`seal` is for pure computation. `keep_files` leaves a process the network and other programs.
"""

from __future__ import annotations

import ctypes
import os
import resource
import stat
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

__all__ = ["keep_files", "limit_files", "limit_memory", "seal"]

_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER_MODE = 38, 22, 2
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_WRITES: Final = (1 << 1) | sum(1 << bit for bit in range(4, 13))
"""Landlock's rights to change files: WRITE_FILE, REMOVE_* and MAKE_* (landlock(7))."""
_TRUNCATE_SINCE: Final = 3
_LATER_WRITES: Final = {2: 1 << 13, _TRUNCATE_SINCE: 1 << 14}
"""Rights to change files that a later version of Landlock added: REFER and TRUNCATE."""
_SCOPED: Final = 0b11
"""No abstract sockets of others, and no signals to them (from version 6 on)."""
_ARCHITECTURES: Final = {"x86_64": (0xC000003E, 0), "aarch64": (0xC00000B7, 1)}
"""Machine → its number in the audit framework, and the column of its calls below."""
_LOAD, _EQUAL, _ANY_BIT, _RETURN = 0x20, 0x15, 0x45, 0x06
_ALLOW, _REFUSE, _UNKNOWN = 0x7FFF0000, 0x00050000 | 1, 0x00050000 | 38  # EPERM, ENOSYS
_WRITING: Final = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CLONE_THREAD = 0x10000

_FREE: Final = (
    # read write close fstat newfstatat statx lseek pread64 readv writev access faccessat faccessat2 readlink readlinkat
    (0, 63),
    (1, 64),
    (3, 57),
    (5, 80),
    (262, 79),
    (332, 291),
    (8, 62),
    (17, 67),
    (19, 65),
    (20, 66),
    (21, None),
    (269, 48),
    (439, 439),
    (89, None),
    (267, 78),
    # mmap mprotect munmap brk mremap madvise getcwd getdents64 dup pipe2 select pselect6 poll ppoll
    (9, 222),
    (10, 226),
    (11, 215),
    (12, 214),
    (25, 216),
    (28, 233),
    (79, 17),
    (217, 61),
    (32, 23),
    (293, 59),
    (23, None),
    (270, 72),
    (7, None),
    (271, 73),
    # rt_sigaction rt_sigprocmask rt_sigreturn sigaltstack restart_syscall sched_yield alarm getitimer setitimer
    (13, 134),
    (14, 135),
    (15, 139),
    (131, 132),
    (219, 128),
    (24, 124),
    (37, None),
    (36, 102),
    (38, 103),
    # nanosleep clock_nanosleep clock_gettime clock_getres gettimeofday time times getrusage sysinfo uname getrandom
    (35, 101),
    (230, 115),
    (228, 113),
    (229, 114),
    (96, 169),
    (201, None),
    (100, 153),
    (98, 165),
    (99, 179),
    (63, 160),
    (318, 278),
    # getpid getppid gettid getuid getgid geteuid getegid getrlimit sched_getaffinity
    (39, 172),
    (110, 173),
    (186, 178),
    (102, 174),
    (104, 176),
    (107, 175),
    (108, 177),
    (97, 163),
    (204, 123),
    # futex set_robust_list rseq membarrier exit exit_group
    (202, 98),
    (273, 99),
    (334, 293),
    (324, 283),
    (60, 93),
    (231, 94),
    # epoll_create1 epoll_ctl epoll_wait epoll_pwait socketpair sendto recvfrom shutdown eventfd2: an event loop
    (291, 20),
    (233, 21),
    (232, None),
    (281, 22),
    (53, 199),
    (44, 206),
    (45, 207),
    (48, 210),
    (290, 19),
)
"""The numbers of the calls that a sealed process may make with any arguments, by architecture."""
_OPENAT, _CLONE, _CLONE3, _PRLIMIT, _FCNTL, _IOCTL = (257, 56), (56, 220), (435, 435), (302, 261), (72, 25), (16, 29)
_FCNTL_FREE: Final = (0, 1, 2, 3, 4, 1030)
"""F_DUPFD, F_GETFD, F_SETFD, F_GETFL, F_SETFL, F_DUPFD_CLOEXEC."""
_IOCTL_FREE: Final = (0x5401, 0x5421, 0x5450, 0x5451)
"""TCGETS, FIONBIO, FIONCLEX, FIOCLEX: what Python asks of a descriptor that it opens, and an event loop of its pipe."""

_READ_FILES: Final = 1 << 2
"""CAP_DAC_READ_SEARCH."""

_libc = ctypes.CDLL(None, use_errno=True)


def seal() -> list[str]:
    """Leave this process only what a computation needs: its memory, threads, timers, open descriptors, and reading
    files. It can change no file, start no process, signal none, and open no socket. Cannot be undone. It can write to
    /dev/null where Landlock tells that from files (Linux 6.2).

    Returns what the kernel does not enforce here; empty if it enforces everything. A refused call fails with EPERM,
    one that opens a file to write with EACCES if Landlock refuses it.
    """
    for name in ("CORE", "FSIZE"):
        resource.setrlimit(getattr(resource, f"RLIMIT_{name}"), (0, 0))
    gaps = keep_files((os.devnull,), scoped=True)
    by_landlock = not gaps and _landlock() >= _TRUNCATE_SINCE
    # Of root's rights, only that of reading files: others would let it read the memory of processes.
    _libc.capset(struct.pack("Ii", 0x20080522, 0), struct.pack("6I", *(_READ_FILES,) * 2, 0, 0, 0, 0))
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        return [*gaps, f"there is no filter of system calls for {machine}"]
    program = _program(*_ARCHITECTURES[machine], opens=by_landlock)
    buffer = ctypes.create_string_buffer(program, len(program))
    head = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(program) // 8, ctypes.addressof(buffer)))
    if _libc.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER_MODE), ctypes.byref(head), 0, 0) < 0:
        gaps.append(f"the kernel refuses a filter of system calls: {os.strerror(ctypes.get_errno())}")
    return gaps


def keep_files(writable: Sequence[str], *, scoped: bool = False) -> list[str]:
    """Let this thread, and what it starts from now on, change no files but those in `writable`, and gain no privileges.
    `writable`: existing folders or files; devices such as /dev/null, too. `scoped`: they also signal no
    other process, and connect to no abstract socket of one (Linux 6.12).

    Returns what the kernel does not enforce here. Without Landlock (Linux 5.13) that is all about files.
    """
    _libc.prctl(_NO_NEW_PRIVS, ctypes.c_ulong(1), 0, 0, 0)
    version = _landlock()
    if version < 1:
        return [f"the kernel has no Landlock: {os.strerror(ctypes.get_errno())}"]
    rights = _WRITES | sum(more for since, more in _LATER_WRITES.items() if version >= since)
    asked = struct.pack("QQQ", rights, 0, _SCOPED if scoped else 0)[: 24 if version >= 6 else 8]
    rules = _libc.syscall(ctypes.c_long(_CREATE_RULESET), asked, ctypes.c_size_t(len(asked)), ctypes.c_uint(0))
    if rules < 0:
        return [f"Landlock makes no rules: {os.strerror(ctypes.get_errno())}"]
    try:
        for path in writable:
            opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
            allowed = rights if os.path.isdir(path) else rights & (_WRITES & 0b10 | _LATER_WRITES[_TRUNCATE_SINCE])
            rule = struct.pack("=Qi", allowed, opened)
            _libc.syscall(ctypes.c_long(_ADD_RULE), ctypes.c_int(rules), ctypes.c_int(1), rule, ctypes.c_uint(0))
            os.close(opened)
        if _libc.syscall(ctypes.c_long(_RESTRICT_SELF), ctypes.c_int(rules), ctypes.c_uint(0)) < 0:
            return [f"Landlock does not restrict this process: {os.strerror(ctypes.get_errno())}"]
    finally:
        os.close(rules)
    return []


def _landlock() -> int:
    """Return the version of Landlock; -1 without it, and its errno."""
    return int(_libc.syscall(ctypes.c_long(_CREATE_RULESET), None, ctypes.c_size_t(0), ctypes.c_uint(1)))


def limit_files(more: int) -> None:
    """Let this process and its children write no file beyond `more` bytes, and at most `more` bytes of output."""
    sizes = [os.fstat(each).st_size for each in (1, 2) if stat.S_ISREG(os.fstat(each).st_mode)]
    most = max(sizes, default=0) + more
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))


def limit_memory(more: int) -> None:
    """Let this process take at most `more` bytes of memory beyond what it has. Each child may take as much, too."""
    used = next(
        line for line in Path("/proc/self/status").read_text(errors="replace").splitlines() if line.startswith("VmData")
    )
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = int(used.split()[1]) * 1024 + more
    most = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _program(architecture: int, column: int, *, opens: bool) -> bytes:
    """Return the filter. `seccomp_data` has the call's number at 0, the architecture at 4, argument n at 16 + 8 n.

    `opens`: it leaves to Landlock which files may be opened for writing.
    """
    lines = [(_LOAD, 0, 0, 4), (_EQUAL, 1, 0, architecture), (_RETURN, 0, 0, _REFUSE), (_LOAD, 0, 0, 0)]
    for numbers in _FREE:
        if (number := numbers[column]) is not None:
            lines += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ALLOW)]
    lines += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _UNKNOWN)]  # the C library then calls clone
    lines += _with_argument(_OPENAT[column], 2, [(_ANY_BIT, 1, 0, 0 if opens else _WRITING), (_RETURN, 0, 0, _ALLOW)])
    lines += _with_argument(_CLONE[column], 0, [(_ANY_BIT, 0, 1, _CLONE_THREAD), (_RETURN, 0, 0, _ALLOW)])
    lines += _with_argument(_PRLIMIT[column], 0, [(_EQUAL, 0, 1, 0), (_RETURN, 0, 0, _ALLOW)])
    for call, known in ((_FCNTL, _FCNTL_FREE), (_IOCTL, _IOCTL_FREE)):
        free = [line for each in known for line in ((_EQUAL, 0, 1, each), (_RETURN, 0, 0, _ALLOW))]
        lines += _with_argument(call[column], 1, free)
    lines.append((_RETURN, 0, 0, _REFUSE))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def _with_argument(
    call: int, argument: int, allowed: Sequence[tuple[int, int, int, int]]
) -> list[tuple[int, int, int, int]]:
    """Return lines that decide on one call by the low half of an argument. Other calls pass them."""
    body = [(_LOAD, 0, 0, 16 + 8 * argument), *allowed, (_RETURN, 0, 0, _REFUSE)]
    return [(_EQUAL, 0, len(body), call), *body]
