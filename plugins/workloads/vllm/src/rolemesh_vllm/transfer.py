"""vLLM's interface for new weights while an engine runs, with tensors that the rank itself hands over. Imports vllm."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import torch
from vllm.distributed.weight_transfer import WeightTransferEngineFactory
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from rolemesh_vllm.buckets import Bucket
from rolemesh_vllm.checkpoint import HEAD

__all__ = ["BACKEND", "RankTransfer", "without_reload_warnings"]

BACKEND: Final = "rolemesh"
"""Name of `RankTransfer` in vLLM's ``weight_transfer_config``."""


@dataclass
class Update(WeightTransferUpdateInfo):
    """Some of the tensors of the checkpoint, by name: a bucket, or in the engine's own process the tensors
    themselves."""

    weights: Bucket | Iterable[tuple[str, torch.Tensor]]


class RankTransfer(WeightTransferEngine[WeightTransferInitInfo, Update]):  # type: ignore[misc]
    """Loads each worker's part of the tensors, layer by layer, into the weights that the worker has."""

    init_info_cls = WeightTransferInitInfo
    update_info_cls = Update

    def init_transfer_engine(self, init_info: WeightTransferInitInfo) -> None:
        """There is nobody to connect to."""

    def start_weight_update(self) -> None:
        without_reload_warnings()
        if current_platform.is_cpu() and any(hasattr(each, "w13_weight") for each in self.model.modules()):
            what = "vLLM on CPUs packs the experts of new weights twice, and would answer wrongly from then on"
            raise ValueError(f"{what}: a mixture of experts takes new weights on GPUs only")
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # Not vLLM's own, which waits for the accelerator: torch has none on CPUs, and copies here are in order.
        self.receive_weights(self.parse_update_info(update_info))

    def receive_weights(self, update_info: Update) -> None:
        given = update_info.weights
        tensors = given.tensors() if isinstance(given, Bucket) else given
        if not any(name.endswith("lm_head") for name, _ in self.model.named_modules()):
            tensors = ((name, tensor) for name, tensor in tensors if name != HEAD)  # its embedding is its head
        self.model.load_weights(tensors)

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        """There is nothing to release."""


def without_reload_warnings() -> None:
    """Silence the warning of each update about layers without weights, such as rotary embeddings; `Engine.load` checks
    all names.

    Call it after creating an engine or worker, which configures logging again.
    """
    logging.getLogger("vllm.model_executor.model_loader.reload.layerwise").setLevel(logging.ERROR)


WeightTransferEngineFactory.register_engine(BACKEND, RankTransfer)
