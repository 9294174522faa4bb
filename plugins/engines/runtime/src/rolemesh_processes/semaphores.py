"""Semaphores of `multiprocessing` for a process that may not write to ``/dev/shm``, where the system has named ones."""

from __future__ import annotations

import _multiprocessing  # type: ignore[import-not-found]
import ctypes
import errno
import mmap
import os
import threading
import time
from multiprocessing import heap
from typing import Final

__all__ = ["Semaphore", "use_anonymous_memory"]

_RECURSIVE: Final = 0
"""The kind of a lock that its owner may acquire again; the other one is 1."""
_SIZE: Final = 64
"""At least the bytes of a `sem_t`."""

_libc = ctypes.CDLL(None, use_errno=True)


class _Time(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


def use_anonymous_memory() -> None:
    """Let locks, queues, pools and shared values that `multiprocessing` makes from now on need no file in /dev/shm.

    Forked children share them, as always. Spawned ones cannot, and a lock for them raises `PermissionError`.
    """
    _multiprocessing.SemLock = Semaphore
    heap.Arena._dir_candidates = []  # type: ignore[attr-defined]


class Semaphore:
    """Does what `_multiprocessing.SemLock` does, for a process and its forks, without a name (sem_overview(7))."""

    SEM_VALUE_MAX = _multiprocessing.SemLock.SEM_VALUE_MAX
    name = None

    def __init__(self, kind: int, value: int, maxvalue: int, name: str, unlink: bool) -> None:
        if not unlink:
            what = (
                "a semaphore for spawned processes is a file, and this process may write no file outside of its folder"
            )
            raise PermissionError(errno.EACCES, f"{what}; use the start method fork", name)
        self.kind, self.maxvalue = kind, maxvalue
        self._memory = mmap.mmap(-1, _SIZE)
        self._cell = ctypes.c_char.from_buffer(self._memory)
        self.handle = ctypes.addressof(self._cell)
        self._at = ctypes.c_void_p(self.handle)
        self._held = self._owner = 0
        if _libc.sem_init(self._at, 1, ctypes.c_uint(value)) < 0:
            raise _error()

    def acquire(self, block: bool = True, timeout: float | None = None) -> bool:
        """Take one. Return False if there is none in `timeout` seconds."""
        if self.kind == _RECURSIVE and self._is_mine():
            self._held += 1
            return True
        if not self._taken(block, timeout):
            return False
        self._held += 1
        self._owner = threading.get_ident()
        return True

    def _taken(self, block: bool, timeout: float | None) -> bool:
        if _libc.sem_trywait(self._at) == 0:
            return True
        if not block:
            return False
        until = divmod(time.time_ns() + int(max(timeout or 0.0, 0.0) * 1e9), 10**9)
        while (
            _libc.sem_wait(self._at) if timeout is None else _libc.sem_timedwait(self._at, ctypes.byref(_Time(*until)))
        ) < 0:
            if ctypes.get_errno() == errno.ETIMEDOUT:
                return False
            if ctypes.get_errno() != errno.EINTR:
                raise _error()
        return True

    def release(self) -> None:
        """Give one back. Raises as `multiprocessing` does for one that this thread does not own, or too many."""
        if self.kind == _RECURSIVE:
            if not self._is_mine():
                raise AssertionError("attempt to release recursive lock not owned by thread")
            if self._held > 1:
                self._held -= 1
                return
        elif self._get_value() >= self.maxvalue:
            raise ValueError("semaphore or lock released too many times")
        if _libc.sem_post(self._at) < 0:
            raise _error()
        self._held -= 1

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _count(self) -> int:
        return self._held

    def _is_mine(self) -> bool:
        return self._held > 0 and self._owner == threading.get_ident()

    def _get_value(self) -> int:
        found = ctypes.c_int()
        if _libc.sem_getvalue(self._at, ctypes.byref(found)) < 0:
            raise _error()
        return max(found.value, 0)

    def _is_zero(self) -> bool:
        return self._get_value() == 0

    def _after_fork(self) -> None:
        self._held = 0


def _error() -> OSError:
    return OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
