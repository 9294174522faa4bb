"""The API of a scaler: how many ranks roles should have, while the job runs. A kind of plugin of this engine's.

A job file lists scalers under ``plugins.scalers``. The master asks each of them now and then, with what it knows of the
job's load, and has the job resized as `rolemesh scale` does: within ``world_size: {min, max}``, where there is room.
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
    """When a scaler is asked, and what its answers count for. Options of a scaler are this class or derive from it."""

    period_s: float = Field(
        default=10.0, gt=0, description="Seconds between decisions, and the period that its measurements cover."
    )
    agree: int = Field(default=3, ge=1, description="Number of equal decisions in a row before a resize.")
    cool_down_s: float = Field(
        default=60.0, ge=0, description="Seconds without decisions after the job's start and after a resize."
    )


class RoleLoad(msgspec.Struct, frozen=True):
    """A role: how many ranks it has, and what they do.

    It may have `least` to `most` ranks; one without limits in the job file has `ranks` and no others. There is room for
    `room`, as far as is known. `busy` is the share of the time (0 to 1) that its ranks were in operators, on average.
    """

    role: str
    ranks: int
    least: int
    most: int
    room: int
    busy: float


class EdgeLoad(msgspec.Struct, frozen=True):
    """What goes from the role `producer` to the role `consumer`, which takes it as `param` of its call `call`.

    `waiting` is the share of the time (0 to 1) that the consumer's ranks waited for it, on average, and `blocked` the
    share that the producer's ranks could not go on because the consumer had not taken what it had been sent. It takes
    in a step what was made `lag` steps before.
    """

    producer: str
    consumer: str
    call: str
    param: str
    waiting: float
    blocked: float
    lag: int = 0


class Load(msgspec.Struct, frozen=True):
    """The job in the last `window_s` seconds; `since_resize_s` ago it was resized, or has begun, for this master.

    `now` is the time in seconds since 1970: decide by it and by no other clock, so that the same load has the same
    answer. `metrics` are the lines of ``metrics.jsonl`` of the window, the latest last and at most the latest 1000; a
    master that was started again has none from before. `run_dir` is the run's folder on the master's machine.
    """

    window_s: float
    since_resize_s: float
    roles: tuple[RoleLoad, ...]
    edges: tuple[EdgeLoad, ...]
    now: float = 0.0
    metrics: tuple[StepMetrics, ...] = ()
    run_dir: str = ""


class Wanted(msgspec.Struct, frozen=True):
    """Roles should have `sizes` ranks, because of `reason`, which is journalled for whoever asks later."""

    sizes: dict[str, int]
    reason: str


class Scaler(Plugin, ABC):
    """Base of scalers (entry-point group ``rolemesh.scalers``)."""

    Options: ClassVar[type[BaseModel]] = ScalerOptions

    @abstractmethod
    def decide(self, load: Load) -> Wanted | None:
        """How many ranks roles should have; None if all is well. Pure: the same load has the same answer.

        An instance lives as long as the master, and may be asked again by the next one.

        Sizes are brought within the roles' limits. Called in a thread of the master's, one call at a time; whatever it
        raises is told in the job's warnings.
        """
