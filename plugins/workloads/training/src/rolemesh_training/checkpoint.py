"""The tensors of a folder's safetensors files. Only the requested bytes are read, into existing memory.

Files are not mapped: pages of a mapped file would count as the process's memory until another process needs it.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from pathlib import Path

import torch

from rolemesh_torch.model_folder import header_of, weight_files

__all__ = ["Checkpoint", "Entry"]

_PIECE = 4 << 20
"""Number of elements that are converted at a time."""
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
"""dtype by its name in https://github.com/huggingface/safetensors#format."""


@dataclass(frozen=True)
class Entry:
    """Place and type of a tensor."""

    path: Path
    start: int
    """Position of its first byte in the file."""
    dtype: torch.dtype | None
    """None for a type that torch does not compute with, such as float8."""
    shape: tuple[int, ...]


class Checkpoint:
    """``model.safetensors``, or the files that ``model.safetensors.index.json`` names."""

    def __init__(self, folder: Path) -> None:
        """Read the headers of the files. A folder without such files has no tensors.

        Raises `OptionsError` for a file that is missing or damaged.
        """
        self.tensors: dict[str, Entry] = {}
        for path in weight_files(folder):
            data, tensors = header_of(path)
            for name, found in tensors.items():
                start = data + found["data_offsets"][0]
                self.tensors[name] = Entry(path, start, _DTYPES.get(found["dtype"]), tuple(found["shape"]))

    def read(self, name: str, start: int, out: torch.Tensor) -> None:
        """Fill `out`, a contiguous vector, with the elements of the flattened tensor from `start` on, converted to its
        dtype.

        Raises `EOFError` if the file is shorter than its header says.
        """
        entry = self.tensors[name]
        assert entry.dtype is not None, "it was chosen by its dtype"
        with entry.path.open("rb", buffering=0) as file:
            at = entry.start + start * entry.dtype.itemsize
            if out.dtype == entry.dtype and out.device.type == "cpu":
                _fill(file.fileno(), at, out, name, entry.path)
                return
            held = torch.empty(min(_PIECE, len(out)), dtype=entry.dtype)
            for piece in out.split(_PIECE):
                raw = held[: len(piece)]
                _fill(file.fileno(), at, raw, name, entry.path)
                piece.copy_(raw)
                at += raw.nbytes

    def same(self, one: str, other: str) -> bool:
        """Return whether two tensors have equal elements."""
        size = torch.Size(self.tensors[one].shape).numel()
        for start in range(0, size, _PIECE):
            pieces = [torch.empty(min(_PIECE, size - start)) for _ in range(2)]
            for name, piece in zip((one, other), pieces, strict=True):
                self.read(name, start, piece)
            if not torch.equal(*pieces):
                return False
        return True


def _fill(file: int, at: int, out: torch.Tensor, name: str, path: Path) -> None:
    if not out.numel():
        return
    # Not `out.numpy()`, which lets nobody resize the storage ever again, as `Parking` does.
    left = memoryview((ctypes.c_ubyte * out.nbytes).from_address(out.data_ptr()))
    while left:
        read = os.preadv(file, [left], at)
        if not read:
            raise EOFError(f"{path} ends within the tensor {name!r}: it was not copied to its end; copy it again")
        left, at = left[read:], at + read
