"""Free device memory and allocate it again. The content waits in host memory, and every tensor stays the same object.

It works on storages, so parameters, FSDP2's blocks and the optimizer's leaves that share memory still share it
afterwards. verl (``offload_fsdp2_model_to_cpu``) moves modules instead, which breaks such ties.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Iterable

import torch

__all__ = ["Parking"]

_PORTABLE = 1


class Parking:
    """The storages of some tensors, and their content while they have no memory.

    The first `park` allocates the host memory, and later ones reuse it, because new memory costs several times the
    copy.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        storages = {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors if t.numel()}
        self._storages = list(storages.values())
        self._sizes = [storage.nbytes() for storage in self._storages]
        self._host: torch.Tensor | None = None
        self._parked = False

    def park(self) -> int:
        """Copy everything to host memory and free the device's. Return the bytes. Nothing may use the tensors until
        `unpark`."""
        if self._parked:
            return 0
        for storage, content in self._pairs():
            content.copy_(_bytes_of(storage), non_blocking=True)
        self._wait()
        for storage in self._storages:
            storage.resize_(0)
        if self._on_gpu():
            torch.cuda.empty_cache()
        self._parked = True
        return sum(self._sizes)

    def unpark(self) -> None:
        """Allocate the memory again, with the same content."""
        if not self._parked:
            return
        for storage, content in self._pairs():
            storage.resize_(len(content))
            _bytes_of(storage).copy_(content, non_blocking=True)
        self._wait()
        self._parked = False

    def _pairs(self) -> Iterable[tuple[torch.UntypedStorage, torch.Tensor]]:
        """Yield each storage, and its part of the host memory."""
        if self._host is None:
            self._host = torch.empty(sum(self._sizes), dtype=torch.uint8)
            if self._on_gpu() and _page_lock(self._host):
                unlock = torch.cuda.cudart().cudaHostUnregister
                weakref.finalize(self, unlock, self._host.data_ptr()).atexit = False
        return zip(self._storages, self._host.split(self._sizes), strict=True)

    def _on_gpu(self) -> bool:
        return any(storage.device.type == "cuda" for storage in self._storages)

    def _wait(self) -> None:
        if self._on_gpu():
            torch.cuda.synchronize()


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _page_lock(host: torch.Tensor) -> bool:
    """Page-lock `host`, so that the GPU copies directly. Return False if the driver refuses; it then copies through a
    buffer."""
    if not int(torch.cuda.cudart().cudaHostRegister(host.data_ptr(), host.numel(), _PORTABLE)):
        return True
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")  # CUDA keeps the refusal for whoever asks next
    return False
