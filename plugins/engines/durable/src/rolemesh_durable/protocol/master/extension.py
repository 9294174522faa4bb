"""The contract of a master's extension: a feature that the core of the master's machine does not name.

    event, message or report ─▶ the extension decides ─▶ `context.tell(record)` ─▶ the record changes the slice
                                                    └──▶ `context.want(effect)`, a command, a limit, a warning

An extension is as pure as the core: it has no clock, no thread and no I/O. The machine creates the extensions in the
order of one list, `rolemesh_durable.extensions.shipped.SHIPPED`, and calls each hook in this order.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, ClassVar, NamedTuple, TypeVar, cast

from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.extension_message import ExtensionMessage
from rolemesh_durable.protocol.master.checkpoints import Checkpoints
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.coordinator import Coordinator
from rolemesh_durable.protocol.master.extension_record import ExtensionRecord
from rolemesh_durable.protocol.master.hooks import Handler
from rolemesh_durable.protocol.master.progress import Progress
from rolemesh_durable.protocol.master.slices import SLICES, Slice
from rolemesh_durable.protocol.master.state import AgentRecord, RankRecord
from rolemesh_durable.protocol.master.stop_points import StopPoints
from rolemesh_durable.protocol.master.transitions import OTHERS

__all__ = ["ExtensionRecord", "MasterExtension", "MasterParts", "Slice"]

E = TypeVar("E", bound="MasterExtension")


class MasterParts(NamedTuple):
    """The parts of the machine's core, and the extensions that come before this one in the list."""

    context: MasterContext
    progress: Progress
    checkpoints: Checkpoints
    coordinator: Coordinator
    stops: StopPoints
    others: dict[type[MasterExtension], MasterExtension]

    def extension(self, kind: type[E]) -> E:
        """Return the extension of this class. Raises `KeyError` if the machine has none."""
        return cast("E", self.others[kind])


class MasterExtension:
    """Base of the master's part of an extension. Each hook does nothing by default.

    One instance lives as long as its master. It begins with the job's state from the journal, with its slice.
    """

    records: ClassVar[tuple[type[ExtensionRecord], ...]] = ()
    """The transitions that it journals."""
    slice: ClassVar[type[Slice] | None] = None
    """The part of a job's state that it owns, if any."""
    messages: ClassVar[tuple[type[ExtensionMessage], ...]] = ()
    """The messages of its parts in ranks, for `heard`."""
    words: ClassVar[Mapping[str, str]] = {}
    """The words that it gives `Coordinator.restart` in place of a level's name.

    Each has a sentence that says what has failed if such a restart fails.
    """
    needs: ClassVar[tuple[type[MasterExtension], ...]] = ()
    """The extensions that it calls. They come before it in the list."""

    def __init__(self, parts: MasterParts) -> None:
        self._context = parts.context

    def __init_subclass__(cls, **options: Any) -> None:
        """Register the records and the slice for all readers of a journal."""
        super().__init_subclass__(**options)
        OTHERS.update({str(record.__struct_config__.tag): record for record in cls.records})
        if cls.slice is not None:
            SLICES[cls.slice.key] = cls.slice

    def tell(self, record: ExtensionRecord) -> None:
        """Journal `record`, one of `records`, and apply it. The job's events show it."""
        self._context.tell(record)

    def handlers(self) -> Mapping[type, Handler]:
        """The events, and the messages of agents, that the extension handles.

        They may include those that the core handles.
        """
        return {}

    def begin(self) -> None:
        """A master begins: the first one of the job, or a successor."""

    def turn(self) -> None:
        """Decide what can be decided now.

        Called at the end of each turn, before recoveries and grants, while the job starts or runs.
        """

    def tick(self) -> None:
        """Time has passed. Called about ten times per second while the job starts or runs."""

    def warnings(self) -> Iterable[str]:
        """Return sentences for the job's status: problems and long waits."""
        return ()

    def agent_reported(self, agent: AgentRecord, report: m.Report) -> None:
        """An agent that takes part has reported. The core has handled the report."""

    def rank_reported(self, rank: RankRecord, before: m.RankReport | None, seen: m.RankReport) -> None:
        """An agent has reported `seen` of a rank, and `before` the last time. The core handles it after this."""

    def heard(self, rank: RankRecord, message: ExtensionMessage) -> None:
        """The extension's part in a rank has sent a new message, one of `messages`.

        The newest message of a class comes at least once, and again to a new master. Earlier ones may never come.
        """

    def says(self, rank: RankRecord) -> Iterable[ExtensionMessage]:
        """Return the messages for the extension's part in a rank, at most one of each class.

        The core sends each when it changes. A message that is returned no more stays valid in its rank.
        """
        return ()

    def limit(self) -> int:
        """Return the newest step that ranks may run to."""
        raise NotImplementedError

    def holds(self, agent: AgentRecord) -> bool:
        """Return True if no rank may start on this agent yet."""
        return False

    def commands(self, agent: AgentRecord, ranks: Collection[RankRecord]) -> Iterable[m.MasterToAgent]:
        """Return messages for an agent that has these ranks.

        The core sends each when it changes, and repeats it until the extension returns it no more.
        """
        return ()

    def make_room(self) -> bool:
        """A recovery finds no place for a rank: free some if possible. Return True if there may be more room now."""
        return False
