"""What an agent's machine hears and what it wants done: its events and effects."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from rolemesh_durable.protocol import messages as m


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


class RankExited(m.OfRank, frozen=True):
    """A rank's process is gone. `error` says why it could not be started at all, `cause` what for (the `Failure`'s).

    `snapshots`: what memory has of it.
    """

    exit_code: int | None = None
    signal: int | None = None
    error: str = ""
    snapshots: tuple[int, ...] = ()
    cause: Literal["start", "environment"] = "start"


class Fetched(m.OfRank, frozen=True):
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

    `making`: which environments of roles are being made, and how far that is. `refused`, `given_up`: see `Report`.
    """

    ranks: tuple[RankSample, ...] = ()
    stored: tuple[m.Stored, ...] = ()
    persisted: tuple[m.Persisted, ...] = ()
    warning: str = ""
    making: tuple[str, ...] = ()
    refused: int = 0
    given_up: int = -1


class Tick(msgspec.Struct, frozen=True):
    """Time has passed, and a report may be due."""


Event: TypeAlias = FromMaster | MasterRevived | Leave | FromRank | RankExited | Fetched | StacksTaken | Sampled | Tick


class Fork(msgspec.Struct, frozen=True):
    """Start a rank."""

    launch: m.RankLaunch


class Fetch(msgspec.Struct, frozen=True):
    """Bring the replica that this launch restores here; answer with `Fetched`."""

    launch: m.RankLaunch


class ToRank(msgspec.Struct, frozen=True):
    """Deliver a message to a rank."""

    role: str
    rank: int
    message: m.AgentToRank


class ToMaster(msgspec.Struct, frozen=True):
    """Deliver a message to the master."""

    message: m.AgentToMaster


class Kill(m.OfRank, frozen=True):
    """SIGKILL the process of a rank."""


class Terminate(m.OfRank, frozen=True):
    """The job stops and a rank's operator takes long: SIGTERM to its process and to those that it has started.

    Those have `patience_s` seconds before the operator is left, and teardown begins.
    """

    patience_s: float


class RankDied(msgspec.Struct, frozen=True):
    """A rank is dead before its end: see to what it has left in memory."""

    role: str
    rank: int


class Fail(msgspec.Struct, frozen=True):
    """Rehearsal: a rank, or with `rank` -1 this agent, is to fail."""

    kind: m.FaultKind
    role: str = ""
    rank: int = -1


class TakeStacks(m.OfRank, frozen=True):
    """Take a rank's stacks; answer with `StacksTaken`."""


class Forget(msgspec.Struct, frozen=True):
    """The job has gone back to a persisted snapshot: everything in this node's memory is void.

    `timeline` is to be kept there: the next incarnation is made with it, so that it does not forget what came later.
    """

    timeline: int


class ReviveMaster(msgspec.Struct, frozen=True):
    """The master has been silent for long: have it started again, if it hangs. Answer with `MasterRevived`."""


class Quit(msgspec.Struct, frozen=True):
    """End at once and leave everything where it is: the agent's next incarnation takes it over."""


class CleanUp(msgspec.Struct, frozen=True):
    """All ranks are gone: remove the job's files from this node and end."""


Effect: TypeAlias = (
    Fork
    | Fetch
    | ToRank
    | ToMaster
    | Kill
    | Terminate
    | RankDied
    | Fail
    | TakeStacks
    | Forget
    | ReviveMaster
    | Quit
    | CleanUp
)
