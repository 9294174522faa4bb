"""Divide the layers of a model among ranks, as transformers' plan of the model says."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.placement_types import Shard
from transformers import PreTrainedModel
from transformers.distributed.tensor_parallel import apply_tensor_parallelism, replace_layer_number_by_wildcard

from rolemesh.errors import OptionsError
from rolemesh_fsdp.plans import DIVIDED, SUMMED, problem
from rolemesh_training.inputs import text_config
from rolemesh_training.model import architecture
from rolemesh_training.options import HuggingFaceOptions

__all__ = ["Division", "divide", "division"]


class Division(NamedTuple):
    """How the layers of a model are divided."""

    plan: dict[str, str]
    """transformers' plan: the name of a module, with * for numbers → its style."""
    dims: dict[str, int]
    """Name of a parameter → the dimension that is divided. Each is also under the names that it has in the models
    inside, which transformers initializes first."""
    summed: frozenset[str]
    """Names of the parameters that every rank has whole, and whose gradient each rank has only in part."""


def division(options: HuggingFaceOptions, mesh: DeviceMesh) -> Division:
    """Return how the ranks of `mesh` divide the model of the options. Raises `OptionsError` if they cannot."""
    with torch.random.fork_rng(devices=[]), torch.device("meta"):
        model = architecture(options)
    plan = _plan(model, mesh.size())
    if why := problem(text_config(model).model_type, plan):
        raise OptionsError(f"the model in {options.model} cannot be divided: {why}", where="tensor_parallel")
    partial = {name for name, style in plan.items() if style == SUMMED}
    found = {name for name, _ in model.named_parameters() if _module_of(name) in partial}
    plan = {name: style for name, style in plan.items() if name not in partial}
    divide(model, plan, mesh)
    dims = {
        name: placement.dim % parameter.dim()
        for inner in model.modules()
        if isinstance(inner, PreTrainedModel)
        for name, parameter in inner.named_parameters()
        if isinstance(parameter, DTensor) and isinstance(placement := parameter.placements[0], Shard)
    }
    return Division(plan, dims, frozenset(found))


def divide(model: Any, plan: dict[str, str], mesh: DeviceMesh) -> None:
    """Divide `model`, whose parameters are on the device "meta" or equal on all ranks. Nothing is sent."""
    apply_tensor_parallelism(model, mesh, plan)
    model.tie_weights()


def _plan(model: Any, size: int) -> dict[str, str]:
    """Return transformers' plan, with the embedding divided as the head is. Both stay whole if `size` does not divide
    the vocabulary."""
    plan = dict(model.tp_plan)
    modules = {id(module): replace_layer_number_by_wildcard(name) for name, module in model.named_modules()}
    embedding, head = model.get_input_embeddings(), model.get_output_embeddings()
    names = modules.get(id(embedding), ""), modules.get(id(head), "")
    tied = head is not None and head.weight is embedding.weight
    if names[1] in plan and embedding.weight.shape[0] % size == 0:
        plan[names[0]] = DIVIDED if tied else plan.get(names[0], DIVIDED)
    else:
        plan.pop(names[1], None)
        if tied:
            plan.pop(names[0], None)
    return plan


def _module_of(parameter: str) -> str:
    return replace_layer_number_by_wildcard(parameter.rpartition(".")[0])
