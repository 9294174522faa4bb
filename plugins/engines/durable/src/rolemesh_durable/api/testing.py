"""For conformance kits: the parts of the engine that a plugin meets, to be run without a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolemesh_durable.api import importer, names

if TYPE_CHECKING:
    from rolemesh_durable.engine import DurableEngine as DurableEngine
    from rolemesh_durable.plugin_calls import asked as asked
    from rolemesh_durable.protocol.master.ladder import LadderLevel as LadderLevel
    from rolemesh_durable.protocol.master.ladder import propose as propose
    from rolemesh_durable.protocol.master.replan import replan as replan
    from rolemesh_durable.protocol.master.replan import stranded_in as stranded_in
    from rolemesh_durable.protocol.messages import Peer as Peer
    from rolemesh_durable.protocol.messages import RankLaunch as RankLaunch
    from rolemesh_durable.rank.arrived import Arrived as Arrived
    from rolemesh_durable.rank.endpoint import Endpoint as Endpoint
    from rolemesh_durable.rank.values import INLINE_BYTES as INLINE_BYTES

_HOMES = {
    "engine": "DurableEngine",
    "plugin_calls": "asked",
    "protocol.master.ladder": "LadderLevel propose",
    "protocol.messages": "Peer RankLaunch",
    "protocol.master.replan": "replan stranded_in",
    "rank.arrived": "Arrived",
    "rank.endpoint": "Endpoint",
    "rank.values": "INLINE_BYTES",
}
__all__ = names(_HOMES)
__getattr__ = importer(__name__, _HOMES)
