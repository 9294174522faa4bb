"""The master's part of each extension, in the order in which the machine calls them.

An extension comes after those that it calls. `shells` has the parts that do I/O.
"""

from __future__ import annotations

from rolemesh_durable.extensions.bans.master import Bans
from rolemesh_durable.extensions.checks.master import Checks
from rolemesh_durable.extensions.hangs.master import HangWatch
from rolemesh_durable.extensions.rehearsal.master import Rehearsal
from rolemesh_durable.extensions.relayout.draining import Draining
from rolemesh_durable.extensions.relayout.resizing import Resizing
from rolemesh_durable.extensions.replicas.master import Ring
from rolemesh_durable.extensions.scaling.master import Scaling
from rolemesh_durable.extensions.signals.master import Signals
from rolemesh_durable.extensions.stragglers.master import Stragglers
from rolemesh_durable.protocol.master import transitions
from rolemesh_durable.protocol.master.extension import MasterExtension

__all__ = ["KINDS", "MASTER_EXTENSIONS"]

MASTER_EXTENSIONS: tuple[type[MasterExtension], ...] = (
    Checks,
    Resizing,
    Draining,
    Scaling,
    HangWatch,
    Stragglers,
    Rehearsal,
    Ring,
    Signals,
    Bans,
)

_RECORDS = [record for each in MASTER_EXTENSIONS for record in each.records]
KINDS = transitions.KINDS | {str(record.__struct_config__.tag): record for record in _RECORDS}
"""Every kind of event that a master with these extensions journals."""
