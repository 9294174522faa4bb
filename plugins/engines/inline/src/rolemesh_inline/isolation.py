"""Copy a value as if it had been sent to another process: the copy's arrays are read-only."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np


def _array(buffer: Any, dtype: np.dtype[Any], shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.frombuffer(buffer, dtype).reshape(shape)


class _Pickler(pickle.Pickler):
    """Stores arrays beside the pickle, so that they come back as views of bytes, which are read-only."""

    def reducer_override(self, value: Any) -> Any:
        if type(value) is np.ndarray and not value.dtype.hasobject:
            data: Any = np.ascontiguousarray(value).reshape(-1).view(np.uint8)
            return _array, (pickle.PickleBuffer(data), value.dtype, value.shape)
        return NotImplemented


class Isolated:
    """A value that is pickled once and copied any number of times."""

    def __init__(self, value: Any) -> None:
        """Pickle the value. Raises the errors of pickling."""
        file = io.BytesIO()
        buffers: list[pickle.PickleBuffer] = []
        _Pickler(file, protocol=5, buffer_callback=buffers.append).dump(value)
        self._pickle = file.getvalue()
        self._blocks = [bytes(buffer.raw()) for buffer in buffers]
        self.nbytes = len(self._pickle) + sum(map(len, self._blocks))

    def value(self) -> Any:
        """Return a new copy."""
        return pickle.loads(self._pickle, buffers=self._blocks)
