"""Columns of a replay buffer, declared as ``float32[4]``, so that it can allocate its memory before the first row."""

from __future__ import annotations

import re
from typing import Annotated, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator

__all__ = ["Column", "Declared"]

_DECLARATION = re.compile(r"(?P<dtype>bool|u?int(8|16|32|64)|float(16|32|64))(\[(?P<shape>\d+(, ?\d+)*)\])?")


class Column(NamedTuple):
    """The dtype and the shape of one row."""

    dtype: np.dtype[Any]
    shape: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Column:
        """Parse ``float32``, ``float32[4]`` or ``uint8[84,84]``. Raises `ValueError` for anything else."""
        found = _DECLARATION.fullmatch(text)
        if found is None:
            raise ValueError(f"{text!r} declares no column; write a numpy dtype and a row's shape, e.g. float32[4]")
        shape = found["shape"].split(",") if found["shape"] else ()
        return cls(np.dtype(found["dtype"]), tuple(int(size) for size in shape))

    def zeros(self, rows: int) -> NDArray[Any]:
        """Allocate memory for `rows` rows."""
        return np.zeros((rows, *self.shape), self.dtype)


def _checked(text: str) -> str:
    Column.parse(text)
    return text


Declared = Annotated[str, AfterValidator(_checked)]
"""A column in a job file."""
