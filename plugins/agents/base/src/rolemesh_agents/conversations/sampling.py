"""One turn of the model, sampled by the rollout role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from rolemesh.api.service import CallError, CallTimeoutError
from rolemesh.api.workload import RankContext
from rolemesh_agents.errors import ConversationFailedError

__all__ = ["SampledTurn", "sample_turn"]

SERVICE: Final = "sample"
"""The rollout's service: ``sample(prompt_ids, params)``."""

Ints = np.ndarray[Any, np.dtype[Any]]


class SampledTurn(msgspec.Struct, frozen=True):
    """The answer of the rollout: tokens, and for each its log-probability and the version of the weights.

    `finish`: "stop" or "length". `seconds`: time for which the rollout has worked. `waited`: seconds for which the call
    waited for the trainer's weights. Both are 0 if the rollout does not say.
    """

    ids: Ints
    logprobs: Ints
    versions: Ints
    finish: str
    seconds: float = 0.0
    waited: float = 0.0


async def sample_turn(
    ctx: RankContext[Any], role: str, prompt: Ints, params: Mapping[str, Any], timeout: float | None
) -> SampledTurn:
    """Let a rank of `role` sample a turn that continues `prompt`, and check its answer.

    Raises `ConversationFailedError` if the rollout fails, is late, or returns something else than a turn.
    """
    try:
        answer = await ctx.call(role, SERVICE, prompt, dict(params), timeout=timeout)
    except CallTimeoutError as error:
        raise ConversationFailedError(f"role {role} is late: {error.what}", remedy="raise limits.turn_s") from None
    except CallError as error:
        raise ConversationFailedError(f"role {role} failed: {error.what}") from None
    ids = np.array(answer["ids"], np.int32)
    logprobs, versions = np.array(answer["logprobs"], np.float32), np.array(answer["versions"], np.int64)
    if not len(ids) == len(logprobs) == len(versions):
        told = f"{len(ids)} tokens, {len(logprobs)} log-probabilities, {len(versions)} versions"
        raise ConversationFailedError(f"role {role} returned a turn of {told}")
    if not np.isfinite(logprobs).all():
        raise ConversationFailedError(f"role {role} returned a log-probability that is not finite")
    seconds, waited = (float(answer.get(name, 0.0)) for name in ("seconds", "waited"))
    return SampledTurn(ids, logprobs, versions, str(answer["finish"]), seconds, waited)
