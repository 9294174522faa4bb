"""One turn of the model, sampled by the rollout role."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NoReturn

import msgspec
import numpy as np

from rolemesh.api.service import CallError, CallTimeoutError
from rolemesh.api.workload import RankContext
from rolemesh_agents.contract import failed_call
from rolemesh_agents.errors import BreachError, ConversationFailedError

__all__ = ["SampledTurn", "as_turn", "sample_turn"]

SERVICE: Final = "sample"
"""The rollout's service: ``sample(prompt_ids, params)``."""

ROUNDING: Final = 1e-3
"""Highest log-probability that rounding may give a certain token. Exactly, it is at most 0."""

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
    ctx: RankContext, role: str, prompt: Ints, params: Mapping[str, Any], timeout: float | None
) -> SampledTurn:
    """Let a rank of `role` sample a turn that continues `prompt`, and check its answer.

    Raises `ConversationFailedError` if the rollout fails, is late, or returns something else than a turn.
    """
    try:
        answer = await ctx.call(role, SERVICE, prompt, dict(params), timeout=timeout)
    except CallTimeoutError as error:
        raise ConversationFailedError(f"role {role} is late: {error.what}", remedy="raise limits.turn_s") from None
    except CallError as error:
        raise failed_call(role, error) from None
    return as_turn(role, answer, params.get("max_tokens"))


def as_turn(role: str, answer: Any, most: int | None) -> SampledTurn:
    """Return the rollout's answer as a turn of at most `most` tokens.

    Raises `BreachError` for anything else: a token that is changed here would be trained.
    """

    def refuse(what: str) -> NoReturn:
        remedy = f"the README of rolemesh-agents says what the service {SERVICE} returns"
        raise BreachError(f"role {role} returned {what}", remedy=remedy)

    if not isinstance(answer, Mapping):
        refuse(f"{type(answer).__name__} instead of a turn")
    if missing := [name for name in ("ids", "logprobs", "versions", "finish") if name not in answer]:
        refuse(f"a turn without {', '.join(missing)}")
    ids, versions = (_whole(answer[name]) for name in ("ids", "versions"))
    if ids is None or versions is None:
        refuse("tokens or versions that are not a row of whole numbers")
    if len(ids) and not 0 <= ids.min() <= ids.max() < 2**31:
        refuse(f"the token {next(int(each) for each in ids if not 0 <= each < 2**31)}")
    try:
        logprobs = np.array(answer["logprobs"], np.float32)
    except (TypeError, ValueError):
        refuse("log-probabilities that are not a row of numbers")
    if not (len(ids),) == logprobs.shape == versions.shape:
        refuse(f"a turn of {len(ids)} tokens, {logprobs.size} log-probabilities, {len(versions)} versions")
    if most is not None and len(ids) > most:
        refuse(f"{len(ids)} tokens, {most} were asked for")
    if not np.isfinite(logprobs).all():
        refuse("a log-probability that is not finite")
    if len(ids) and logprobs.max() > ROUNDING:
        refuse(f"the log-probability {logprobs.max():g}, which is above 0")
    if answer["finish"] not in ("stop", "length"):
        refuse(f"the finish {answer['finish']!r:.100} instead of stop or length")
    seconds, waited = (float(answer.get(name, 0.0)) for name in ("seconds", "waited"))
    return SampledTurn(ids.astype(np.int32), logprobs, versions, answer["finish"], seconds, waited)


def _whole(found: Any) -> Ints | None:
    """Return a row of int64; None if `found` is something else, such as numbers with fractions."""
    try:
        row = np.asarray(found)
        if row.ndim != 1 or (row.size and row.dtype.kind not in "iu"):
            return None
        return row.astype(np.int64)
    except (TypeError, ValueError, OverflowError):
        return None
