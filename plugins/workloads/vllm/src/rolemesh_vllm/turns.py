"""One call of the service `sample`: its parameters, as vLLM takes them, and its answer. No I/O, no vllm."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rolemesh.errors import did_you_mean
from rolemesh_vllm.options import NUCLEUS, PENALTIES

__all__ = ["answer_of", "no_room", "shape_of", "token_ids"]

_LIMITS = ("max_tokens", "min_tokens", "stop", "stop_token_ids", "ignore_eos")
_CHOICE = ("temperature", "seed", *NUCLEUS, *PENALTIES, "allowed_token_ids", "bad_words", "structured_outputs")
NAMES = frozenset((*_LIMITS, *_CHOICE))
"""Parameters that a caller may set, as ``vllm.SamplingParams`` names them."""
STRUCTURES = ("json", "json_object", "regex", "choice", "grammar")
"""Keys of `structured_outputs`, as ``vllm.StructuredOutputsParams`` names them."""
MOST_STRUCTURE = 64_000
"""Maximum characters of `structured_outputs` as text: vLLM compiles it, which takes time and memory."""
FINISHES = ("stop", "length")


def token_ids(prompt: Any) -> list[int]:
    """Return a prompt's token ids. Raises `ValueError` if there are none, or if they are not integers in one row."""
    ids = np.asarray(prompt)
    if ids.ndim != 1 or not len(ids) or ids.dtype.kind not in "iu":
        raise ValueError(f"a prompt is a row of at least one token id, not {ids.dtype} of shape {ids.shape}")
    found: list[int] = ids.tolist()
    return found


def shape_of(params: Mapping[str, Any], room: int) -> dict[str, Any]:
    """Return the arguments of ``vllm.SamplingParams`` for a prompt that leaves `room` tokens, at least 1.

    `max_tokens` is at most `room`, its default. Sampling at a temperature above 0, the default being 1, needs a `seed`,
    so that a repeated call has the same answer. Raises `ValueError` for unknown parameters, and without a seed.
    """
    if unknown := sorted(set(params) - NAMES):
        hint = did_you_mean(unknown[0], NAMES) or f"the parameters are {', '.join(sorted(NAMES))}"
        raise ValueError(f"sample has no parameter {unknown[0]!r}; {hint}")
    shape = {name: value for name, value in params.items() if value is not None}
    shape["max_tokens"] = min(shape.get("max_tokens", room), room)
    if "min_tokens" in shape:
        shape["min_tokens"] = min(shape["min_tokens"], shape["max_tokens"])
    if shape.get("temperature", 1.0) == 0:
        shape.pop("seed", None)
    elif "seed" not in shape:
        raise ValueError("sampling at a temperature above 0 needs a seed, so that a repeated call has the same answer")
    if "logit_bias" in shape:
        shape["logit_bias"] = {int(token): bias for token, bias in shape["logit_bias"].items()} or None
    if "structured_outputs" in shape:
        _check_structure(shape["structured_outputs"])
    return shape | {"n": 1, "logprobs": 0, "detokenize": bool(shape.get("stop") or shape.get("bad_words"))}


def _check_structure(given: Any) -> None:
    if not isinstance(given, Mapping) or len(given) != 1 or next(iter(given)) not in STRUCTURES:
        raise ValueError(f"structured_outputs is {given!r:.100}, not a mapping with one of {', '.join(STRUCTURES)}")
    if len(repr(given)) > MOST_STRUCTURE:
        raise ValueError(f"structured_outputs has {len(repr(given))} characters, more than {MOST_STRUCTURE}")


def answer_of(
    ids: Sequence[int], logprobs: Sequence[float], versions: NDArray[np.int64], finish: str
) -> dict[str, Any]:
    """Return the answer of `sample`. Raises `RuntimeError` for log-probabilities that are not numbers, and for an end
    that the engine itself has caused."""
    for at in np.flatnonzero(~np.isfinite(logprobs))[:1]:
        raise RuntimeError(
            f"the log-probability of token {at} is {logprobs[at]}; its weights are version {versions[at]}"
        )
    if finish not in FINISHES:
        raise RuntimeError(f"the engine has ended the request: {finish}")
    return {
        "ids": np.asarray(ids, np.int32),
        "logprobs": np.asarray(logprobs, np.float32),
        "versions": versions,
        "finish": finish,
    }


def no_room() -> dict[str, Any]:
    """Return the answer for a prompt that leaves no room for a token: no tokens, and the end `length`."""
    return answer_of([], [], np.zeros(0, np.int64), "length")
