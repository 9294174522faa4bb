"""The extensions' parts of a driver's process, in the order in which it starts them."""

from __future__ import annotations

from rolemesh_durable.control.driver_part import DriverPart
from rolemesh_durable.extensions.scaling.growth import Growth

__all__ = ["DRIVER_PARTS"]

DRIVER_PARTS: tuple[type[DriverPart], ...] = (Growth,)
