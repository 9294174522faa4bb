"""The agent's process as extensions see it, and their parts of it.

    the extension in the master ──ToPart──▶ `AgentPart.messages` ──▶ threads, files, child processes
    the extension in the master ◀──FromPart, or each report── `AgentProcess.send`, `AgentPart.report`

The agent creates the parts in the order of one list, `rolemesh_durable.extensions.shipped.SHIPPED`, and calls each
hook in this order, in its own thread. A hook must not wait: the ranks' messages wait for it. A part that has to wait
starts a thread, which may call `put` and `send` only. An error in a hook ends the agent, and its next incarnation
adopts the ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import msgspec

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as e
from rolemesh_durable.protocol.agent.machine import AgentMachine
from rolemesh_durable.protocol.extension_message import Sealed
from rolemesh_durable.protocol.refs import StartRef
from rolemesh_durable.protocol.starts import AgentConfig

__all__ = ["AgentPart", "AgentProcess", "RankProcesses", "Seen"]


class Seen(NamedTuple):
    """The news of a part that an agent's reports carry for the core: see `Report`."""

    stored: tuple[m.Stored, ...] = ()
    """The snapshots of ranks without a process here that the part keeps."""
    warning: str = ""
    """A present problem with snapshots; "" if there is none."""
    refused: int = 0
    """Number of connections that the part has refused for lack of the job's key."""
    address: str = ""
    """The address at which other agents fetch snapshots from here; "" if they cannot."""


class RankProcesses(Protocol):
    """The processes of an agent's ranks, and the zygotes that fork them."""

    def kill(self, start: StartRef) -> bool:
        """Send SIGKILL. Return False if the rank has no process."""

    def freeze(self, start: StartRef) -> None:
        """Send SIGSTOP."""

    def kill_zygote(self) -> None:
        """Send SIGKILL to one of the zygotes."""


class AgentProcess(NamedTuple):
    """The agent's process, as an extension sees it."""

    config: AgentConfig
    folder: Path
    """The agent's private folder in shared memory. The next incarnation takes it over with its content."""
    logs: Path
    """The folder of the job's logs."""
    environ: Mapping[str, str]
    """Variables for child processes. They mark the processes, so that none outlives the job on this node."""
    machine: Callable[[], AgentMachine]
    """The machine. Only the agent's own thread touches it."""
    processes: RankProcesses
    pid: Callable[[RankRef], int]
    """``pid(ref)`` is the process that the rank has reported; 0 before its first message."""
    to_rank: Callable[[RankRef, m.AgentToRank], None]
    """Sends a message to a rank, from the agent's own thread."""
    put: Callable[[e.Event], None]
    """Gives the machine an event, from any thread."""
    fail_next_write: Callable[[], None]
    """Makes the next write of a snapshot to disk fail, for a rehearsal."""

    def send(self, message: msgspec.Struct) -> None:
        """Send a struct with a tag to the extension's part in the master, from any thread. It may be lost."""
        self.put(m.FromPart(Sealed.of(message)))


class AgentPart:
    """Base of an extension's part of an agent's process. Each hook does nothing by default.

    One instance lives as long as its incarnation of the agent.
    """

    def __init__(self, process: AgentProcess) -> None:
        self._process = process

    def messages(self) -> Mapping[type, Callable[[Any], None]]:
        """The messages of the extension's part in the master that it handles, by type. Each type has a tag."""
        return {}

    def adopted(self, living: Sequence[tuple[m.RankLaunch, int]]) -> None:
        """The agent begins with these ranks of an earlier incarnation, each with its process."""

    def starting(self, launch: m.RankLaunch) -> Mapping[str, str]:
        """A rank is about to be forked. Return values for the extension's part there: `RankStart.parts`.

        Raises `OSError` if the rank cannot start.
        """
        return {}

    def ends(self, start: StartRef) -> bool:
        """A rank is about to be killed. Return True if the part ends it instead. Called again until it is gone."""
        return False

    def gone(self, start: StartRef) -> None:
        """A rank has no process any more, or could not start."""

    def durable(self, ref: RankRef, step: int) -> int:
        """Return the newest step of a rank that is durable, `step` or an earlier one.

        The node's memory has a snapshot of `step`. Called with each look at the ranks.
        """
        return step

    def fetch(self, launch: m.RankLaunch) -> bool:
        """Begin to bring the rank's snapshot from the agent at ``launch.replica`` into this node's memory.

        Return True if the part does so. It puts `Fetched` at the end, and the rank starts after that.
        """
        return False

    def forget(self, timeline: int) -> None:
        """The job goes back to a checkpoint on disk: forget all of memory. New content belongs to `timeline`."""

    def look(self) -> Seen:
        """Return the part's news for the core. Called with each look at the ranks, up to twenty times per second."""
        return Seen()

    def report(self) -> msgspec.Struct | None:
        """Return the struct, with a tag, that the agent's next reports carry: `Report.part`; None for none.

        Called with each look at the ranks, up to twenty times per second. The agent reports a change at once.
        """
        return None

    def close(self) -> None:
        """The job is over on this node, and all ranks are gone."""
