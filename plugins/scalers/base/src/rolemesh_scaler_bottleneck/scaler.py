"""The scaler `bottleneck`: where the ranks of a budget go, and when a resize is worthwhile."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from pydantic import Field, PositiveFloat

from rolemesh.errors import RolemeshError, nearest
from rolemesh_durable.scalers import Load, RoleLoad, Scaler, ScalerOptions, Wanted
from rolemesh_scaler_bottleneck.model import Model

__all__ = ["BottleneckOptions", "BottleneckScaler"]


class BottleneckOptions(ScalerOptions):
    """The budget of ranks, and the thresholds for a resize."""

    period_s: float = Field(
        default=5.0, gt=0, description="Seconds between decisions, and the period that its measurements cover."
    )
    agree: int = Field(default=2, ge=1, description="Number of equal decisions in a row before a resize.")
    cool_down_s: float = Field(
        default=10.0, ge=0, description="Seconds without decisions after the job's start and after a resize."
    )
    roles: list[str] = Field(default_factory=list, description="The roles that it resizes; empty: all with a range.")
    budget: float | None = Field(
        default=None, gt=0, description="Maximum cost of all their ranks; null: limited only by the available room."
    )
    cost: dict[str, PositiveFloat] = Field(
        default_factory=dict, description="Cost of a rank by role, such as its CPUs or GPUs. Default: 1."
    )
    gain: float = Field(
        default=0.05, gt=0, lt=1, description="Minimum share by which steps must get shorter for a resize."
    )
    utilization: float = Field(
        default=0.9,
        gt=0,
        le=1,
        description="Share of the time that ranks are busy if a role without a range is the slowest.",
    )
    idle: float = Field(
        default=0.75,
        gt=0,
        le=1,
        description="A role shrinks if its remaining ranks would be busy for at most this share of the time.",
    )


class BottleneckScaler(Scaler):
    """Divides ranks among roles so that steps are as short as possible, and takes back those that are not needed."""

    Options = BottleneckOptions
    options: BottleneckOptions

    def decide(self, load: Load) -> Wanted | None:
        """See `Scaler.decide`."""
        self._check(load)
        model, options = Model(load), self.options
        mine = {r.role: r for r in load.roles if r.least < r.most and r.role in (options.roles or [r.role])}
        cost = {role: options.cost.get(role, 1.0) for role in mine}
        held = model.bottleneck()
        over = _cost(model.sizes, cost) > self._budget
        sizes: dict[str, int] = {}
        if held is not None or over:
            sizes = self._best(model, mine, cost, over)
        if not sizes:
            sizes = model.spare({role: r.least for role, r in mine.items()}, options.idle)
        if not sizes:
            return None
        why = str(held) if held is not None else "nobody waits for its roles"
        told = ", ".join(f"{role} {model.sizes[role]} → {size}" for role, size in sizes.items())
        busy = ", ".join(f"{r.role} {r.busy:.0%}" for r in load.roles)
        return Wanted(sizes, f"{why}; ranks: {told} (busy: {busy})")

    @property
    def _budget(self) -> float:
        return inf if self.options.budget is None else self.options.budget

    def _best(
        self, model: Model, mine: Mapping[str, RoleLoad], cost: Mapping[str, float], over: bool
    ) -> dict[str, int]:
        """Return new sizes for the roles `mine`, if steps become sufficiently shorter or the ranks cost too much.

        A role that grows takes the rest of the budget first, then ranks from roles that have more than they need. It
        gets no more than there is room for now; a rank that is given up makes room at the next decision.
        """
        capped = self.options.budget is None
        most = {role: min(r.most, r.room) if capped else r.most for role, r in mine.items()}
        least = {role: r.least for role, r in mine.items()}
        best = model.allocate(most, least, cost, self._budget, self.options.utilization)
        if not over and model.shorter(best) < self.options.gain:
            return {}
        sizes = {role: max(best[role], r.ranks) for role, r in mine.items()}
        while _cost(sizes, cost) > self._budget and (rich := [role for role in mine if sizes[role] > best[role]]):
            sizes[max(rich, key=lambda role: sizes[role] / best[role])] -= 1
        bounded = {role: min(size, max(mine[role].room, mine[role].ranks)) for role, size in sizes.items()}
        return {role: size for role, size in bounded.items() if size != model.sizes[role]}

    def _check(self, load: Load) -> None:
        """Check that the names in the options are roles of the job. Raises `RolemeshError`."""
        known = [role.role for role in load.roles]
        for key in ("roles", "cost"):
            for name in getattr(self.options, key):
                if name not in known:
                    what = f"{key} of the scaler bottleneck names {name!r}, which is no role of the job"
                    raise RolemeshError(what, remedy=f"{nearest(name, known)}; roles: {', '.join(known)}")


def _cost(sizes: Mapping[str, int], cost: Mapping[str, float]) -> float:
    return sum(cost[role] * sizes[role] for role in cost)
