"""transformers' plans of tensor parallelism, read without importing transformers: whether a model can be divided."""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from rolemesh.errors import OptionsError
from rolemesh_torch.model_folder import text_config_of

__all__ = ["DIVIDED", "SUMMED", "check_divisible", "plan_of", "problem"]

DIVIDED: Final = "embedding_rowwise"
"""Style of an embedding whose rows are divided."""
SUMMED: Final = "replicated_with_grad_allreduce"
"""Style of a layer that every rank has whole, and whose gradient each rank has only in part."""
_STYLES: Final = frozenset(
    {
        *("colwise", "colwise_gather_output", "colwise_rep", "rowwise", "rowwise_split_input", "rowwise_rep"),
        *(DIVIDED, SUMMED),
    }
)
_WRONG: Final = {
    "apertus": "leaves the gradients of its activation function in parts",
    "doge": "does not divide the parameter A of its attention",
}
"""Model types whose plan, of transformers 5.19, gives other results than the undivided model."""
_SIZES: Final = {
    "num_attention_heads": "attention heads",
    "num_key_value_heads": "key and value heads",
    "intermediate_size": "rows of its feed-forward layers",
}
"""Values of a config that the ranks divide, in words."""
_WITHOUT: Final = "leave tensor_parallel 1: FSDP2 alone divides any model among world_size ranks"


def problem(kind: str, plan: Mapping[str, str]) -> str:
    """Return why a model of the type `kind` with this plan cannot be divided; "" if it can."""
    if not plan:
        return "transformers has no plan of tensor parallelism for it (base_model_tp_plan)"
    unknown = sorted(set(plan.values()) - _STYLES)
    if unknown:
        name = next(name for name, style in plan.items() if style == unknown[0])
        return f"its layer {name} has the style {unknown[0]}, of a mixture of experts or another kind without support"
    return f"transformers' plan of {kind} {_WRONG[kind]}" if kind in _WRONG else ""


def plan_of(kind: str) -> dict[str, str] | None:
    """Return the plan of the layers of the model type `kind` (``model_type`` in its config); None if transformers'
    source does not show it."""
    folder = _transformers()
    if folder is None:
        return None
    said = re.compile(rf"^    model_type(: str)? = [\"']{re.escape(kind)}[\"']$", re.MULTILINE)
    for path in sorted(folder.glob("models/*/configuration_*.py")):
        source = path.read_text(encoding="utf-8")
        if said.search(source):
            found = next(_classes(source, kind), None)
            return None if found is None else _plan(found)
    return None


def _transformers() -> Path | None:
    spec = importlib.util.find_spec("transformers")
    return Path(next(iter(spec.submodule_search_locations))) if spec and spec.submodule_search_locations else None


def _classes(source: str, kind: str) -> Iterator[ast.ClassDef]:
    for node in ast.parse(source).body:
        if isinstance(node, ast.ClassDef) and _value(node, "model_type") == kind:
            yield node


def _plan(config: ast.ClassDef) -> dict[str, str] | None:
    found = _value(config, "base_model_tp_plan")
    own = {getattr(base, "id", "") for base in config.bases} <= {"PreTrainedConfig", "PretrainedConfig"}
    return dict(found) if found else {} if own else None


def _value(config: ast.ClassDef, name: str) -> Any:
    """Return the literal that the class gives the attribute; None if it does not."""
    for node in config.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == name for target in targets):
            try:
                return ast.literal_eval(node.value)  # type: ignore[attr-defined]
            except (ValueError, TypeError):
                return None
    return None


def check_divisible(model: Path, parallel: int, world_size: int) -> list[OptionsError]:
    """Return why `world_size` ranks cannot divide the model in the folder into sets of `parallel`. It must have a
    config."""
    where = "tensor_parallel"
    errors = []
    if world_size % parallel:
        below, above = world_size // parallel * parallel, -(-world_size // parallel) * parallel
        numbers = f"{below} or {above}" if below else str(above)
        what = f"tensor_parallel {parallel} does not divide the role's {world_size} ranks into equal sets"
        errors.append(OptionsError(what, where=where, remedy=f"set world_size to {numbers}"))
    folder = _transformers()
    if folder is not None and not (folder / "distributed" / "tensor_parallel.py").is_file():
        what = "the installed transformers cannot divide the layers of a model"
        errors.append(OptionsError(what, where=where, remedy='pip install -U "transformers>=5.19,<6"'))
    config = text_config_of(model)
    kind = str(config.get("model_type"))
    plan = plan_of(kind)
    if plan is not None and (why := problem(kind, plan)):
        errors.append(OptionsError(f"the model in {model} cannot be divided: {why}", where=where, remedy=_WITHOUT))
        return errors
    for name, words in _SIZES.items():
        size = config.get(name)
        if isinstance(size, int) and size % parallel:
            sizes = [config[each] for each in _SIZES if isinstance(config.get(each), int)]
            fits = ", ".join(str(n) for n in range(1, size + 1) if not any(each % n for each in sizes))
            what = f"the model's {size} {words} cannot be divided by tensor_parallel {parallel}"
            errors.append(OptionsError(what, where=where, remedy=f"take one of {fits}"))
            break
    return errors
