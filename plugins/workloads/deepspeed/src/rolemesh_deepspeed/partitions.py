"""This rank's part of each parameter under ZeRO: a range of the flattened parameter in float32, and its moments.

ZeRO 1 and 2 concatenate the parameters and cut the result into equal parts; ZeRO 3 cuts each parameter. Either way a
rank has one range of each parameter (which may be empty), as a view of the flat tensors that the optimizer updates.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_optimizer_state

from rolemesh.api.batch import Shard

__all__ = ["Partitions"]


class Partitions:
    """The live state of a ZeRO optimizer, by parameter."""

    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], zero: Any, stage: int, moments: tuple[str, ...]
    ) -> None:
        """`zero` is the engine's optimizer. The optimizer's state is created here, so a snapshot has the same entries
        and sizes at every step."""
        self.parameters = parameters
        self.zero = zero
        self.stage = stage
        self.moments = moments
        self.flat: list[torch.Tensor] = (
            zero.fp32_partitioned_groups_flat if stage == 3 else zero.single_partition_of_fp32_groups
        )
        for flat in self.flat:
            state = {moment: torch.zeros_like(flat.detach()) for moment in moments}
            if "exp_avg" in moments:
                state["step"] = torch.zeros((), dtype=torch.float32, device=flat.device)
            zero.optimizer.state[flat] = state
        if stage < 3:
            zero._lazy_init_hp_params_optimizer_state()

    def shapes(self) -> dict[str, list[int]]:
        """Return the original shape of each parameter."""
        return {n: list(p.ds_shape if self.stage == 3 else p.shape) for n, p in self.parameters.items()}

    def shards(self, moment: str | None = None) -> dict[str, Shard]:
        """Return the rank's range of each flattened parameter, or of its `moment`."""
        cut = self._of_parameter if self.stage == 3 else self._of_the_whole
        return {name: cut(parameter, moment) for name, parameter in self.parameters.items()}

    def _of_parameter(self, parameter: Any, moment: str | None) -> Shard:
        whole = moment is None
        local = safe_get_local_fp32_param(parameter) if whole else safe_get_local_optimizer_state(parameter, moment)
        local = local.detach()
        start = min(parameter.ds_numel, self.zero._get_param_partition_rank(parameter) * local.numel())
        return Shard(local[: max(0, min(local.numel(), parameter.ds_numel - start))], (parameter.ds_numel,), (start,))

    def _of_the_whole(self, parameter: Any, moment: str | None) -> Shard:
        mapping = parameter._hp_mapping
        if mapping is None:
            return Shard(self.flat[0].detach()[:0], (parameter.numel(),), (0,))
        return Shard(
            mapping.get_hp_fragment(moment).detach(), (parameter.numel(),), (mapping.lp_fragment_address.start,)
        )

    @torch.no_grad()
    def filled(self, updates: int) -> None:
        """The tensors of `shards` were filled: update the model's own parameters from them, on all ranks."""
        for flat in self.flat:
            if "step" in self.zero.optimizer.state[flat]:
                self.zero.optimizer.state[flat]["step"].fill_(updates)
        if self.stage < 3:
            self.zero.update_lp_params()
            return
        for parameter in self.parameters.values():
            parameter.ds_tensor.data.copy_(safe_get_local_fp32_param(parameter).view_as(parameter.ds_tensor))
        if self.zero.persistent_parameters:  # small ones, which every rank holds whole
            self.zero.persistent_parameters[0].all_gather(self.zero.persistent_parameters)
