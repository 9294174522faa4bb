"""The effects of a rank's process: its endpoint, its slots, its status page."""

from __future__ import annotations

from time import monotonic_ns

from rolemesh_dataplane.payload import Payload
from rolemesh_durable.protocol.rank.effects import Effects
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.mail import EndpointMail
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.sent_log import SentLog
from rolemesh_durable.rank.status_page import StatusPage
from rolemesh_durable.rank.values import PayloadValues, SlotMemory
from rolemesh_durable.rank.waits import ProcessWaits

__all__ = ["process_effects"]


def process_effects(
    endpoint: Endpoint, page: StatusPage, waits: ProcessWaits, meter: Meter, log: SentLog | None
) -> Effects[Payload]:
    """Return the effects that `rolemesh_durable.protocol.rank` takes."""
    return Effects(
        page,
        EndpointMail(endpoint),
        waits,
        PayloadValues(endpoint.pool, endpoint.reader, endpoint.lender),
        SlotMemory(endpoint.pool, endpoint.reader, endpoint.lender),
        log,
        meter.aged,
        monotonic_ns,
    )
