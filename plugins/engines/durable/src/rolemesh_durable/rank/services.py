"""The parts of a rank's process that its extensions use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from rolemesh.api.workload import RankContext, Workload
from rolemesh_durable.protocol.extension_message import ExtensionMessage
from rolemesh_durable.protocol.rank.effects import Waits
from rolemesh_durable.protocol.rank.extension import RankExtension
from rolemesh_durable.protocol.rank.group_barrier import GroupBarrier
from rolemesh_durable.protocol.rank.master_mail import MasterMail
from rolemesh_durable.protocol.rank.ports import Ports
from rolemesh_durable.protocol.rank.shape import JobShape
from rolemesh_durable.protocol.starts import RankStart
from rolemesh_durable.rank.channel import Channels, Receive, Send
from rolemesh_durable.rank.endpoint import Endpoint
from rolemesh_durable.rank.event_loop import Tasks
from rolemesh_durable.rank.meter import Meter
from rolemesh_durable.rank.sent_log import SentLog
from rolemesh_durable.rank.status_page import StatusPage
from rolemesh_durable.rank.waits import ProcessWaits

__all__ = ["Extending", "Rank", "RankPlace"]


@dataclass(frozen=True)
class RankPlace:
    """A rank whose workload is not set up yet."""

    start: RankStart
    """The agent's order: the rank's launch and its job."""
    endpoint: Endpoint
    """The connections to peers and to the agent."""
    status_page: StatusPage
    """The page on which the rank shows its position."""
    master: MasterMail
    """Messages between the rank's extensions and their parts in the master."""
    barrier: GroupBarrier | None
    """The barrier of the rank's collective group; None for a rank without one."""
    waits: ProcessWaits
    """The rank's way to wait."""


@dataclass(frozen=True)
class Rank:
    """A rank whose workload is set up."""

    ctx: RankContext
    """The workload's context."""
    workload: Workload
    """The workload."""
    status_page: StatusPage
    """The page on which the rank shows its position."""
    meter: Meter
    """The rank's times, and its lines of metrics."""
    ports: Ports[Any]
    """The rank's ends of its edges."""
    log: SentLog | None
    """The log of the rank's sent values; None in a job that takes no snapshots while it runs."""
    tasks: Tasks
    """The tasks of operators, and the event loop for coroutines."""
    channels: Channels
    """Messages between the parts of an extension in several ranks."""
    master: MasterMail
    """Messages between the rank's extensions and their parts in the master."""

    def record(self, values: Mapping[str, Any]) -> None:
        """Put JSON values into the `records` of the rank's present line of metrics.

        The names must differ from those of other ranks and extensions.
        """
        self.meter.record(values)

    def open_channel(self, name: str, receive: Receive) -> Send:
        """Open a channel between the parts of the extension in all ranks: see `Channels.open`."""
        return self.channels.open(name, receive)

    def tell_master(self, message: ExtensionMessage) -> None:
        """Send a message to the extension's part in the master, which takes it in `MasterExtension.heard`.

        It replaces the last one of its class: the master gets the newest, and maybe not all before it. Does nothing if
        it equals the last one. Raises `msgspec.ValidationError` if a field has another type than its class says.
        """
        self.master.say(message)

    @property
    def waits(self) -> Waits:
        """The rank's way to wait."""
        return self.ports.waits

    @property
    def job(self) -> JobShape:
        """The flow, the sizes of its roles, and what ranks keep."""
        return self.ports.job


class Extending(Protocol):
    """An extension, as a rank's process sees it: see `rolemesh_durable.extensions.Extension`."""

    def started(self, place: RankPlace) -> None: ...

    def before_setup(self, place: RankPlace) -> None: ...

    def in_rank(self, rank: Rank) -> RankExtension | None: ...
