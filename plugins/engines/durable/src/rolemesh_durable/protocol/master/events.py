"""What happens to a master's machine, and what it wants done. Plain data."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from rolemesh.placement import PlacementPlan
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.launcher import AgentPlace
from rolemesh_durable.protocol.master.transitions import Move, Status

# ------------------------------------------------------------------------------------------------------------ events


class Begin(msgspec.Struct, frozen=True):
    """The master runs: for the first time, or (after `replay`) again."""


class FromAgent(msgspec.Struct, frozen=True):
    """An agent's message."""

    agent: str
    message: m.AgentToMaster


class AgentLost(msgspec.Struct, frozen=True):
    """The backend says that an incarnation of an agent is gone; `node_lost`: with its node."""

    agent: str
    incarnation: int
    why: str
    node_lost: bool = False


class StartFailed(msgspec.Struct, frozen=True):
    """The backend could not reserve the bundles or start agents, and has left nothing of them behind."""

    why: str
    agents: tuple[str, ...] = ()


class Places(msgspec.Struct, frozen=True):
    """Effect: find places for all ranks that have none, or that are to have others; answer with `PlacesFound`."""

    away: tuple[str, ...]
    """The nodes on which no rank may be."""
    sizes: dict[str, int] = {}
    """How many ranks roles are to have, where these are other numbers than now."""
    resources: dict[str, dict[str, float]] = {}
    """The resources per rank that roles are to have, where these differ from now."""
    at_step: int = -1
    """The step of the persisted snapshot that is to be cut for the roles in `sizes`. -1: the ranks start without one;
    with `dry`: the step is not known yet, and the newest checkpoint is looked at."""
    folder: str = ""
    """The folder of that snapshot; "" for the one that this job has written."""
    others_stay: bool = False
    """The ranks of roles that are not in `sizes` keep their places."""
    dry: bool = False
    """Nothing is reserved: the master only wants to know."""


class PlacesFound(msgspec.Struct, frozen=True):
    """The answer to `Places`."""

    wanted: Places
    """The question."""
    why: str = ""
    """Why there are no such places; "" if there are."""
    moves: tuple[Move, ...] = ()
    """The new places of all ranks of roles that change, and of all others that cannot stay."""
    places: tuple[AgentPlace, ...] = ()
    """The places of the agents that run them."""
    plan: PlacementPlan = PlacementPlan()
    """The plan with these places."""
    folder: str = ""
    """The folder of the snapshot that roles with other numbers of ranks start from."""
    gone: tuple[str, ...] = ()
    """The nodes of agents that live, as far as the master knew, and that there are no longer."""


class NodesSeen(msgspec.Struct, frozen=True):
    """These nodes live, whether or not the job has ranks there. `room`: how many ranks roles could have now, by what is
    free, of those that a scaler may give more."""

    nodes: tuple[str, ...]
    room: dict[str, int] = {}


class CheckpointCommitted(msgspec.Struct, frozen=True):
    """The answer to `CommitCheckpoint`: the persisted snapshot of `step` is whole; or `error` says why it is not."""

    step: int
    error: str = ""


class OriginFound(msgspec.Struct, frozen=True):
    """The answer to `FindOrigin`: the newest persisted snapshot that is intact, "" and -1 if there is none.

    `damaged` says of newer ones what is wrong with them.
    """

    folder: str = ""
    step: int = -1
    damaged: tuple[str, ...] = ()


class Published(msgspec.Struct, frozen=True):
    """Lines of metrics up to `step` are durable. `held`: nothing can be written for now, and that is waited for."""

    step: int
    held: bool = False


class StopAsked(msgspec.Struct, frozen=True):
    """Somebody wants the job to end."""

    reason: str


class FinishAsked(msgspec.Struct, frozen=True):
    """Somebody wants the job to end in good order: with a step that all ranks come to."""

    reason: str


class OwnerSeen(msgspec.Struct, frozen=True):
    """The driver that owns the job has asked for news, so it lives."""


class Disown(msgspec.Struct, frozen=True):
    """The driver leaves the job to the master (``--detach``)."""


class NodesLeave(msgspec.Struct, frozen=True):
    """The backend knows that these nodes leave, and in how many seconds; 0: it does not know when."""

    nodes: dict[str, float]


class Tick(msgspec.Struct, frozen=True):
    """Time has passed."""


class ExtensionEvent(msgspec.Struct, frozen=True):
    """An event that only an extension takes."""


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
    """An agent to start: where, and as which incarnation."""

    place: AgentPlace
    incarnation: int


class StartAgents(msgspec.Struct, frozen=True):
    """Reserve what is not reserved yet and start these agents; earlier incarnations of them must be dead before."""

    agents: tuple[Incarnation, ...]


class Attach(msgspec.Struct, frozen=True):
    """Find these agents again, which an earlier master has started; say `AgentLost` of those that are gone."""

    agents: tuple[Incarnation, ...]


class KillAgent(msgspec.Struct, frozen=True):
    """End an agent that does not answer, with its ranks."""

    agent: str
    incarnation: int


class ToAgent(msgspec.Struct, frozen=True):
    """Send a message to an incarnation of an agent."""

    agent: str
    incarnation: int
    message: m.MasterToAgent


class Record(msgspec.Struct, frozen=True):
    """Journal a transition."""

    kind: str
    data: dict[str, Any]


class Committed(msgspec.Struct, frozen=True):
    """All ranks could be restored to `step`: journal that, as how far the job is rather than as an event."""

    step: int


class Publish(msgspec.Struct, frozen=True):
    """Metrics of ranks that an agent has merged."""

    agent: str
    metrics: tuple[m.Metrics, ...]


class FindOrigin(msgspec.Struct, frozen=True):
    """Find the newest persisted snapshot that is intact; answer with `OriginFound`."""


class FindCheckpoints(msgspec.Struct, frozen=True):
    """The last master may have made a checkpoint whole after step `after` without saying so: answer with
    `CheckpointCommitted`."""

    after: int


class CommitCheckpoint(msgspec.Struct, frozen=True):
    """All parts of the persisted snapshot of `step` are on disk: make it a whole; answer with `CheckpointCommitted`.

    The checkpoint of step `needed`, if that is not -1, stays, however old it is.
    """

    step: int
    parts: tuple[m.Persisted, ...]
    needed: int = -1


class ExtensionEffect(msgspec.Struct, frozen=True):
    """An effect that an extension's part of the shell carries out."""


class End(msgspec.Struct, frozen=True):
    """The job is over: give everything back and write the result."""

    status: Status
    message: str


Effect: TypeAlias = (
    StartAgents
    | Attach
    | KillAgent
    | ToAgent
    | Record
    | Committed
    | Publish
    | Places
    | FindOrigin
    | FindCheckpoints
    | CommitCheckpoint
    | ExtensionEffect
    | End
)
