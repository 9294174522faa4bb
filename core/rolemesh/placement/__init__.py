"""Placement: the requests of roles, plans, and the tools with which strategies make plans. All of
it is pure."""

from rolemesh.placement.builder import PlanBuilder, Wish, broken, smallest_conflict
from rolemesh.placement.capacity import Capacity
from rolemesh.placement.constraints import Apart, Constraint, Placed, Spread, Within
from rolemesh.placement.plan import (
    Assignment,
    PlacementPlan,
    PlacementRequest,
    RoleRequest,
    Slot,
    Strategy,
    Transfer,
    Unplaced,
)
from rolemesh.placement.validation import problems

__all__ = [
    "Assignment",
    "PlacementPlan",
    "PlacementRequest",
    "RoleRequest",
    "Slot",
    "Strategy",
    "Transfer",
    "Unplaced",
]
__all__ += ["Capacity", "PlanBuilder", "Wish", "broken", "problems", "smallest_conflict"]
__all__ += ["Apart", "Constraint", "Placed", "Spread", "Within"]
