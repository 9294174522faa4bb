"""The parameters that a trainer sends, in memory that samplers on its node read in place."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from rolemesh.api.workload import RankContext

__all__ = ["Lent"]


class Lent:
    """The tensors that one rank sends: its parameters themselves, or copies on the CPU in another dtype."""

    def __init__(self, ctx: RankContext) -> None:
        self._ctx = ctx
        self._copies: dict[str, torch.Tensor] = {}

    @torch.no_grad()
    def move(self, model: torch.nn.Module) -> None:
        """Move the parameters of a model on the CPU into lent memory. They remain the same `Parameter` objects."""
        own = {name: p for name, p in sorted(model.named_parameters()) if p.device.type == "cpu"}
        for name, data in self._ctx.lend({name: parameter.data for name, parameter in own.items()}).items():
            own[name].data = data

    @torch.no_grad()
    def sent(self, blocks: Mapping[str, torch.Tensor], dtype: torch.dtype | None = None) -> dict[str, torch.Tensor]:
        """Return blocks on the CPU, float32 ones in `dtype`: the blocks themselves, or copies in lent memory.

        The next call overwrites the copies.
        """
        found = dict(blocks)
        wanted = {n: dtype if dtype and b.dtype == torch.float32 else b.dtype for n, b in blocks.items()}
        others = {n: b for n, b in blocks.items() if b.device.type != "cpu" or b.dtype != wanted[n]}
        new = {n: torch.empty(b.shape, dtype=wanted[n]) for n, b in sorted(others.items()) if n not in self._copies}
        self._copies |= self._ctx.lend(new)
        for name, block in others.items():
            found[name] = self._copies[name].copy_(block)
        return found
