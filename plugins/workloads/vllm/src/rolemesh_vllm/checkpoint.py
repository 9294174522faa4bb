"""The content of a checkpoint, from the headers of its safetensors files, and the check that new weights fit it.

vLLM's reload accepts anything: a wrong name fails half-way through, and a missing one silently keeps the old tensor. So
names and shapes are compared before anything changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rolemesh.api.batch import Shard
from rolemesh.errors import OptionsError, did_you_mean
from rolemesh_torch.model_folder import INDEX, WEIGHTS, config_of, header_of, weight_files

__all__ = ["HEAD", "check_adapted_layers", "check_same_model", "checkpoint_shapes", "complete_names", "in_pieces"]
__all__ += ["check_weight_files", "loaded_files", "missing_layer", "tied_embedding"]

HEAD = "lm_head.weight"
EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "word_embeddings.weight", "embed_in.weight")


def loaded_files(model: Path) -> list[Path]:
    """Return the files with the model's weights: those that the trainer reads, or all safetensors, as vLLM does, in a
    folder without them."""
    return weight_files(model) or sorted(model.glob("*.safetensors"))


def check_weight_files(model: Path, engine: Mapping[str, Any]) -> list[OptionsError]:
    """Check that vLLM's loader reads the files of `loaded_files`. Beside ``model.safetensors`` it would read all
    safetensors, if no index names them. Skipped if the options set `load_format`."""
    if not (model / WEIGHTS).is_file() or (model / INDEX).is_file():
        return []
    others = sorted(path.name for path in model.glob("*.safetensors") if path.name != WEIGHTS)
    if not others or "load_format" in engine:
        return []
    what = f"the model folder {model} has {', '.join(others)} beside model.safetensors, and vLLM would read all of them"
    remedy = "move those that are not the model's weights to another folder"
    return [OptionsError(what, where="model", remedy=remedy)]


def checkpoint_shapes(model: Path) -> dict[str, tuple[int, ...]]:
    """Return name and shape of every tensor in the model's safetensors files; empty if there are none."""
    shapes: dict[str, tuple[int, ...]] = {}
    for path in loaded_files(model):
        shapes |= {name: tuple(entry["shape"]) for name, entry in header_of(path)[1].items()}
    return shapes


_OF_NO_EFFECT = re.compile(
    r"_?name_or_path|.*dtype|.*version.*|use_cache|.*_token_id|.*drop.*|architectures|initializer.*"
)
"""Keys of a config.json that do not change the result of a forward pass."""


def check_same_model(options: Any, role: str, theirs: Any) -> list[OptionsError]:
    """Check that the model of `role`, whose options are `theirs`, computes the same as `options.model` with equal
    weights.

    Skips folders that cannot be read, and roles without an option `model`.
    """
    other = getattr(theirs, "model", None)
    if not isinstance(other, str) or other == options.model:
        return []
    try:
        one, two = (config_of(Path(each)) for each in (options.model, other))
    except OptionsError:
        return []
    differ = sorted(k for k in one.keys() & two.keys() if one[k] != two[k] and not _OF_NO_EFFECT.fullmatch(k))
    if not differ:
        return []
    values = ", ".join(f"{key} {one[key]!r} and {two[key]!r}" for key in differ[:4])
    return [
        OptionsError(
            f"{options.model} is another model than {other} of {role}, whose weights it takes: {values}",
            where="model",
            remedy=f"give both roles the same folder, e.g. here {other}",
        )
    ]


def missing_layer(layer: str) -> str:
    """Return the message about a `layer` with adapters that has no matrix of its own in the rollout model's
    checkpoint."""
    tied = " (a tied head is the embedding's)" if layer == HEAD.removesuffix(".weight") else ""
    return f"the rollout model's checkpoint has no {layer}.weight{tied}, into which its adapter could be merged"


def check_adapted_layers(options: Any, role: str, theirs: Any) -> list[OptionsError]:
    """Check that the layers that `role`, whose options are `theirs`, adapts (`lora.targets`) are in `options.model`."""
    targets = getattr(getattr(theirs, "lora", None), "targets", None)
    shapes = checkpoint_shapes(Path(options.model)) if isinstance(targets, list) else {}
    return [
        OptionsError(
            f"{role} adapts {target}, but {missing_layer(target)}",
            where="model",
            remedy=f"leave {target} out of roles.{role}.options.lora.targets",
        )
        for target in (targets if shapes else ())
        if not any(f".{name}".endswith(f".{target}.weight") for name in shapes)
    ]


def tied_embedding(shapes: Mapping[str, tuple[int, ...]]) -> str | None:
    """Return the name of the input embedding, to which a tied head belongs; None if unknown."""
    names = [name for name in shapes if name.endswith(EMBEDDINGS)]
    return names[0] if len(names) == 1 else None


def in_pieces(value: Any) -> Sequence[Shard]:
    """Return the pieces of a tensor in the form in which the operator gets them; for an array, the array itself."""
    return value if isinstance(value, list) else [Shard(value, value.shape, (0,) * len(value.shape))]


def complete_names(
    weights: Mapping[str, Sequence[Shard]], shapes: Mapping[str, tuple[int, ...]], tied: str | None
) -> dict[str, Sequence[Shard]]:
    """Return `weights` with a tied head added. Raises `ValueError` unless names and shapes are the checkpoint's.

    vLLM needs the tied head too: on CPUs its matrix is a copy, which a new embedding does not refresh.
    """
    given = dict(weights)
    if tied is not None and tied in given:
        given.setdefault(HEAD, given[tied])
    if not shapes:
        return given
    expected = dict(shapes)
    if tied is not None:
        expected.setdefault(HEAD, shapes[tied])
    if unknown := sorted(given.keys() - expected.keys()):
        raise ValueError(
            f"{len(unknown)} tensors are not in the rollout model's checkpoint, e.g. {unknown[0]!r}; "
            f"{_hint(unknown[0], expected)} Trainer and rollout must be given the same model."
        )
    if missing := sorted(expected.keys() - given.keys()):
        raise ValueError(
            f"{len(missing)} of the model's {len(expected)} tensors are missing, e.g. {missing[0]!r}; "
            "they would silently keep their old values. Send the full state."
        )
    for name, value in given.items():
        if value[0].shape != expected[name]:
            raise ValueError(f"{name!r} has shape {value[0].shape}, the model's is {expected[name]}")
    return given


def _hint(name: str, expected: Mapping[str, Any]) -> str:
    return did_you_mean(name, expected) or f"it has names like {min(expected)!r}."
