"""The events that an agent's machine receives, and the effects that it requests."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from rolemesh.api.failures import Failure
from rolemesh.api.rank_ref import OfRank
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.extension_message import Sealed
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.refs import OfStart


class Found(msgspec.Struct, frozen=True):
    """A rank of an earlier incarnation: its start, its messages, and its end if it has ended.

    `granted` is the last step that its agent may have let it run.
    """

    launch: m.RankLaunch
    said: tuple[m.RankToAgent, ...] = ()
    exited: RankExited | None = None
    granted: int = -1


class Left(msgspec.Struct, frozen=True):
    """The ranks of earlier incarnations. `timeline` is that of the node's memory, from the last `Forget` there."""

    timeline: int = 0
    ranks: tuple[Found, ...] = ()


NOTHING = Left()


class FromMaster(msgspec.Struct, frozen=True):
    """The master's message."""

    message: m.MasterToAgent


class MasterRevived(msgspec.Struct, frozen=True):
    """The answer to `ReviveMaster`.

    `comes`: there is, or will be, a master, so the agent lives `lease_s` seconds more.
    """

    comes: bool


class Leave(msgspec.Struct, frozen=True):
    """A request to end (SIGTERM). The agent tells the master, which moves its ranks away in good order."""


class FromRank(msgspec.Struct, frozen=True):
    """A rank's message."""

    message: m.RankToAgent


class RankExited(OfStart, frozen=True):
    """A rank's process is gone. `error` says why it could not start, and `cause` is the `Failure`'s.

    `snapshots`: its steps in memory. `log_tail`: the last lines that it printed. `failure`: the one that the rank has
    noted beside its sockets, since its message may still be on the way.
    """

    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    snapshots: tuple[int, ...] = ()
    cause: Literal["start", "environment"] = "start"
    log_tail: str = ""
    failure: Failure | None = None


class Fetched(OfStart, frozen=True):
    """A replica that a launch needs is in this node's memory, or `error` says why it is not."""

    error: str = ""


class RankSample(m.RankProgress, frozen=True):
    """The content of a rank's status page, and the state of its snapshots."""

    pid: int


class Sampled(msgspec.Struct, frozen=True):
    """The agent has read the status pages of ranks; time has passed.

    The rest is the content of the node's memory and disk.

    `making`: the environments of roles that the agent makes, with their progress. `refused`, `given_up`, `address`,
    `parts`: see `Report`.
    """

    ranks: tuple[RankSample, ...] = ()
    stored: tuple[m.Stored, ...] = ()
    persisted: tuple[m.Persisted, ...] = ()
    warning: str = ""
    making: tuple[str, ...] = ()
    refused: int = 0
    given_up: int = -1
    address: str = ""
    parts: tuple[Sealed, ...] = ()

    @property
    def told(self) -> tuple[object, ...]:
        """The part that the agent reports at once when it changes."""
        return self.stored, self.persisted, self.warning, self.making, self.address, self.parts


class Tick(msgspec.Struct, frozen=True):
    """Time has passed, and a report may be due."""


Event: TypeAlias = FromMaster | MasterRevived | Leave | FromRank | RankExited | Fetched | m.FromPart | Sampled | Tick


class Fork(msgspec.Struct, frozen=True):
    """Start a rank."""

    launch: m.RankLaunch


class Fetch(msgspec.Struct, frozen=True):
    """Bring the replica that this launch restores here; answer with `Fetched`."""

    launch: m.RankLaunch


class ToRank(OfRank, frozen=True):
    """Deliver a message to a rank."""

    message: m.AgentToRank


class ToMaster(msgspec.Struct, frozen=True):
    """Deliver a message to the master."""

    message: m.AgentToMaster


class Kill(OfStart, frozen=True):
    """SIGKILL the process of a rank."""


class Terminate(OfStart, frozen=True):
    """End a rank's operator that takes too long while the job stops: SIGTERM to its process and to its children.

    The children have `patience_s` seconds before the rank leaves the operator and begins its teardown.
    """

    patience_s: float


class RankDied(OfRank, frozen=True):
    """Clean up the memory of a rank that died before its end."""


class Forget(msgspec.Struct, frozen=True):
    """Forget everything in this node's memory, because the job has gone back to a persisted snapshot.

    The agent stores `timeline` there, and its next incarnation reads it. So that one does not forget newer data.
    """

    timeline: int


class Relayout(msgspec.Struct, frozen=True):
    """Note that roles have other numbers of ranks from now on."""

    layout: Layout


class ReviveMaster(msgspec.Struct, frozen=True):
    """Ask the backend to restart the master, which has been silent for long, if it hangs.

    Answer with `MasterRevived`.
    """


class Quit(msgspec.Struct, frozen=True):
    """End at once and leave everything in place for the agent's next incarnation."""


class CleanUp(msgspec.Struct, frozen=True):
    """All ranks are gone: remove the job's files from this node and end."""


Effect: TypeAlias = (
    Fork | m.ToPart | Fetch | ToRank | ToMaster | Kill | Terminate | RankDied | Forget | Relayout | ReviveMaster | Quit
    | CleanUp
)  # fmt: skip
