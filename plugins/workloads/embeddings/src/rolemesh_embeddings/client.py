"""The client of workers whose models are torch modules. This module imports torch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from rolemesh.api.batch import Batch, Ragged
from rolemesh.errors import RolemeshError
from rolemesh_embeddings.hashing import flat

__all__ = ["EmbeddingClient"]


class EmbeddingClient(torch.nn.Module):
    """Gives a model the rows that servers have looked up, and collects the sums of their gradients.

    In each step: `load` the value of the operator `lookup`; call the client in `forward`; return `gradients` after
    ``backward``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._keys: dict[str, NDArray[np.int64]] = {}
        self._rows: dict[str, torch.Tensor] = {}
        self._used: dict[str, NDArray[np.bool_]] = {}
        """Which keys ``backward`` has come to. A gradient of 0 counts: optimizers such as Adam change the row."""
        self._dense: dict[str, tuple[torch.nn.Module, torch.Tensor]] = {}
        self._updates = 0

    def load(self, rows: Batch) -> None:
        """Take the rows of a step. They replace those of the step before, with their gradients."""
        self._updates = int(np.min(rows["updates"]))
        for column in rows:
            if column.endswith("_keys"):
                name = column.removesuffix("_keys")
                self._take(name, rows[column].values, rows[f"{name}_values"].values)

    def forward(self, table: str, keys: Any) -> torch.Tensor:
        """Return the rows of `keys` (integers of any shape, or of a `Ragged`), float32 with one more dimension."""
        wanted = flat(keys)
        known = self._keys.get(table, wanted[:0])
        at = np.searchsorted(known, wanted)
        at = np.minimum(at, max(len(known) - 1, 0))
        if table not in self._keys or (len(wanted) and (not len(known) or not np.array_equal(known[at], wanted))):
            raise RolemeshError(
                f"the rows do not contain all keys of the table {table!r}",
                remedy="give `lookup` the batch whose keys the model uses, in a column with the table's name",
            )
        shape = np.shape(keys.values if isinstance(keys, Ragged) else keys)
        found = torch.nn.functional.embedding(torch.from_numpy(at.reshape(shape)), self._rows[table])
        if found.requires_grad:
            used = self._used[table]
            found.register_hook(lambda _: used.__setitem__(at, True))
        return found

    def hold(self, table: str, module: torch.nn.Module) -> None:
        """Let servers hold what a module's parameters have learned: their difference to those that it has now.

        The table begins with zeros, and its `dense_rows` are as many as `rows_of` returns.
        """
        self._dense[table] = (module, parameters_to_vector(module.parameters()).detach())

    @staticmethod
    def rows_of(module: torch.nn.Module, dim: int) -> int:
        """Return the number of rows of `dim` values that the module's parameters need."""
        return -(-sum(p.numel() for p in module.parameters()) // dim)

    def gradients(self, rows: int = 1) -> Batch:
        """Return the sums of the gradients of each key: columns `T_keys` and `T_grads` for each table `T`.

        All are in the first row. An operator with a `Balanced` input returns as many `rows` as its item has.
        """
        found: dict[str, Any] = {"updates": np.full(rows, self._updates)}
        for name, held in self._rows.items():
            keys = self._keys[name]
            if name in self._dense:
                grads = self._dense_grads(name, held.shape)
            elif held.grad is None:
                keys, grads = keys[:0], held.detach().numpy()[:0]
            else:
                used = self._used[name]
                keys, grads = keys[used], held.grad.numpy()[used]
            places = np.full(rows + 1, len(keys))
            places[0] = 0
            found[f"{name}_keys"] = Ragged(keys, places)
            found[f"{name}_grads"] = Ragged(grads, places)
        return Batch(found)

    def _take(self, name: str, keys: NDArray[np.int64], values: NDArray[np.float32]) -> None:
        order = np.argsort(keys)
        self._keys[name] = keys[order]
        rows = torch.from_numpy(np.ascontiguousarray(values[order]))
        if name in self._dense:
            module, begin = self._dense[name]
            if values.size < len(begin):
                raise RolemeshError(
                    f"the table {name!r} has {values.size} values in its dense rows, and the module {len(begin)}",
                    remedy=f"set dense_rows to {-(-len(begin) // values.shape[1])}, see EmbeddingClient.rows_of",
                )
            vector_to_parameters(begin + rows.reshape(-1)[: len(begin)], module.parameters())
            module.zero_grad()
        else:
            rows.requires_grad_()
        self._rows[name], self._used[name] = rows, np.zeros(len(order), np.bool_)

    def _dense_grads(self, name: str, shape: torch.Size) -> NDArray[np.float32]:
        module, _ = self._dense[name]
        grads = parameters_to_vector(torch.zeros_like(p) if p.grad is None else p.grad for p in module.parameters())
        return torch.nn.functional.pad(grads, (0, shape.numel() - len(grads))).reshape(shape).detach().numpy()
