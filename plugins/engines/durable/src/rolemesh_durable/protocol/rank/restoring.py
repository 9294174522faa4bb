"""The order in which a restored rank gets back what it had sent and received."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from rolemesh_durable.protocol.delivery.exact import OriginValues
from rolemesh_durable.protocol.messages import RankLaunch
from rolemesh_durable.protocol.rank.effects import Item
from rolemesh_durable.protocol.rank.former_log import FormerLog, FormerMemory, carry_over, take_over
from rolemesh_durable.protocol.rank.origin_values import restore_inputs
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.records import FormerRecord, InFlight

__all__ = ["Former", "restore_edges"]

R = TypeVar("R", bound=FormerRecord)
C = TypeVar("C", bound=InFlight)
T = TypeVar("T", bound=Item)


@dataclass(frozen=True, slots=True)
class Former(Generic[R, C, T]):
    """The traces of a rank's former generations, on its node and in the persisted snapshot that it starts from."""

    log: FormerLog[R]
    records: Iterable[R]
    """All records of the send log."""
    ours: Iterable[R]
    """Those of this timeline."""
    memory: FormerMemory[R, C, T]
    origin: Callable[[], OriginValues]
    """Returns the persisted snapshot, for consumers."""
    carried: Callable[[], tuple[Iterable[C], Mapping[str, int]]]
    """Returns what the rank had sent when that snapshot was persisted, and the world sizes of that time."""
    keep: Callable[[], None]
    """Writes the state of that snapshot to this node's memory."""


def restore_edges(ports: Ports[T], launch: RankLaunch, sizes: Mapping[str, int], former: Former[R, C, T]) -> None:
    """Give the ports all values that the rank needs after step ``launch.resume``. `sizes` are the world sizes of now.

    The send log comes first, and frees what nobody needs. Then come the values that were in flight in the origin. The
    log gets the rank's own part of them before the first snapshot names a position in the log.
    """
    from_disk, memory = launch.restore == "disk", former.memory
    take_over(ports, former.log, former.records, former.ours, memory, launch.layout, launch.resume, from_disk=from_disk)
    memory.free_rest()
    if launch.origin_step >= 0:
        edges = [edge.id for edge in ports.job.graph.edges]
        restore_inputs(ports, edges, launch.origin_step, former.origin)
    if from_disk:
        carried, before = former.carried()
        carry_over(ports, carried, memory, before, sizes)
        former.keep()
