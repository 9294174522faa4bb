"""The API of a scaler, a kind of plugin of this engine: it chooses the roles' numbers of ranks while the job runs.

A job file lists scalers under ``plugins.scalers``. The master asks each of them periodically, with the job's load. It
then resizes the job as `rolemesh scale` does: within ``world_size: {min, max}``, if there is room.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import msgspec
from pydantic import BaseModel, Field

from rolemesh.api.observer import StepMetrics
from rolemesh.api.plugin import Plugin
from rolemesh.kinds import Kind

__all__ = ["KIND", "EdgeLoad", "Load", "RoleLoad", "Scaler", "ScalerOptions", "Wanted"]

KIND = Kind(
    "scalers",
    "scaler",
    "rolemesh_durable.scalers:Scaler",
    ("master",),
    conformance="rolemesh_testing:ScalerConformance",
)


class ScalerOptions(BaseModel, extra="forbid"):
    """Limits of a scaler's decisions. A scaler's options are this class or derive from it."""

    period_s: float = Field(
        default=10.0, gt=0, description="Seconds between decisions, and the period that its measurements cover."
    )
    agree: int = Field(default=3, ge=1, description="Number of equal decisions in a row before a resize.")
    cool_down_s: float = Field(
        default=60.0, ge=0, description="Seconds without decisions after the job's start and after a resize."
    )


class RoleLoad(msgspec.Struct, frozen=True):
    """The load of a role.

    It may have `least` to `most` ranks. Without limits in the job file, both equal `ranks`. There is room for `room`
    ranks, as far as the master knows. `busy` is the share of the time (0 to 1) that its ranks were in operators, on
    average.
    """

    role: str
    ranks: int
    least: int
    most: int
    room: int
    busy: float


class EdgeLoad(msgspec.Struct, frozen=True):
    """The load of an edge from role `producer` to role `consumer`, which takes it as `param` of its call `call`.

    `waiting` is the share of the time (0 to 1) that the consumer's ranks waited for values, on average. `blocked` is
    the share that the producer's ranks waited for the consumer to take values. The consumer's own values of a step
    depend on the value of `lag` steps before. This is the lag in the flow, and one step more if `call` comes behind all
    calls that send to other roles.
    """

    producer: str
    consumer: str
    call: str
    param: str
    waiting: float
    blocked: float
    lag: int = 0


class Load(msgspec.Struct, frozen=True):
    """The job in the last `window_s` seconds. `since_resize_s` ago it was resized, or began, for this master.

    `now` is the time in seconds since 1970. Decide by it and by no other clock, so that the same load has the same
    answer. `metrics` are the lines of ``metrics.jsonl`` of the window, the latest last, at most 1000. A restarted
    master has no lines from before. `run_dir` is the run's folder on the master's machine.
    """

    window_s: float
    since_resize_s: float
    roles: tuple[RoleLoad, ...]
    edges: tuple[EdgeLoad, ...]
    now: float = 0.0
    metrics: tuple[StepMetrics, ...] = ()
    run_dir: str = ""


class Wanted(msgspec.Struct, frozen=True):
    """Roles should have `sizes` ranks. The journal records the `reason`."""

    sizes: dict[str, int]
    reason: str


class Scaler(Plugin, ABC):
    """Base of scalers (entry-point group ``rolemesh.scalers``)."""

    Options: ClassVar[type[BaseModel]] = ScalerOptions

    @abstractmethod
    def decide(self, load: Load) -> Wanted | None:
        """Return how many ranks roles should have; None if all is well. Pure: the same load has the same answer.

        An instance lives as long as the master; the next master may ask again. The master keeps sizes within the roles'
        limits. It calls this in a thread of its own, one call at a time. The job's warnings show any error that this
        raises.
        """
