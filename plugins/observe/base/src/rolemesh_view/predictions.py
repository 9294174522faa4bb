"""Predictions for other numbers of ranks, from the model of the scaler `bottleneck`, and what resizes then did. Pure.

The model needs the load of the job. The accounts of its ranks have the same times as the load that scalers get.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from rolemesh.api.observer import Event, StepMetrics
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.scalers import EdgeLoad, Load, RoleLoad
from rolemesh_facts.sizes import sizes_at, sizes_of
from rolemesh_facts.time_use import Use, edge_uses, overall
from rolemesh_recorder.lines import FlowEdge, FlowFile
from rolemesh_scaler_bottleneck import Bottleneck, Model

__all__ = ["SETTLING_S", "Forecast", "Prediction", "Resize", "change", "forecast", "load_of", "predicted", "resizes"]

LEAST = 0.01
"""Minimum share by which a step changes, for a prediction of a role with more ranks."""
SETTLING_S = 2.0
"""Seconds after a resize that do not count, because all ranks begin at one step and edges are empty."""
LEAST_STEPS, LEAST_S = 5, 3.0
"""Minimum number of steps, and of seconds, from which the duration of a step is measured."""


class Prediction(NamedTuple):
    """Steps are `shorter` (share from 0 to 1; below 0: longer) if `role` has `then` ranks instead of `now`."""

    role: str
    now: int
    then: int
    shorter: float

    def __str__(self) -> str:
        return f"{self.role} {self.now} → {self.then} ranks: {change(self.shorter)}"


class Forecast(NamedTuple):
    """The bottleneck, the share of a step that its work takes, and predictions, the best one first.

    `explained`: whether roles' work explains the time of a step. `share` is the share that it explains.
    """

    bottleneck: Bottleneck | None
    busy: float
    predictions: tuple[Prediction, ...]
    explained: bool
    share: float


class Resize(NamedTuple):
    """A resize, from its request to its outcome. Times are in seconds since 1970, `done` is 0 until it is done.

    `refused` says why the job has kept its ranks; "" if it has not.
    `before` and `after` are the durations of a step in seconds; None if there were too few steps. That before the
    request is measured from `since` on.
    """

    number: int
    was: dict[str, int]
    sizes: dict[str, int]
    reason: str
    since: float
    asked: float
    done: float
    before: float | None
    after: float | None
    refused: str = ""

    def __str__(self) -> str:
        return ", ".join(f"{role} {self.was[role]} → {size} ranks" for role, size in self.sizes.items())

    @property
    def shorter(self) -> float | None:
        """The share by which steps got shorter; None if it is not known."""
        return 1.0 - self.after / self.before if self.before and self.after is not None else None


def change(shorter: float) -> str:
    """Return the change of a step's duration in words."""
    if abs(shorter) < LEAST:
        return "steps as long as now"
    return f"steps {abs(shorter):.0%} {'shorter' if shorter > 0 else 'longer'}"


def load_of(flow: FlowFile, uses: Mapping[RankRef, Use], sizes: Mapping[str, int]) -> Load | None:
    """Return the load of a job with `sizes`; None if a role has no account. Limits and room are left out.

    A role that makes more steps than the job, because it runs ahead, counts with the work of as many steps only. One
    that makes fewer, because it ran ahead before, counts with the work of all; so do all roles if no whole step ended.
    """
    found: dict[str, list[Use]] = {role: [] for role in sizes}
    for ref, use in uses.items():
        if use.wall and ref.rank < sizes.get(ref.role, 0):
            found[ref.role].append(use)
    if not all(found.values()):
        return None
    made = {role: sum(use.steps for use in each) / len(each) for role, each in found.items()}
    all_uses = [use for each in found.values() for use in each]
    ended = min((use.finished for use in all_uses), default=0)
    steps = ended - min((use.finished - use.steps for use in all_uses), default=0)
    scale = {role: steps / each if each and steps >= 1 else 1.0 for role, each in made.items()}
    roles = [
        RoleLoad(
            role, size, size, size, size,
            min(1.0, overall(found[role]).share("computing") * scale[role]),
        )
        for role, size in sizes.items()
    ]  # fmt: skip
    living = {ref: use for ref, use in uses.items() if ref.rank < sizes.get(ref.role, 0)}
    edges = [
        EdgeLoad(
            use.producer, use.consumer, flow.ops[flow.edges[use.edge].dst].label, use.param, use.waiting, use.blocked,
            _lag(flow, flow.edges[use.edge]),
        )
        for use in edge_uses(flow, living)
        if use.producer != use.consumer
    ]  # fmt: skip
    return Load(0.0, 0.0, tuple(roles), tuple(edges))


def _lag(flow: FlowFile, edge: FlowEdge) -> int:
    """Return the lag as `EdgeLoad` has it."""
    role, steps = flow.ops[edge.dst].role, re.search(r"\d+", edge.lag)
    sends = [each.src for each in flow.edges if flow.ops[each.src].role == role != flow.ops[each.dst].role]
    return (int(steps[0]) if steps else 0) + (bool(sends) and max(sends) < edge.dst)


def forecast(load: Load) -> Forecast:
    """Return what one rank more of each role, or one less, does to the duration of a step.

    One rank more is left out if it changes nothing, and so are all predictions if the work of roles does not explain
    the time of a step. One rank less is left out if steps get longer.
    """
    model = Model(load)
    share = model.step(model.sizes)
    if not model.explained:
        return Forecast(None, 0.0, (), False, share)
    found = []
    for role, size in model.sizes.items():
        more = Prediction(role, size, size + 1, model.shorter({role: size + 1}))
        less = Prediction(role, size, size - 1, model.shorter({role: size - 1}) if size > 1 else -1.0)
        found += [more] if more.shorter >= LEAST else []
        found += [less] if less.shorter > -LEAST else []
    held = model.bottleneck()
    busy = model.work[held.role] / model.sizes[held.role] if held else 0.0
    return Forecast(held, busy, tuple(sorted(found, key=lambda each: -each.shorter)), True, share)


def predicted(load: Load | None, sizes: Mapping[str, int]) -> float | None:
    """Return the share by which the model makes steps shorter with `sizes`; None if it does not explain their time."""
    model = Model(load) if load is not None else None
    known = model is not None and model.explained and sizes.keys() <= model.sizes.keys()
    return model.shorter(sizes) if model is not None and known and all(sizes.values()) else None


def step_s(lines: Sequence[StepMetrics], since: float, until: float) -> float | None:
    """Return the duration of a step, in seconds, between two times in seconds since 1970; None for too few steps."""
    ended = [line for line in lines if since <= line.time <= until]
    if not ended:
        return None
    steps, seconds = ended[-1].step - ended[0].step, ended[-1].time - ended[0].time
    return seconds / steps if steps >= LEAST_STEPS and seconds >= LEAST_S else None


def resizes(
    flow: FlowFile, events: Sequence[Event], lines: Sequence[StepMetrics], window_s: float = 60.0
) -> list[Resize]:
    """Return all resizes, also refused ones, the latest first.

    The duration of a step is that of `window_s` seconds at most before the request, and after the outcome.
    """
    refused = {e.data.get("number"): str(e.data.get("why", "")) for e in events if e.kind == "resize_refused"}
    done = {event.data.get("number"): event.time for event in events if event.kind == "resized"}
    asked = [event for event in events if event.kind == "resize_asked"]
    turns = [event.time for event in asked if event.data.get("number") not in refused]
    turns += [event.time for event in events if event.kind == "resized"]
    found = []
    for event in asked:
        number = event.data.get("number")
        ended = done.get(number, 0.0)
        begun = max((time for time in turns if time < event.time), default=0.0)
        over = min((time for time in turns if time > ended), default=float("inf"))
        since = max(begun + SETTLING_S, event.time - window_s)
        before = step_s(lines, since, event.time) if number not in refused else None
        after = step_s(lines, ended + SETTLING_S, min(over, ended + SETTLING_S + window_s)) if ended else None
        was = sizes_at(flow, events, event.time)
        wanted = sizes_of(event)
        found.append(
            Resize(
                number if isinstance(number, int) else 0, {role: was.get(role, 0) for role in wanted}, wanted,
                str(event.data.get("reason", "")), since, event.time, ended, before, after, refused.get(number, ""),
            )
        )  # fmt: skip
    return found[::-1]
