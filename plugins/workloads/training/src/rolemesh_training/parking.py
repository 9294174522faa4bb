"""Device memory given back and taken again: the content waits in host memory, and every tensor stays the same object.

Works on storages, so parameters, FSDP2's blocks and the optimizer's leaves that share memory still do afterwards. verl
(``offload_fsdp2_model_to_cpu``) moves modules instead, which breaks such ties.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

__all__ = ["Parking"]


class Parking:
    """The storages of some tensors, and what was in them while they have no memory."""

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if t.numel()}
        self._storages = list(storages.values())
        self._content: list[torch.UntypedStorage] = []

    def park(self) -> int:
        """Copy everything to host memory and free the device's; returns the bytes. Nothing may use the tensors now."""
        if self._content:
            return 0
        self._content = [
            storage.clone() if storage.device.type == "cpu" else storage.cpu() for storage in self._storages
        ]
        for storage in self._storages:
            storage.resize_(0)
        if any(storage.device.type == "cuda" for storage in self._storages):
            torch.cuda.empty_cache()
        return sum(content.nbytes() for content in self._content)

    def unpark(self) -> None:
        """Take the memory again, with the same content."""
        for storage, content in zip(self._storages, self._content, strict=bool(self._content)):
            storage.resize_(content.nbytes())
            storage.copy_(content)
        self._content = []
