"""What an agent's machine hears and what it wants done: its events and effects."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from rolemesh.api.rank_ref import OfRank
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.fitness import Measurements
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.refs import OfStart


class Found(msgspec.Struct, frozen=True):
    """A rank of an earlier incarnation: how it was started, what it has said of itself, and how it has ended, if so.

    `granted` is the last step that it may have been told it may run.
    """

    launch: m.RankLaunch
    said: tuple[m.RankToAgent, ...] = ()
    exited: RankExited | None = None
    granted: int = -1


class Left(msgspec.Struct, frozen=True):
    """What earlier incarnations have left: `timeline` is that of the node's memory, of the last `Forget` there."""

    timeline: int = 0
    ranks: tuple[Found, ...] = ()


NOTHING = Left()


class FromMaster(msgspec.Struct, frozen=True):
    """The master's message."""

    message: m.MasterToAgent


class MasterRevived(msgspec.Struct, frozen=True):
    """The answer to `ReviveMaster`: whether there is, or will be, a master, which is worth `lease_s` seconds more."""

    comes: bool


class Leave(msgspec.Struct, frozen=True):
    """Somebody wants this agent to end: SIGTERM. The master is told, and takes its ranks away in good order."""


class FromRank(msgspec.Struct, frozen=True):
    """A rank's message."""

    message: m.RankToAgent


class RankExited(OfStart, frozen=True):
    """A rank's process is gone. `error` says why it could not be started at all, `cause` what for (the `Failure`'s).

    `snapshots`: what memory has of it; `log_tail`: the last lines that it has printed.
    """

    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    snapshots: tuple[int, ...] = ()
    cause: Literal["start", "environment"] = "start"
    log_tail: str = ""


class Fetched(OfStart, frozen=True):
    """A replica that a launch needs has come into this node's memory, or `error` says why not."""

    error: str = ""


class StacksTaken(msgspec.Struct, frozen=True):
    """What py-spy says."""

    stacks: m.Stacks


class RankSample(m.RankProgress, frozen=True):
    """What a rank's status page says, and what is known of its snapshots."""

    pid: int


class Sampled(msgspec.Struct, frozen=True):
    """The status pages of ranks have been read; time has passed. The rest is what the node's memory and disk hold.

    `making`: which environments of roles are being made, and how far that is. `refused`, `given_up`, `measured`,
    `address`: see `Report`.
    """

    ranks: tuple[RankSample, ...] = ()
    stored: tuple[m.Stored, ...] = ()
    persisted: tuple[m.Persisted, ...] = ()
    warning: str = ""
    making: tuple[str, ...] = ()
    refused: int = 0
    given_up: int = -1
    measured: Measurements = ()
    address: str = ""

    @property
    def told(self) -> tuple[object, ...]:
        """What is reported at once when it changes."""
        return self.stored, self.persisted, self.warning, self.making, self.measured, self.address


class Tick(msgspec.Struct, frozen=True):
    """Time has passed, and a report may be due."""


Event: TypeAlias = FromMaster | MasterRevived | Leave | FromRank | RankExited | Fetched | StacksTaken | Sampled | Tick


class Fork(msgspec.Struct, frozen=True):
    """Start a rank."""

    launch: m.RankLaunch


class Measure(msgspec.Struct, frozen=True):
    """Run the job's checks, unless they run or have run; what they find is in `Sampled`. See `messages.Measure`."""

    together: tuple[str, ...]


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
    """The job stops and a rank's operator takes long: SIGTERM to its process and to those that it has started.

    Those have `patience_s` seconds before the operator is left, and teardown begins.
    """

    patience_s: float


class RankDied(OfRank, frozen=True):
    """A rank is dead before its end: see to what it has left in memory."""


class Fail(msgspec.Struct, frozen=True):
    """Rehearsal: a rank, or with `rank` -1 this agent, is to fail."""

    kind: m.FaultKind
    role: str = ""
    rank: int = -1


class TakeStacks(OfStart, frozen=True):
    """Take a rank's stacks; answer with `StacksTaken`."""


class Forget(msgspec.Struct, frozen=True):
    """The job has gone back to a persisted snapshot: everything in this node's memory is void.

    `timeline` is to be kept there: the next incarnation is made with it, so that it does not forget what came later.
    """

    timeline: int


class Relayout(msgspec.Struct, frozen=True):
    """Roles have other numbers of ranks from now on."""

    layout: Layout


class ReviveMaster(msgspec.Struct, frozen=True):
    """The master has been silent for long: have it started again, if it hangs. Answer with `MasterRevived`."""


class Quit(msgspec.Struct, frozen=True):
    """End at once and leave everything where it is: the agent's next incarnation takes it over."""


class CleanUp(msgspec.Struct, frozen=True):
    """All ranks are gone: remove the job's files from this node and end."""


Effect: TypeAlias = (
    Fork
    | Measure
    | Fetch
    | ToRank
    | ToMaster
    | Kill
    | Terminate
    | RankDied
    | Fail
    | TakeStacks
    | Forget
    | Relayout
    | ReviveMaster
    | Quit
    | CleanUp
)
