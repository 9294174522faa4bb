"""The order in which the stages of a pipeline pass micro-batches forward and backward. Flows import this module, so it
does not use torch."""

from __future__ import annotations

from typing import Literal, NamedTuple

__all__ = ["Pass", "passes"]


class Pass(NamedTuple):
    """A stage's forward or backward pass of a micro-batch; stages and micro-batches count from 0."""

    stage: int
    kind: Literal["forward", "backward"]
    micro: int


def passes(stages: int, micro_batches: int, schedule: Literal["1f1b", "gpipe"] = "1f1b") -> list[Pass]:
    """Return the passes of one step in an order in which a flow may call them: each pass comes after the passes whose
    results it takes.

    A role runs its calls in the order of the flow, so this order is the schedule. ``gpipe`` (Huang et al.,
    arXiv:1811.06965) passes all micro-batches forward, then all backward; each stage holds the activations of every
    micro-batch at once. In ``1f1b`` (Narayanan et al., "PipeDream", SOSP 2019; the flushed form of arXiv:2006.09503),
    stage s of S runs S - s - 1 ahead, then alternates; it holds at most S - s. Both pass backward in the order 0, 1, 2,
    …, so they sum gradients in the same order, and a deterministic job ends with the same bits. Raises `ValueError`.
    """
    if stages < 1 or micro_batches < 1:
        raise ValueError(f"a pipeline has at least 1 stage and 1 micro-batch, not {stages} and {micro_batches}")
    if schedule not in ("1f1b", "gpipe"):
        raise ValueError(f"{schedule!r} is no schedule; known: 1f1b, gpipe")
    left = [_of_stage(stage, stages, micro_batches, schedule) for stage in range(stages)]
    found: list[Pass] = []
    done: set[Pass] = set()
    while any(left):
        # One turn of all stages: what each would do if every pass took the same time.
        turn = [own[0] for own in left if own and _needs(own[0], stages) <= done]
        for each in turn:
            left[each.stage].pop(0)
        found += turn
        done |= set(turn)
    return found


def _of_stage(stage: int, stages: int, micro_batches: int, schedule: str) -> list[Pass]:
    ahead = micro_batches if schedule == "gpipe" else min(stages - stage - 1, micro_batches)
    forward = [Pass(stage, "forward", m) for m in range(micro_batches)]
    backward = [Pass(stage, "backward", m) for m in range(micro_batches)]
    both = [each for pair in zip(forward[ahead:], backward, strict=False) for each in pair]
    return forward[:ahead] + both + backward[micro_batches - ahead :]


def _needs(each: Pass, stages: int) -> set[Pass]:
    stage, kind, micro = each
    if kind == "forward":
        return {Pass(stage - 1, "forward", micro)} if stage else set()
    own = {Pass(stage, "forward", micro)}
    return own if stage == stages - 1 else own | {Pass(stage + 1, "backward", micro)}
