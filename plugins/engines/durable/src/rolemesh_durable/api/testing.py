"""For conformance kits: the parts of the engine that a plugin meets, to be run without a job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolemesh_durable.api import importer, names

if TYPE_CHECKING:
    from rolemesh_durable.dataplane.codec import decode as decode
    from rolemesh_durable.dataplane.codec import encode as encode
    from rolemesh_durable.dataplane.codec import flat_buffers as flat_buffers
    from rolemesh_durable.dataplane.codec import flatten as flatten
    from rolemesh_durable.dataplane.codec import unflatten as unflatten
    from rolemesh_durable.dataplane.curve import new_keys as new_keys
    from rolemesh_durable.dataplane.transport import Payload as Payload
    from rolemesh_durable.engine import DurableEngine as DurableEngine
    from rolemesh_durable.plugin_calls import asked as asked
    from rolemesh_durable.protocol.master.ladder import LadderLevel as LadderLevel
    from rolemesh_durable.protocol.master.ladder import propose as propose
    from rolemesh_durable.protocol.messages import Peer as Peer
    from rolemesh_durable.protocol.replan import replan as replan
    from rolemesh_durable.protocol.replan import stranded_in as stranded_in
    from rolemesh_durable.rank.arrived import Arrived as Arrived
    from rolemesh_durable.rank.endpoint import Endpoint as Endpoint
    from rolemesh_durable.rank.values import INLINE_BYTES as INLINE_BYTES

_HOMES = {
    "dataplane.codec": "decode encode flat_buffers flatten unflatten",
    "dataplane.curve": "new_keys",
    "dataplane.transport": "Payload",
    "engine": "DurableEngine",
    "plugin_calls": "asked",
    "protocol.master.ladder": "LadderLevel propose",
    "protocol.messages": "Peer",
    "protocol.replan": "replan stranded_in",
    "rank.arrived": "Arrived",
    "rank.endpoint": "Endpoint",
    "rank.values": "INLINE_BYTES",
}
__all__ = names(_HOMES)
__getattr__ = importer(__name__, _HOMES)
