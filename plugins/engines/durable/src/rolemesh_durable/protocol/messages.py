"""The messages between master, agents and ranks: plain records, encoded as msgpack.

Messages between master and agents may be lost, late, repeated or reordered. So an agent reports everything it knows.
The master compares that with the state it wants, and sends commands that change nothing if an agent has already carried
them out. Every message of the master carries its epoch; an agent ignores messages of older epochs. Ranks never talk to
the master: an agent reports for the ranks on its node. Ranks and their agent use sockets that lose nothing while both
live.
"""

from __future__ import annotations

from typing import Literal, TypeAlias, TypeVar

import msgspec

from rolemesh.api.failures import Failure
from rolemesh.api.rank_ref import OfRank, RankRef
from rolemesh_durable.protocol.extension_message import FromPart as FromPart
from rolemesh_durable.protocol.extension_message import Sealed, tag_of
from rolemesh_durable.protocol.extension_message import ToPart as ToPart
from rolemesh_durable.protocol.layout import Layout
from rolemesh_durable.protocol.metrics.line_cuts import Cuts, united
from rolemesh_durable.protocol.refs import OfStart, StartRef
from rolemesh_runtime.metrics import Metrics as Metrics

P = TypeVar("P")


class RankLaunch(OfRank, frozen=True):
    """The place and the settings of a rank's start, which may differ in each start. `JobConfig` names its plugin.

    The rank's first step is ``resume + 1``. `turns` are the ranks that take turns on its slot, this one among them;
    empty if it runs at any time. `layout` is the job's layout at the start.

    `restore` says where its state after step `resume` is: nowhere (a fresh start), in the node's memory, or in the
    folder `origin` of the persisted snapshot of step `origin_step`, which then equals `resume`. `replica` is the
    address of another agent that holds the state in memory; the rank's agent fetches it first. Values made up to
    `origin_step` come from `origin`, and all others from their producers. `calls` is the number of calls that it had
    begun to run before this start.
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
    calls: int = 0

    @property
    def start(self) -> StartRef:
        """The name of this start."""
        return tuple.__new__(StartRef, (self.role, self.rank, self.generation))


class Peer(OfRank, frozen=True):
    """How other ranks reach a rank: its node, and an address per transport."""

    node: str
    addresses: dict[str, str]
    generation: int = 0


class RendezvousAt(msgspec.Struct, frozen=True):
    """The address at which the collective group of a role meets."""

    role: str
    address: str
    port: int
    generation: int


class RankProgress(OfStart, frozen=True, kw_only=True):
    """The progress and the present activity of a rank.

    - `finished`, `durable`: steps, -1 before the first. The rank could be restored to `durable` even if its process
      (with replicas: its node) were lost now.
    - `since_s`: seconds that it has been in `phase`.
    - `layout`: the number of the layout that it has taken up.
    - `frozen`: True if a signal has stopped it.
    - `busy_s`: seconds in operators, and in calls that it answers while it waits, since its start.
    - `worked_s`: processor seconds of a collective role's process in operators.
    - `done`, `total`: the operator's own progress; -1 if it reports none, and a total of 0 if it is unknown.
    - `calls`: number of calls that it has begun to run, in all its lives.
    - `answered`: number of answers that the running operator's calls have got.
    - `times`: only if the job has scalers. Seconds since its start in operators (key -1) and waiting on each edge,
      including the present wait.
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
    calls: int = 0
    answered: int = 0
    times: dict[int, float] = msgspec.field(default_factory=dict)


RankLife: TypeAlias = Literal["fetching", "queued", "starting", "up", "ready", "done", "ending", "failing", "halting",
                              "exited", "ended", "failed", "gone"]  # fmt: skip
"""The stage of one start of a rank, as its agent sees it.

- fetching: the agent brings the snapshot that the rank restores into this node's memory. There is no process.
- queued: the agent starts the rank as soon as fewer others start. There is no process.
- starting: a zygote forks the process, which has not sent its hello.
- up: the rank's inbox is open at `addresses`. The rank waits for its neighbours' addresses and sets up its workload.
- ready: the workload is set up and restored, and the rank takes its steps.
- done: the rank has taken its last step, and waits for the end of the job.
- ending: the workload is torn down. Only threads and exit handlers of the process are left.
- failing: the rank has sent a failure. Its process may still live.
- halting: the rank must have no process. The agent has killed it and waits for its end.
- exited: the process has ended. The rank's last message, or a failure, may still come.
- ended: the process has ended after the rank's last message. Unless the job stops, that is a failure, too.
- failed: there is no process, and `failure` says why.
- gone: there is no process, and there must be none. `snapshots` are the steps in its node's memory.
"""


class RankReport(RankProgress, frozen=True):
    """The complete state of a rank as its agent sees it, so a lost, late or repeated report does no harm.

    - `finish`: the reason for which its workload wants the job to finish; "" if it does not.
    - `says`: the newest message of each class that extensions in the rank have for their parts in the master.
    """

    state: RankLife
    pid: int = 0
    addresses: dict[str, str] = msgspec.field(default_factory=dict)
    rendezvous_port: int | None = None
    setup_s: float = 0.0
    snapshots: tuple[int, ...] = ()
    sha256: str = ""
    failure: Failure | None = None
    finish: str = ""
    verdict: str = ""
    says: tuple[Sealed, ...] = ()


class Stored(OfRank, frozen=True):
    """Snapshots in this agent's memory of a rank without a process here.

    The rank's last agent left them, or they are copies.

    `copy`: they are copies from another node. A rank needs them fetched before a restore, even by the agent that has
    them.
    """

    steps: tuple[int, ...]
    copy: bool = False


class Persisted(OfRank, frozen=True):
    """A rank's part of the checkpoint of `step` is on disk. `files` maps each file's name to its bytes and SHA-256.

    The part holds for `timeline` (see `Launch`) and `generation`. If the job or the rank has gone back to an earlier
    step since, the part belongs to no checkpoint. `attempt` is part of the files' names until the checkpoint is
    complete, see `rolemesh_checkpoint.attempt`.
    """

    step: int
    files: dict[str, tuple[int, str]]
    timeline: int = 0
    generation: int = 0
    attempt: str = ""


# ------------------------------------------------------------------------------------------------- master to agent


class Launch(msgspec.Struct, frozen=True, tag=True):
    """Start these ranks. An agent skips a rank that it has started or halted in this generation or a later one.

    `timeline` counts how often the whole job has gone back to a persisted snapshot. An agent drops what it holds in
    memory from an earlier timeline.
    """

    epoch: int
    timeline: int
    ranks: tuple[RankLaunch, ...]


class Halt(msgspec.Struct, frozen=True, tag=True):
    """Kill these ranks and their earlier generations, never start them later, and report them gone."""

    epoch: int
    ranks: tuple[StartRef, ...]


class Addresses(msgspec.Struct, frozen=True, tag=True):
    """The addresses of the neighbours of this agent's ranks, as far as they changed after version `since`.

    An agent that lacks versions up to `since` ignores the message, and the master sends it more; -1 means from the
    start. `version` grows with each change. `layout` determines the neighbours.
    """

    epoch: int
    version: int
    since: int
    peers: tuple[Peer, ...]
    rendezvous: tuple[RendezvousAt, ...] = ()
    layout: Layout = Layout()


class Watermarks(msgspec.Struct, frozen=True, tag=True):
    """The progress of the job.

    The master sends it on every change and every second; it is also the sign that the master lives.

    No field but `groups` decreases, except when `timeline` increases.

    - `timeline`: see `Launch`.
    - `granted`: ranks may run up to and including this step.
    - `committed`: no rank will ever be restored to an earlier step.
    - `published`: lines of metrics up to this step are durable.
    - `persisted`: the newest complete checkpoint on disk.
    - `groups`: by collective role, the newest step that is durable in all of its ranks.
    - `finishing`: the job is to finish early, and the journal says so.
    - `last`: the step after which it finishes; -1 until the master has decided it.
    - `away`: starts of dead ranks in roles that serve calls. Earlier generations are dead too.
    - `pause`: the step after which the layout changes or ranks leave a node, with a checkpoint of it; -1 for none.
    - `layout`: the job's present layout.
    - `draining`: the nodes that ranks must leave, with the seconds left to each.
    - `failures_s`: seconds between failures, rounded to a power of two; 0 if there was none.
    - `cuts`: the steps at which lines of metrics end.
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
        """Return both messages combined.

        The numbers never decrease in a timeline, and either message may be the newer one.
        """
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


class ForRank(OfStart, frozen=True):
    """The newest message of each class that extensions in the master have for their parts in a rank."""

    says: tuple[Sealed, ...]


class Say(msgspec.Struct, frozen=True, tag=True):
    """Pass these messages on to ranks. An agent ignores a message with a smaller `version`, which is late.

    The master sends it on every change and every second. `version` grows with each change in an epoch.
    """

    epoch: int
    version: int
    ranks: tuple[ForRank, ...]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End: ranks finish their operator and tear down.

    A rank that takes longer than half of `grace_s` seconds gets a SIGTERM, and at the end of them a SIGKILL. 0 kills at
    once. `patient`: the job is over, so a process whose workload is torn down (`RankEnds`) may take any time to end.
    `committed`, `persisted`: see `Watermarks`.
    """

    epoch: int
    grace_s: float
    reason: str = ""
    committed: int = -1
    persisted: int = -1
    patient: bool = False


# ------------------------------------------------------------------------------------------------- agent to master


NOTICE_S = 20.0
"""Seconds that an agent waits after a SIGTERM. A node that is taken back usually has half a minute."""


class Report(msgspec.Struct, frozen=True, tag=True):
    """All that an agent knows. It sends one every second, and at once when something has changed.

    - `incarnation`: the number under which the master started it.
    - `seq`: counts its reports.
    - `epoch`: the newest master that it has received messages from.
    - `wired`: the `Addresses.version` that its ranks have.
    - `metrics`: lines after `published`. The agent repeats them until `published` covers them.
    - `persisted`: parts of checkpoints. The agent repeats them until `Watermarks.persisted` covers them.
    - `warning`: a present problem with snapshots; "" if there is none.
    - `given_up`: the newest step whose checkpoint this agent could not write.
    - `timeline`: the timeline of everything in its memory, see `Launch`.
    - `making`: the environments of roles that it makes at present, with their progress.
    - `refused`: connections that this incarnation and its ranks have refused for lack of the job's key.
    - `leaving`: it has received a SIGTERM, and waits `NOTICE_S` for its ranks to move.
    - `granted`: the step up to which its ranks may run. Masters of epochs before `epoch` can no longer change it.
    - `parts`: what extensions' parts in this agent report: see `AgentPart.report`.
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
    parts: tuple[Sealed, ...] = ()

    def part(self, kind: type[P]) -> P | None:
        """Return what an extension's part reports with a struct of this type; None if it reports nothing."""
        return next((each.opened(kind) for each in self.parts if each.name == tag_of(kind)), None)


class AtWork(msgspec.Struct, frozen=True, tag=True):
    """The agent takes long for a command. It lives, and will report soon."""

    agent: str
    incarnation: int


class Stopped(msgspec.Struct, frozen=True, tag=True):
    """All ranks of this agent are gone and its files are removed."""

    agent: str
    incarnation: int


# --------------------------------------------------------------------------- rank to agent (some are passed on as is)


class RankHello(OfStart, frozen=True, tag=True):
    """A rank's process runs and its inboxes are open. Rank 0 of a collective group gives its `rendezvous_port`."""

    pid: int
    addresses: dict[str, str]
    rendezvous_port: int | None = None


class RankReady(OfStart, frozen=True, tag=True):
    """`setup` has returned, after `setup_s` seconds."""

    setup_s: float


class RankFinish(OfStart, frozen=True, tag=True):
    """The workload of the rank wants the job to finish."""

    reason: str


class RankDone(OfStart, frozen=True, tag=True):
    """The rank has finished all steps. `sha256` is the hash of its state, "" if it has none.

    `verdict` is the workload's reason for counting the job as failed; "" if it does not. If ranks keep only the last
    state (`SnapshotPlan.last`), `kept` is the rank's part of that checkpoint on disk, or `unkept` says why there is
    none.
    """

    finished: int
    sha256: str
    verdict: str = ""
    kept: Persisted | None = None
    unkept: str = ""


class RankSays(OfStart, frozen=True, tag=True):
    """The message of an extension in the rank for its part in the master. It replaces the one of its class."""

    message: Sealed


class RankEnds(OfStart, frozen=True, tag=True):
    """The workload is torn down; only threads and exit handlers of the process are left."""


class RankFailed(msgspec.Struct, frozen=True, tag=True):
    """A rank failed, by its own report or by what its agent saw of the process."""

    failure: Failure


# --------------------------------------------------------------------------------------------------- agent to rank


class Connect(msgspec.Struct, frozen=True, tag=True):
    """The addresses of neighbours that are new since the last `Connect`, and the meeting point of the rank's group."""

    peers: tuple[Peer, ...]
    rendezvous: RendezvousAt | None = None


class Fault(msgspec.Struct, frozen=True, tag=True):
    """Rehearsal: fail now ("exit"), or in the next operator ("raise")."""

    kind: Literal["exit", "raise"]


class MasterSays(msgspec.Struct, frozen=True, tag=True):
    """The messages of extensions in the master for their parts in the rank. Each replaces the one of its class."""

    messages: tuple[Sealed, ...]


class Adopted(msgspec.Struct, frozen=True, tag=True):
    """A new incarnation of the agent has adopted the rank. The rank sends again all that may have been lost."""

    incarnation: int


MasterToAgent: TypeAlias = Launch | Halt | Addresses | Watermarks | Say | ToPart | Stop
AgentToMaster: TypeAlias = Report | FromPart | AtWork | Stopped


class RankMetrics(OfStart, frozen=True, tag=True):
    """Lines of metrics of one rank."""

    lines: tuple[Metrics, ...]


RankToAgent: TypeAlias = RankHello | RankReady | RankMetrics | RankSays | RankFinish | RankDone | RankEnds | RankFailed
AgentToRank: TypeAlias = Connect | Watermarks | MasterSays | Fault | Stop | Adopted

encode = msgspec.msgpack.Encoder().encode
decode_master_to_agent = msgspec.msgpack.Decoder(MasterToAgent).decode
decode_agent_to_master = msgspec.msgpack.Decoder(AgentToMaster).decode
decode_rank_to_agent = msgspec.msgpack.Decoder(RankToAgent).decode
decode_agent_to_rank = msgspec.msgpack.Decoder(AgentToRank).decode
