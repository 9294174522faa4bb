"""The extensions' parts of a driver's process, in the order in which it starts them.

The driver makes each with the job that it follows (`Followed`), and calls its `start` and `stop`.
"""

from __future__ import annotations

from rolemesh_durable.extensions.scaling.growth import Followed, Growth

__all__ = ["DRIVER_PARTS", "Followed", "Growth"]

DRIVER_PARTS = (Growth,)
