"""The scaler of ``--nnodes MIN:MAX``: it uses whole nodes as soon as they have room."""

from __future__ import annotations

from pydantic import Field

from rolemesh_durable.scalers import Load, Scaler, ScalerOptions, Wanted

__all__ = ["Room", "RoomOptions"]


class RoomOptions(ScalerOptions):
    """Number of ranks per node."""

    period_s: float = Field(default=1.0, gt=0, description="See every scaler; here 1 s by default.")
    agree: int = Field(default=3, ge=1, description="See every scaler; here 3 by default.")
    cool_down_s: float = Field(default=10.0, ge=0, description="See every scaler; here 10 s by default.")
    per_node: int = Field(default=1, ge=1, description="Number of ranks that are added together.")


class Room(Scaler):
    """Grows a role to the available room. The level `shrink` reduces it when a node is lost."""

    Options = RoomOptions
    options: RoomOptions

    def decide(self, load: Load) -> Wanted | None:
        """See `Scaler.decide`."""
        per_node, wanted = self.options.per_node, {}
        for role in load.roles:
            size = min(role.room, role.most) // per_node * per_node
            if size > role.ranks:
                wanted[role.role] = size
        told = ", ".join(f"there is room for {size} ranks of {role}" for role, size in wanted.items())
        return Wanted(wanted, told) if wanted else None
