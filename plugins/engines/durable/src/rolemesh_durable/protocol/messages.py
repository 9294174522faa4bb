"""What master, agents and ranks say to each other: plain records, encoded as msgpack.

Between master and agents a message may be lost, late, repeated or overtaken: an agent reports everything it knows, the
master compares that with what it wants and sends commands that do nothing where they have been carried out already.
Every message of the master carries its epoch; an agent ignores what comes from an older one. Ranks never talk to the
master: an agent speaks for the ranks on its node, over sockets that lose nothing while both live.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from rolemesh.api.failures import Failure
from rolemesh.api.rank_ref import OfRank, RankRef
from rolemesh_durable.protocol.fitness import Measurements
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.line_cuts import Cuts, united
from rolemesh_durable.protocol.refs import OfStart, StartRef
from rolemesh_runtime.metrics import Metrics as Metrics

FaultKind: TypeAlias = Literal["kill", "stop", "exit", "raise", "disk", "zygote", "full", "stall", "clock"]
"""What a rehearsal may inject; `rolemesh_rehearsal.spec.Rehearsal` says what each does."""


class RankLaunch(OfRank, frozen=True):
    """Where and how a rank starts; all of it may change from one start to the next. See `RoleConfig` for its plugin.

    The rank's first step is ``resume + 1``. `restore` says where its state after step `resume` is: nowhere (a fresh
    start), in the node's memory, or in the folder `origin` of a persisted snapshot of step `origin_step`, which is then
    `resume`. `replica` is the address of the agent that holds it in memory, if that is another one: it is fetched
    first. Values made up to `origin_step` come from `origin`, all others from their producers. `turns` are the ranks,
    this one among them, that take turns on its slot; none if it runs whenever it can. `layout` is the job's when it
    starts.
    """

    world_size: int
    local_rank: int
    local_world_size: int
    generation: int
    cpus: float = 1.0
    memory_gb: float = 0.0
    gpus: tuple[int, ...] = ()
    share: float = 1.0
    peers: tuple[RankRef, ...] = ()
    turns: tuple[RankRef, ...] = ()
    collective: bool = False
    resume: int = -1
    restore: Literal["none", "memory", "disk"] = "none"
    replica: str = ""
    origin: str = ""
    origin_step: int = -1
    layout: Layout = Layout()

    @property
    def start(self) -> StartRef:
        """The name of this start."""
        return StartRef(self.role, self.rank, self.generation)


class Peer(OfRank, frozen=True):
    """Where a rank can be reached: its node, and an address per transport."""

    node: str
    addresses: dict[str, str]
    generation: int = 0


class RendezvousAt(msgspec.Struct, frozen=True):
    """Where the collective group of a role meets."""

    role: str
    address: str
    port: int
    generation: int


class RankProgress(OfStart, frozen=True, kw_only=True):
    """How far a rank is, and what it does.

    `finished` and `durable` are steps, -1 before the first: `durable` is the newest that this rank could be restored to
    even if its process (or, with replicas, its node) were lost now. `since_s`: how long it has been in `phase`.
    `layout`: the number of the one that it has taken up. `frozen`: stopped by a signal. `busy_s`: seconds in operators
    since its start; `worked_s`: those of its process on a processor, of a collective role's. `done` of `total` (0:
    unknown) is what the operator says of its own progress, or -1. `times`, where the job has scalers: seconds since its
    start in operators (-1), and waiting on each edge, what lasts included.
    """

    finished: int = -1
    durable: int = -1
    step: int = -1
    op: int = -1
    phase: int = 0
    edge: int = -1
    since_s: float = 0.0
    frozen: bool = False
    busy_s: float = 0.0
    worked_s: float = 0.0
    done: int = -1
    total: int = 0
    layout: int = 0
    times: dict[int, float] = msgspec.field(default_factory=dict)


class RankReport(RankProgress, frozen=True):
    """A rank as its agent sees it, whole: a report that is lost, late or repeated does no harm.

    `state`: starting (asked for), up (its inbox is open: `addresses`), ready (set up and restored), done (`sha256`),
    failed (`failure`), gone (no process; `snapshots` are the steps that its node's memory holds). `finish`: its
    workload wants the job to finish, for this reason. `ends`: its process is left, and its workload torn down.
    """

    state: Literal["starting", "up", "ready", "done", "failed", "gone"]
    pid: int = 0
    addresses: dict[str, str] = msgspec.field(default_factory=dict)
    rendezvous_port: int | None = None
    setup_s: float = 0.0
    snapshots: tuple[int, ...] = ()
    sha256: str = ""
    failure: Failure | None = None
    finish: str = ""
    verdict: str = ""
    ends: bool = False


class Stored(OfRank, frozen=True):
    """Snapshots of a rank that has no process here, in this agent's memory: left by its last agent, or replicas.

    `copy`: replicas; a rank that is to be restored from one needs it fetched, even by the agent that has it.
    """

    steps: tuple[int, ...]
    copy: bool = False


class Persisted(OfRank, frozen=True):
    """A rank's part of the persisted snapshot of `step` is on disk: its files, name → [bytes, sha256].

    `timeline` (see `Launch`) and `generation` are those for which it holds: a part that was made before the job, or the
    rank, went back to an earlier step belongs to no checkpoint any more. `attempt` is in the names that the files have
    until their checkpoint is completed, see `snapshots.disk.attempt_file`.
    """

    step: int
    files: dict[str, tuple[int, str]]
    timeline: int = 0
    generation: int = 0
    attempt: str = ""


# ------------------------------------------------------------------------------------------------- master to agent


class Launch(msgspec.Struct, frozen=True, tag=True):
    """Start these ranks; one that has been started or halted in this generation, or a later one, is left alone.

    `timeline` counts how often the whole job went back to a persisted snapshot: what an agent still has in memory from
    an earlier one is void.
    """

    epoch: int
    timeline: int
    ranks: tuple[RankLaunch, ...]


class Halt(msgspec.Struct, frozen=True, tag=True):
    """Kill these ranks and earlier generations of them, start none of them later, and report them gone."""

    epoch: int
    ranks: tuple[StartRef, ...]


class Addresses(msgspec.Struct, frozen=True, tag=True):
    """Where the neighbours of this agent's ranks are now, as far as that is newer than version `since`.

    Who has not all up to `since` leaves it alone, and is told more; -1 is before everything. `version` grows with each
    change. `copies_to` is the address of the agent that gets copies of this one's snapshots, "" if none does. Who the
    neighbours are follows from `layout`.
    """

    epoch: int
    version: int
    since: int
    peers: tuple[Peer, ...]
    rendezvous: tuple[RendezvousAt, ...] = ()
    copies_to: str = ""
    layout: Layout = Layout()


class Watermarks(msgspec.Struct, frozen=True, tag=True):
    """How far everything is. Sent on every change and every second: it is also the sign that the master lives.

    Ranks may run up to and including step `granted`. No rank will ever be restored to a step before `committed`. Lines
    of metrics up to step `published` are durable. `persisted` is the newest complete snapshot on disk. `groups`: for
    collective roles, the newest step that all of its ranks have durable. `finishing`: somebody wants the job to finish,
    which is journalled; `last` is the step with which it does, once that is decided. `away`: of the roles that are
    called, the ranks that are dead, with the generation up to which they are. The job has `layout`, which is to change
    after step `pause`, of which a snapshot is to be persisted; or ranks leave a node then. `draining` are nodes that
    are to be without ranks, and how many seconds are left to each. Failures are `failures_s` apart, as a power of two;
    0 as long as there was none. Lines of metrics end at the steps that `cuts` names. Nothing but `groups` goes back,
    except where `timeline` (see `Launch`) goes on.
    """

    epoch: int
    timeline: int
    granted: int
    committed: int
    published: int = -1
    persisted: int = -1
    groups: dict[str, int] = {}
    finishing: bool = False
    last: int = -1
    away: tuple[StartRef, ...] = ()
    pause: int = -1
    layout: Layout = Layout()
    draining: dict[str, float] = {}
    failures_s: float = 0.0
    cuts: Cuts = ((0, 1),)

    def after(self, known: Watermarks | None) -> Watermarks:
        """What both say together: these numbers never go back in a timeline, and one may have overtaken the other."""
        if known is None:
            return self
        numbers = ("epoch", "granted", "committed", "published", "persisted", "finishing", "last", "pause")
        layout = max(known.layout, self.layout, key=lambda each: each.number)
        draining = known.draining if known.pause > self.pause else self.draining
        return msgspec.structs.replace(
            self,
            layout=layout,
            draining=draining,
            cuts=united(known.cuts, self.cuts),
            **{name: max(getattr(known, name), getattr(self, name)) for name in numbers},
        )


class Measure(msgspec.Struct, frozen=True, tag=True):
    """Run the job's checks on this node, once, and report what they find; others do so on the nodes `together`."""

    epoch: int
    together: tuple[str, ...]


class Dump(msgspec.Struct, frozen=True, tag=True):
    """Take the stacks of a rank's threads, and send `Stacks`."""

    epoch: int
    role: str
    rank: int
    generation: int


class Inject(msgspec.Struct, frozen=True, tag=True):
    """Rehearsal: let a rank (or, with `rank` -1, the agent itself) fail.

    kill: SIGKILL. stop: SIGSTOP. exit: the rank calls ``os._exit``. raise: it raises in its next operator. disk: the
    agent's writes of the next persisted snapshot fail as if the disk were full. zygote: SIGKILL of a zygote of the
    agent. full: no file of the process can grow for some seconds. clock: the agent's wall clock steps by an hour.
    """

    epoch: int
    kind: FaultKind
    role: str = ""
    rank: int = -1


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End: ranks finish the operator they are in, and tear down. One that takes longer than half of `grace_s` seconds
    gets a SIGTERM, and at their end a SIGKILL. 0 kills at once. `patient`: the job is over, so processes whose
    workload is torn down (`RankEnds`) may take any time to end. `committed`, `persisted`: see `Watermarks`."""

    epoch: int
    grace_s: float
    reason: str = ""
    committed: int = -1
    persisted: int = -1
    patient: bool = False


# ------------------------------------------------------------------------------------------------- agent to master


NOTICE_S = 20.0
"""A node that is taken back usually has half a minute."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """All that an agent knows, sent every second and at once when something has changed.

    `incarnation` is the number under which the master had it started, `seq` counts its reports, `epoch` is the newest
    master it has heard, `wired` the `Addresses.version` that its ranks have. `metrics` are lines after what is
    `published`: they are repeated until that covers them. `persisted` likewise until `Watermarks.persisted` does.
    `warning` is what goes wrong with snapshots, and `given_up` the newest step whose checkpoint this agent could not
    write.
    `timeline` is that of everything in memory, see `Launch`. `making` are the environments of roles that are being
    made, and how far that is. `refused` counts the connections that this incarnation and its ranks have refused,
    because they had not the job's key. `leaving`: it was told to end (SIGTERM), and waits `NOTICE_S` for its ranks to
    be brought elsewhere. `granted`: how far its ranks may run, as masters have told it; those that were before `epoch`
    cannot tell it any more. `measured` is what all of the job's checks have found on this node, once they have.
    """

    agent: str
    incarnation: int
    seq: int
    node: str
    host: str
    pid: int
    address: str
    epoch: int
    wired: int
    ranks: tuple[RankReport, ...]
    stored: tuple[Stored, ...] = ()
    persisted: tuple[Persisted, ...] = ()
    metrics: tuple[Metrics, ...] = ()
    warning: str = ""
    timeline: int = 0
    making: tuple[str, ...] = ()
    refused: int = 0
    given_up: int = -1
    leaving: bool = False
    granted: int = -1
    measured: Measurements = ()


class Stacks(OfStart, frozen=True, tag=True):
    """What py-spy says of a rank, or why it says nothing."""

    text: str


class AtWork(msgspec.Struct, frozen=True, tag=True):
    """What the agent was told to do takes long; it lives, and is about to report."""

    agent: str
    incarnation: int


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """All ranks of this agent are gone and its files removed."""

    agent: str
    incarnation: int


# --------------------------------------------------------------------------- rank to agent (some are passed on as is)


class RankHello(OfStart, frozen=True, tag=True):
    """A rank's process runs and its inboxes are open. `rendezvous_port` is rank 0's of a collective group."""

    pid: int
    addresses: dict[str, str]
    rendezvous_port: int | None = None


class RankReady(OfStart, frozen=True, tag=True):
    """`setup` has returned; `setup_s` is how long it took."""

    setup_s: float


class RankFinish(OfStart, frozen=True, tag=True):
    """Its workload wants the job to finish."""

    reason: str


class RankDone(OfStart, frozen=True, tag=True):
    """All steps are finished. `sha256` is of its state, "" for a stateless one.

    `verdict`: why the job has failed all the same, as its workload says; "" if it has not.

    Where only the last state is kept (`SnapshotPlan.last`), `kept` is the rank's part of that checkpoint, on disk
    already; or `unkept` says why there is none.
    """

    finished: int
    sha256: str
    verdict: str = ""
    kept: Persisted | None = None
    unkept: str = ""


class RankEnds(OfStart, frozen=True, tag=True):
    """The workload is torn down: what is left are threads and exit handlers of the process."""


class RankFailed(msgspec.Struct, frozen=True, tag=True):
    """A rank failed, by its own report or by what its agent saw of the process."""

    failure: Failure


# --------------------------------------------------------------------------------------------------- agent to rank


class Connect(msgspec.Struct, frozen=True, tag=True):
    """The addresses of neighbours that are new since the last one, and where the rank's own group meets."""

    peers: tuple[Peer, ...]
    rendezvous: RendezvousAt | None = None


class Fault(msgspec.Struct, frozen=True, tag=True):
    """Rehearsal: fail now ("exit"), or in the next operator ("raise")."""

    kind: Literal["exit", "raise"]


class Adopted(msgspec.Struct, frozen=True, tag=True):
    """The agent is dead and this is its next incarnation: say again all that is not known to have come further."""

    incarnation: int


MasterToAgent: TypeAlias = Launch | Halt | Addresses | Watermarks | Measure | Dump | Inject | Stop
AgentToMaster: TypeAlias = Report | Stacks | AtWork | Stopped


class RankMetrics(OfStart, frozen=True, tag=True):
    """Lines of metrics of one rank."""

    lines: tuple[Metrics, ...]


RankToAgent: TypeAlias = RankHello | RankReady | RankMetrics | RankFinish | RankDone | RankEnds | RankFailed
AgentToRank: TypeAlias = Connect | Watermarks | Fault | Stop | Adopted

encode = msgspec.msgpack.Encoder().encode
decode_master_to_agent = msgspec.msgpack.Decoder(MasterToAgent).decode
decode_agent_to_master = msgspec.msgpack.Decoder(AgentToMaster).decode
decode_rank_to_agent = msgspec.msgpack.Decoder(RankToAgent).decode
decode_agent_to_rank = msgspec.msgpack.Decoder(AgentToRank).decode
