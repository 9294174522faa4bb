"""The scaler `backlog`: find the role that delays others and roles with too little work, and choose their numbers of
ranks.

If a role is always busy and others wait for it during the share w of their time, it must become 1 / (1 - w) times as
fast to stop delaying them. If its ranks share the work, it needs that many times its ranks (after Kalavri et al. 2018,
"Three steps is all you need", section 3). It gets at most twice as many at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import ceil

from pydantic import Field

from rolemesh_durable.scalers import Load, RoleLoad, Scaler, ScalerOptions, Wanted

__all__ = ["BacklogOptions", "BacklogScaler"]


class BacklogOptions(ScalerOptions):
    """Thresholds for delaying others and for having too little work."""

    roles: list[str] = Field(default_factory=list, description="The roles that it resizes; empty: all with a range.")
    busy: float = Field(
        default=0.7,
        gt=0,
        le=1,
        description="A role grows if its ranks compute for this share of the time, and `held_up` holds.",
    )
    held_up: float = Field(
        default=0.2,
        gt=0,
        lt=1,
        description="Share of the time that another role waits for a growing role, for input or for credit.",
    )
    idle: float = Field(
        default=0.3,
        ge=0,
        lt=1,
        description="A role shrinks if its remaining ranks would compute for at most this share of the time.",
    )


class BacklogScaler(Scaler):
    """Grows the role that delays others the most, and shrinks roles that have too little work."""

    Options = BacklogOptions
    options: BacklogOptions

    def decide(self, load: Load) -> Wanted | None:
        """See `Scaler.decide`."""
        found = list(self._changes(load))
        if not found:
            return None
        return Wanted({role: size for role, size, _ in found}, "; ".join(why for _, _, why in found))

    def _changes(self, load: Load) -> Iterable[tuple[str, int, str]]:
        """Yield role, number of ranks, and reason."""
        mine = [r for r in load.roles if r.least < r.most and r.role in (self.options.roles or [r.role])]
        held = {r.role: _held_up_by(r, load) for r in mine}
        slow = [r for r in mine if r.busy >= self.options.busy and held[r.role][0] >= self.options.held_up]
        slow = [r for r in slow if r.ranks < min(r.most, r.room)]
        for r in sorted(slow, key=lambda r: -held[r.role][0])[:1]:
            share, who = held[r.role]
            size = min(2 * r.ranks, ceil(r.ranks / (1 - min(share, 0.99))), r.most, r.room)
            why = f"its ranks computed for {r.busy:.0%} of {load.window_s:.0f} s, and {who} for {share:.0%}"
            yield r.role, size, f"{r.role} should have {size} ranks instead of {r.ranks}: {why}"
        for r in mine:
            enough = max(r.least, ceil(r.ranks * r.busy / self.options.idle)) if self.options.idle else r.ranks
            if enough < r.ranks and held[r.role][0] < self.options.held_up:
                why = f"its ranks computed for {r.busy:.0%} of {load.window_s:.0f} s, and nobody waited for them"
                yield r.role, enough, f"{r.role} should have {enough} ranks instead of {r.ranks}: {why}"


def _held_up_by(role: RoleLoad, load: Load) -> tuple[float, str]:
    """Return the largest share of time that another role lost because of this one, with that role and the kind of
    wait."""
    found = [(0.0, "nobody waited")]
    for edge in load.edges:
        if edge.producer == role.role:
            found.append((edge.waiting, f"{edge.consumer} waited for {edge.param} from it"))
        if edge.consumer == role.role:
            found.append((edge.blocked, f"{edge.producer} waited until it took {edge.param}"))
    return max(found)
