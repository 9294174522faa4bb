"""Arrays that grow without a copy: address space for all rows at once, memory only for the rows in use.

A part of such an array can be a private map of a file: reading it costs nothing until it is used, and writes stay in
this process.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from rolemesh.errors import RolemeshError

__all__ = ["ALIGNED", "PAGE", "Reserved"]

PAGE = mmap.PAGESIZE
ALIGNED = 2048
"""Rows that start at a multiple of this number start at a page, for rows of 2 bytes or more."""
_NORESERVE = 0x4000
_FIXED = 0x10
_MAPPED_FROM = 1 << 20
"""Bytes from which a part of a file is mapped. A smaller one is read."""
_SMALL = 4 << 20
"""Bytes from which the kernel may use huge pages: they need fewer page faults, but a small table would waste them."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]


class Reserved:
    """`rows` rows of shape (`width`,), or scalars for a `width` of 0, all zero: see `array`.

    Raises `RolemeshError` if there is no address space.
    """

    def __init__(self, dtype: DTypeLike, width: int, rows: int) -> None:
        kind = np.dtype(dtype)
        self.stride = kind.itemsize * (width or 1)
        size = -(-max(rows, 1) * self.stride // PAGE) * PAGE
        try:
            self._map = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE)
        except OSError as error:
            raise RolemeshError(
                f"there is no address space for a table of {rows:,} rows: {error}",
                remedy="raise the limit (ulimit -v, vm.overcommit_memory), or set the table's option `most_rows`",
            ) from error
        if size > _SMALL:
            self._map.madvise(mmap.MADV_HUGEPAGE, _SMALL)
        shape = (rows, width) if width else (rows,)
        self.array: NDArray[Any] = np.frombuffer(self._map, kind, rows * (width or 1)).reshape(shape)

    def load(self, start: int, rows: int, file: int, offset: int) -> None:
        """Make rows from `start` on those of an open file, from `offset` on, privately.

        `start` is a multiple of `ALIGNED`, `offset` one of `PAGE`. The bytes behind them up to the page's end are
        undefined. Raises `OSError`.
        """
        size = rows * self.stride
        if size < _MAPPED_FROM:
            view = memoryview(self._map)[start * self.stride : start * self.stride + size]
            if os.preadv(file, [view], offset) != size:
                raise OSError(f"the file ends before byte {offset + size}")
            return
        if os.fstat(file).st_size < offset + size:
            raise OSError(f"the file ends before byte {offset + size}")
        address = self.array.ctypes.data + start * self.stride
        access, flags = mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_PRIVATE | _FIXED | _NORESERVE
        found = _LIBC.mmap(address, -(-size // PAGE) * PAGE, access, flags, file, offset)
        if found != address:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
