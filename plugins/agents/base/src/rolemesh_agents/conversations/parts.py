"""A turn that is sampled in parts: each part is a call, so another rank continues the turn of a dead one."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import numpy as np

from rolemesh.api.workload import stable_seed
from rolemesh_agents.conversations.sampling import SampledTurn

__all__ = ["in_parts", "may_be_divided"]

Ids = np.ndarray[Any, np.dtype[Any]]
Sampler = Callable[[Ids, Mapping[str, Any]], Awaitable[SampledTurn]]

WHOLE = ("stop", "bad_words", "presence_penalty", "frequency_penalty", "structured_outputs")
"""Parameters that look at all tokens of a turn, but not at the prompt. A turn with one of them is one part."""


def may_be_divided(params: Mapping[str, Any]) -> bool:
    """Return whether the parts of a turn with these parameters are distributed as the turn."""
    return not any(params.get(name) for name in WHOLE)


async def in_parts(sampler: Sampler, prompt: Ids, params: Mapping[str, Any], part: int | None) -> SampledTurn:
    """Sample a turn of at most `params["max_tokens"]` tokens in calls of at most `part` tokens; None: in one call.

    The caller's log has the finished parts. A part's seed is made of the turn's `seed` and the number of tokens before
    it. So the same turn has the same tokens, whichever ranks sample its parts. Its tokens are not those of the turn in
    one call, or in other parts, except for the first part and for greedy turns.
    """
    limit = int(params["max_tokens"])
    if part is None or limit <= part or not may_be_divided(params):
        return await sampler(prompt, params)
    done: list[SampledTurn] = []
    tokens = 0
    while True:
        given = {**params, "max_tokens": min(part, limit - tokens)}
        if params.get("min_tokens"):
            given["min_tokens"] = min(max(params["min_tokens"] - tokens, 0), given["max_tokens"])
        if tokens and params.get("seed") is not None:
            given["seed"] = stable_seed(params["seed"], "part", tokens)
        made = await sampler(np.concatenate([prompt, *(each.ids for each in done)]), given)
        done.append(made)
        tokens += len(made.ids)
        if made.finish != "length" or len(made.ids) < given["max_tokens"] or tokens >= limit:
            return SampledTurn(
                np.concatenate([each.ids for each in done]),
                np.concatenate([each.logprobs for each in done]),
                np.concatenate([each.versions for each in done]),
                made.finish,
                sum(each.seconds for each in done),
                sum(each.waited for each in done),
            )
