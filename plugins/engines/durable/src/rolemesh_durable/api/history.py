"""For watchers: the events and metrics of a job, from its first to its last, while it runs and afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolemesh_durable.api import importer, names

if TYPE_CHECKING:
    from rolemesh_durable.control.history import events as events
    from rolemesh_durable.control.history import newest_event as newest_event
    from rolemesh_durable.control.history import newest_step as newest_step
    from rolemesh_durable.control.watch import follow as follow

_HOMES = {"control.history": "events newest_event newest_step", "control.watch": "follow"}
__all__ = names(_HOMES)
__getattr__ = importer(__name__, _HOMES)
