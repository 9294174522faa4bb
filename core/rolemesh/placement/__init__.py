"""Placement: what roles ask for, what a plan is, and the tools that strategies make plans with. All of it is pure."""

from rolemesh.placement.builder import PlanBuilder, Wish, broken
from rolemesh.placement.capacity import Capacity
from rolemesh.placement.conflict import smallest_conflict
from rolemesh.placement.constraints import Apart, Constraint, Spread, Within, describe
from rolemesh.placement.plan import (
    Assignment,
    Flow,
    PlacementPlan,
    PlacementRequest,
    RoleRequest,
    Slot,
    Strategy,
    Unplaced,
)
from rolemesh.placement.traffic import Traffic, crossing, pairs
from rolemesh.placement.validation import problems

__all__ = [
    "Apart",
    "Assignment",
    "Capacity",
    "Constraint",
    "Flow",
    "PlacementPlan",
    "PlacementRequest",
    "PlanBuilder",
    "RoleRequest",
    "Slot",
    "Spread",
    "Strategy",
    "Traffic",
    "Unplaced",
    "Wish",
    "Within",
    "broken",
    "crossing",
    "describe",
    "pairs",
    "problems",
    "smallest_conflict",
]
