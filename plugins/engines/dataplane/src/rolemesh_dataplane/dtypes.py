"""The dtypes of an encoded value's buffers, for transports that compress what they know."""

from __future__ import annotations

from typing import Any

import numpy as np

from rolemesh_dataplane.codec import Buffer, below, unpacked

__all__ = ["dtypes_of"]


def dtypes_of(header: Buffer, buffers: int) -> list[str]:
    """Return the dtype of each of the `buffers` of a value with this header: "float32", "bfloat16".

    A buffer with bytes, or of a value that is pickled, has "".
    """
    found = [""] * buffers
    _find(unpacked(header), found)
    return found


def _find(tree: Any, found: list[str]) -> None:
    if type(tree) is not list:
        return
    if tree[0] in ("n", "s"):
        found[tree[3]] = np.dtype(tree[1]).name
    elif tree[0] == "T":
        found[tree[3]] = tree[1]
    for child in below(tree) or ():
        _find(child, found)
