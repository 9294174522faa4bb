"""The events that a master's machine receives, and the effects that it requests. Plain data."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from rolemesh.placement import PlacementPlan
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master.transitions import Move, Status

# ------------------------------------------------------------------------------------------------------------ events


class Begin(msgspec.Struct, frozen=True):
    """The master runs, for the first time or (after `replay`) again."""


class FromAgent(msgspec.Struct, frozen=True):
    """An agent's message."""

    agent: str
    message: m.AgentToMaster


class AgentLost(msgspec.Struct, frozen=True):
    """The backend reports that an incarnation of an agent is gone. With `node_lost` its node is gone too."""

    agent: str
    incarnation: int
    why: str
    node_lost: bool = False


class StartFailed(msgspec.Struct, frozen=True):
    """The backend could not reserve the bundles or start agents. It has left nothing of them behind."""

    why: str
    agents: tuple[str, ...] = ()


class Places(msgspec.Struct, frozen=True):
    """Effect: find places for all ranks that have none or need other ones; answer with `PlacesFound`."""

    away: tuple[str, ...]
    """The nodes on which no rank may run."""
    sizes: dict[str, int] = {}
    """The new number of ranks of each role whose number changes."""
    resources: dict[str, dict[str, float]] = {}
    """The new resources per rank of each role whose resources change."""
    at_step: int = -1
    """The step of the persisted snapshot from which the roles in `sizes` start.

    With -1 the ranks start without one. With -1 and `dry` the step is not known yet, and the answer is for the newest
    checkpoint.
    """
    folder: str = ""
    """The folder of that snapshot; "" for one that this job has written."""
    others_stay: bool = False
    """True if the ranks of roles outside `sizes` keep their places."""
    dry: bool = False
    """True if nothing is to be reserved: the master only needs the answer."""


class PlacesFound(msgspec.Struct, frozen=True):
    """The answer to `Places`."""

    wanted: Places
    """The request that this answers."""
    why: str = ""
    """Why there are no such places; "" if there are."""
    moves: tuple[Move, ...] = ()
    """The new places of all ranks of roles that change, and of all other ranks that cannot stay."""
    places: tuple[AgentPlace, ...] = ()
    """The places of the agents that run them."""
    plan: PlacementPlan = PlacementPlan()
    """The placement plan with these places."""
    folder: str = ""
    """The folder of the snapshot from which the roles in `wanted.sizes` start."""
    gone: tuple[str, ...] = ()
    """Nodes that are gone although the master counted their agents as alive."""


class NodesSeen(msgspec.Struct, frozen=True):
    """The nodes that live, with or without ranks of the job.

    `room` is the number of ranks that each role could have now, by what is free. It names only the roles that may grow.
    """

    nodes: tuple[str, ...]
    room: dict[str, int] = {}


class CheckpointCommitted(msgspec.Struct, frozen=True):
    """The answer to `CommitCheckpoint`: the checkpoint of `step` is complete, or `error` says why it is not."""

    step: int
    error: str = ""


class OriginFound(msgspec.Struct, frozen=True):
    """The answer to `FindOrigin`: the newest intact persisted snapshot, or "" and -1 if there is none.

    `damaged` says what is wrong with newer ones.
    """

    folder: str = ""
    step: int = -1
    damaged: tuple[str, ...] = ()


class Published(msgspec.Struct, frozen=True):
    """Lines of metrics up to `step` are durable. With `held` the writer cannot write at present and retries."""

    step: int
    held: bool = False


class StopAsked(msgspec.Struct, frozen=True):
    """A request to stop the job."""

    reason: str


class FinishAsked(msgspec.Struct, frozen=True):
    """A request to finish the job in good order, after a step that all ranks come to."""

    reason: str


class OwnerSeen(msgspec.Struct, frozen=True):
    """The driver that owns the job has requested news, so it is alive."""


class Disown(msgspec.Struct, frozen=True):
    """The driver leaves the job to the master (``--detach``)."""


class NodesLeave(msgspec.Struct, frozen=True):
    """The backend reports that these nodes leave, each in this number of seconds; 0 if it does not know when."""

    nodes: dict[str, float]


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class ExtensionEvent(msgspec.Struct, frozen=True):
    """An event that only an extension handles."""


Event: TypeAlias = (
    Begin
    | FromAgent
    | AgentLost
    | StartFailed
    | PlacesFound
    | NodesSeen
    | CheckpointCommitted
    | OriginFound
    | Published
    | StopAsked
    | FinishAsked
    | NodesLeave
    | OwnerSeen
    | Disown
    | Tick
    | ExtensionEvent
)

# ----------------------------------------------------------------------------------------------------------- effects


class Incarnation(msgspec.Struct, frozen=True):
    """An incarnation of an agent, and where it runs."""

    place: AgentPlace
    incarnation: int


class StartAgents(msgspec.Struct, frozen=True):
    """Effect: reserve what is not reserved yet and start these agents.

    Their earlier incarnations must be dead first.
    """

    agents: tuple[Incarnation, ...]


class Attach(msgspec.Struct, frozen=True):
    """Effect: find these agents, which an earlier master started; answer `AgentLost` for those that are gone."""

    agents: tuple[Incarnation, ...]


class KillAgent(msgspec.Struct, frozen=True):
    """Effect: end an agent that does not answer, with its ranks."""

    agent: str
    incarnation: int


class ToAgent(msgspec.Struct, frozen=True):
    """Effect: send a message to an incarnation of an agent."""

    agent: str
    incarnation: int
    message: m.MasterToAgent


class JournalEntry(msgspec.Struct, frozen=True):
    """Effect: write a transition to the journal."""

    kind: str
    data: dict[str, Any]


class Committed(msgspec.Struct, frozen=True):
    """Effect: write to the journal that all ranks can be restored to `step`. It is a number, not an event."""

    step: int


class Publish(msgspec.Struct, frozen=True):
    """Effect: publish metrics of ranks that an agent has merged."""

    agent: str
    metrics: tuple[m.Metrics, ...]


class FindOrigin(msgspec.Struct, frozen=True):
    """Effect: find the newest intact persisted snapshot; answer with `OriginFound`."""


class FindCheckpoints(msgspec.Struct, frozen=True):
    """Effect: look for checkpoints after step `after` that the previous master completed without a record.

    The answer is `CheckpointCommitted`.
    """

    after: int


class CommitCheckpoint(msgspec.Struct, frozen=True):
    """Effect: complete the checkpoint of `step`, all of whose parts are on disk; answer with `CheckpointCommitted`.

    If `needed` is not -1, the checkpoint of that step stays, however old it is.
    """

    step: int
    parts: tuple[m.Persisted, ...]
    needed: int = -1


class ExtensionEffect(msgspec.Struct, frozen=True):
    """An effect that an extension's part of the shell carries out."""


class End(msgspec.Struct, frozen=True):
    """Effect: release everything and write the result, because the job is over."""

    status: Status
    message: str


Effect: TypeAlias = (
    StartAgents
    | Attach
    | KillAgent
    | ToAgent
    | JournalEntry
    | Committed
    | Publish
    | Places
    | FindOrigin
    | FindCheckpoints
    | CommitCheckpoint
    | ExtensionEffect
    | End
)
