"""Every kind of model that transformers has a plan for: divided, it has the results and gradients of the whole model,
or `tensor_parallel` refuses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.soak


def distances(workload: Any, ctx: Any, folders: dict[str, str]) -> dict[str, tuple[float, str]]:
    """How far logits and gradients of each divided model are from the undivided one's, and where that is most."""
    import torch
    import torch.distributed as dist

    from rolemesh_fsdp import FSDPOptions
    from rolemesh_fsdp.layout import Layout
    from rolemesh_fsdp.model import local
    from rolemesh_fsdp.tensor_parallel import divide, division
    from rolemesh_training.parts import Parts

    ranks = workload.engine.ranks
    mesh = ranks.mesh["tensor"]
    ids = torch.randint(2, 60, (2, 9), generator=torch.Generator().manual_seed(3))

    def filled(parts: Parts) -> Any:
        parts.allocate(torch.device("cpu"))
        parts.fill(lambda parameter: local(parameter).view(-1))
        return parts.model

    def results(model: Any) -> dict[str, Any]:
        logits = model(input_ids=ids, use_cache=False).logits.float()
        torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).backward()
        found = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        return {"logits": logits.detach(), **found}

    found = {}
    for kind, folder in folders.items():
        options = FSDPOptions(model=folder, tensor_parallel=2, dropout=False)
        whole = results(filled(Parts(options, 1, lambda _, shape: [(0, shape.numel())])))
        how = division(options, mesh)
        parts = Parts(options, 1, Layout(ranks, how.dims).runs)
        divide(parts.model, how.plan, mesh)
        divided = results(filled(parts))
        for name in sorted(how.summed & divided.keys()):
            dist.all_reduce(divided[name], group=ranks.tensor.process_group)
        divided = {n: g.full_tensor() if hasattr(g, "full_tensor") else g for n, g in divided.items()}
        assert divided.keys() == whole.keys(), kind
        sizes = {name: max(1e-3, float(value.abs().max())) for name, value in whole.items()}
        found[kind] = max((float((divided[n] - whole[n]).abs().max()) / sizes[n], n) for n in whole)
    return found


def test_a_divided_model_of_every_kind_is_the_undivided_one(group: Any, even_model: Any, tmp_path: Path) -> None:
    from every_model import KINDS, config_of, model_of

    from rolemesh_fsdp.plans import plan_of, problem

    plans = {kind: plan for kind in KINDS if (plan := plan_of(kind)) is not None}
    folders = {}
    for kind in [kind for kind, plan in plans.items() if not problem(kind, plan)]:
        try:
            model = model_of(config_of(kind), tmp_path / kind)
        except (ValueError, KeyError) as error:  # `every_model` makes no tiny one
            print(f"{kind}: {error}")
            continue
        if not problem(kind, model.tp_plan):
            model.save_pretrained(tmp_path / kind)
            folders[kind] = str(tmp_path / kind)
    first, second = group(distances, 2, {"model": str(even_model()), "tensor_parallel": 2}, folders)
    assert first == second
    print(first)
    assert {kind: far for kind, far in first.items() if far[0] > 5e-5} == {}
    assert len(first) > 35
