"""The scaler `memory`: enough ranks that what a role holds fits in their memory."""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil

from pydantic import Field

from rolemesh_durable.scalers import Load, Scaler, ScalerOptions, Wanted

__all__ = ["MemoryOptions", "MemoryScaler"]

METRIC = "memory"


class MemoryOptions(ScalerOptions):
    """The share of memory from which a role gets more ranks."""

    agree: int = Field(default=1, ge=1, description="Number of equal decisions in a row before a resize.")
    roles: list[str] = Field(default_factory=list, description="The roles that it resizes; empty: all with a range.")
    full: float = Field(
        default=0.7, gt=0, le=1, description="A role grows if its ranks use more than this share of their memory."
    )


class MemoryScaler(Scaler):
    """Grows roles whose ranks divide what they hold, and report the metric `memory`: used share of `memory_gb`."""

    Options = MemoryOptions
    options: MemoryOptions

    def decide(self, load: Load) -> Wanted | None:
        """See `Scaler.decide`."""
        sizes, why = dict[str, int](), list[str]()
        for role in load.roles:
            used = next(_reported(load, role.role), 0.0)
            size = min(max(ceil(role.ranks * used / self.options.full), role.ranks), role.most, role.room)
            if role.role in (self.options.roles or [role.role]) and size > role.ranks:
                sizes[role.role] = size
                why.append(
                    f"{role.role} should have {size} ranks instead of {role.ranks}: they use {used:.0%} of memory"
                )
        return Wanted(sizes, "; ".join(why)) if sizes else None


def _reported(load: Load, role: str) -> Iterator[float]:
    """Yield what the role's ranks have reported, the newest first."""
    for line in reversed(load.metrics):
        for label, values in line.operators.items():
            if label.partition(".")[0] == role and METRIC in values:
                yield values[METRIC]
