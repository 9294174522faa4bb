"""What master, agents and ranks say to each other: plain records, encoded as msgpack.

Every message from the master carries its epoch; an agent ignores what comes from an older one. Ranks never talk to the
master: an agent speaks for the ranks on its node.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from rolemesh.failures import Failure

__all__ = [
    "AgentToMaster",
    "AgentToRank",
    "AgentUp",
    "Commit",
    "Grant",
    "Heartbeat",
    "Launch",
    "MasterToAgent",
    "Metrics",
    "Peer",
    "RankDone",
    "RankFailed",
    "RankHello",
    "RankLaunch",
    "RankMetrics",
    "RankPosition",
    "RankReady",
    "RankToAgent",
    "RendezvousAt",
    "Stop",
    "Stopped",
    "Wire",
    "WireRank",
    "decode_agent_to_master",
    "decode_agent_to_rank",
    "decode_master_to_agent",
    "decode_rank_to_agent",
    "encode",
]


class RankLaunch(msgspec.Struct, frozen=True):
    """All that an agent needs to start a rank. `options` is expanded and therefore never journalled."""

    role: str
    rank: int
    world_size: int
    local_rank: int
    local_world_size: int
    generation: int
    plugin: dict[str, Any]
    options: dict[str, Any]
    env: dict[str, str] = {}
    cpus: float = 1.0
    gpus: tuple[int, ...] = ()
    collective: bool = False


class Peer(msgspec.Struct, frozen=True):
    """Where a rank can be reached: its node, and an address per transport."""

    role: str
    rank: int
    node: str
    addresses: dict[str, str]
    generation: int = 0


class RendezvousAt(msgspec.Struct, frozen=True):
    """Where the collective group of a role meets."""

    role: str
    address: str
    port: int
    generation: int


class RankPosition(msgspec.Struct, frozen=True):
    """Where a rank is, as read from its board. `finished` is its last finished step, -1 before the first."""

    role: str
    rank: int
    pid: int
    state: str
    finished: int
    step: int = -1
    op: int = -1
    phase: int = 0
    edge: int = -1
    generation: int = 0


class Metrics(msgspec.Struct, frozen=True):
    """A role's part in one line of metrics, summed over the ranks that have contributed.

    `ranks` says how many that are. `means` maps operator label → name → [sum, count], `sums` label → name → sum;
    `times` is [computing, waiting, blocked] in seconds, summed over ranks.
    """

    role: str
    step: int
    steps: int
    ranks: int
    times: list[float]
    means: dict[str, dict[str, list[float]]] = {}
    sums: dict[str, dict[str, float]] = {}
    records: dict[str, Any] = {}


# ------------------------------------------------------------------------------------------------- master to agent


class Launch(msgspec.Struct, frozen=True, tag=True):
    """Start these ranks."""

    epoch: int
    ranks: tuple[RankLaunch, ...]


class Wire(msgspec.Struct, frozen=True, tag=True):
    """All ranks are up: these are everybody's addresses. Ranks connect, set up, and report ready."""

    epoch: int
    peers: tuple[Peer, ...]
    rendezvous: tuple[RendezvousAt, ...] = ()


class Grant(msgspec.Struct, frozen=True, tag=True):
    """Ranks may run up to and including step `until`."""

    epoch: int
    until: int


class Commit(msgspec.Struct, frozen=True, tag=True):
    """Every rank has finished `step`; what was retained for it and earlier steps may go."""

    epoch: int
    step: int


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End: ranks finish the operator they are in; after `grace_s` seconds they are killed. 0 kills at once."""

    epoch: int
    grace_s: float
    reason: str = ""


# ------------------------------------------------------------------------------------------------- agent to master


class AgentUp(msgspec.Struct, frozen=True, tag=True):
    """An agent is there and listens."""

    agent: str
    node: str
    pid: int
    host: str


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Sent every interval, and at once when something changed: positions of the node's ranks, finished metrics."""

    agent: str
    positions: tuple[RankPosition, ...]
    metrics: tuple[Metrics, ...] = ()


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """All ranks of this agent are gone and its files removed."""

    agent: str


# --------------------------------------------------------------------------- rank to agent (some are passed on as is)


class RankHello(msgspec.Struct, frozen=True, tag=True):
    """A rank's process runs and its inboxes are open. `rendezvous_port` is rank 0's of a collective group."""

    role: str
    rank: int
    generation: int
    pid: int
    addresses: dict[str, str]
    rendezvous_port: int | None = None


class RankReady(msgspec.Struct, frozen=True, tag=True):
    """`setup` has returned; `setup_s` is how long it took."""

    role: str
    rank: int
    generation: int
    setup_s: float


class RankMetrics(msgspec.Struct, frozen=True, tag=True):
    """Lines of metrics of one rank."""

    role: str
    rank: int
    generation: int
    lines: tuple[Metrics, ...]


class RankDone(msgspec.Struct, frozen=True, tag=True):
    """All steps are finished and the workload torn down. `sha256` is of its snapshot, "" for a stateless one."""

    role: str
    rank: int
    generation: int
    finished: int
    sha256: str


class RankFailed(msgspec.Struct, frozen=True, tag=True):
    """A rank failed, by its own report or by what its agent saw of the process."""

    failure: Failure


# --------------------------------------------------------------------------------------------------- agent to rank


class WireRank(msgspec.Struct, frozen=True, tag=True):
    """The addresses of the peers, and where the rank's own group meets."""

    peers: tuple[Peer, ...]
    rendezvous: RendezvousAt | None = None


MasterToAgent: TypeAlias = Launch | Wire | Grant | Commit | Stop
AgentToMaster: TypeAlias = AgentUp | Heartbeat | Stopped | RankHello | RankReady | RankDone | RankFailed
RankToAgent: TypeAlias = RankHello | RankReady | RankMetrics | RankDone | RankFailed
AgentToRank: TypeAlias = WireRank | Grant | Commit | Stop

encode = msgspec.msgpack.Encoder().encode
decode_master_to_agent = msgspec.msgpack.Decoder(MasterToAgent).decode
decode_agent_to_master = msgspec.msgpack.Decoder(AgentToMaster).decode
decode_rank_to_agent = msgspec.msgpack.Decoder(RankToAgent).decode
decode_agent_to_rank = msgspec.msgpack.Decoder(AgentToRank).decode
