"""The state that the parts of a master's machine share: the job's state, its configuration, and the turn's effects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rolemesh.api.failures import Failure, JobView, NodeState, RankView
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.apply import apply
from rolemesh_durable.protocol.master.hooks import Hooks
from rolemesh_durable.protocol.master.ladder import Diagnose, Ladder
from rolemesh_durable.protocol.master.state import JobState
from rolemesh_durable.protocol.master_config import MasterConfig

__all__ = ["MasterContext"]

STOP_MARGIN_S = 5.0
"""Seconds beyond the grace that agents have to kill and clean up before the master gives them up."""


ASK_AGAIN_S = 2.0
"""Seconds after which the machine repeats a request for places that had no result."""


class MasterContext:
    """One job. `tell` applies and journals a transition; `want` adds an effect that follows it.

    - `deadline`: when a job that starts, or ends, must have done so.
    - `warnings`: present problems with snapshots, by agent ("" for the master itself).
    - `nodes`: the nodes that exist, as far as the master knows.
    - `room`: how many ranks each role could have there.
    """

    def __init__(self, config: MasterConfig, ladder: Ladder, diagnosers: Sequence[Diagnose]) -> None:
        self.config = config
        self.ladder = tuple(ladder)
        self.diagnosers = tuple(diagnosers)
        self.state = JobState.of(config)
        self.now = 0.0
        """The time of this turn, on the machine's own clock."""
        self.deadline = float("inf")
        self.warnings: dict[str, str] = {}
        self.nodes: tuple[str, ...] = ()
        self.room: dict[str, int] = {}
        self.hooks = Hooks()
        self._effects: list[e.Effect] = []
        self._groups: dict[str, tuple[RankRef, ...]] = {}
        self._grouped = -1

    def tell(self, happened: t.Transition) -> None:
        """Apply a transition, and journal it."""
        apply(self.state, happened)
        self._effects.append(e.JournalEntry(happened.kind, happened.data))

    def want(self, *effects: e.Effect) -> None:
        """Add effects."""
        self._effects += effects

    def taken(self) -> list[e.Effect]:
        """Return all effects since the last call, in order."""
        taken, self._effects = self._effects, []
        return taken

    def groups_of(self, keys: Iterable[RankRef]) -> tuple[tuple[RankRef, ...], ...]:
        """Return the group of each of these ranks (see `JobView.group`), every group once."""
        found: dict[str | RankRef, tuple[RankRef, ...]] = {}
        for key in keys:
            group = self.groups.get(key[0])
            found[key if group is None else key[0]] = (key,) if group is None else group
        return tuple(found.values())

    @property
    def groups(self) -> dict[str, tuple[RankRef, ...]]:
        """The ranks of each collective role, in the present layout."""
        if self._grouped != self.state.layout.number:
            self._grouped = self.state.layout.number
            found: dict[str, list[RankRef]] = {}
            for key, rank in self.state.ranks.items():
                if rank.launch.collective:
                    found.setdefault(key.role, []).append(key)
            self._groups = {role: tuple(keys) for role, keys in found.items()}
        return self._groups

    def node(self, key: RankRef) -> str:
        """Return the node of a rank."""
        return self.state.agents[self.state.ranks[key].agent].place.node

    def failed(self, failure: Failure, silent_s: float = 0.0) -> None:
        """Record a failure, which lasted `silent_s` seconds before the master noticed it."""
        self.tell(t.FailureSeen(failure, round(silent_s, 3), self.now))

    def start_agents(self, names: Sequence[str]) -> None:
        """Start these agents, each as its next incarnation."""
        starts: list[e.Incarnation] = []
        for name in names:
            agent = self.state.agents[name]
            place, number = agent.place, agent.incarnation + 1
            self.tell(t.AgentStarted(name, number, place.node, place.resources))
            agent.heard, agent.seq, agent.report = self.now, -1, None
            starts.append(e.Incarnation(place, number))
        self.want(e.StartAgents(tuple(starts)))

    def run_if_ready(self) -> None:
        """Let the job run as soon as all of its ranks are ready."""
        state = self.state
        if state.phase == "starting" and state.recovery is None and state.are(state.ranks, "ready", "done", "running"):
            self.tell(t.JobRunning(self.now))

    def finish(self, reason: str) -> None:
        """Finish the job in good order. Only the first reason counts."""
        if not self.state.finishing and self.state.phase in ("starting", "running"):
            self.tell(t.JobFinishing(reason, self.now))

    def stop(self, status: t.Status, message: str, grace_s: float) -> None:
        """Stop the job: its agents ask the ranks to stop, then kill them."""
        if self.state.phase == "stopping":
            if not (self.state.patient and status == "interrupted"):
                return
            status = "done"  # its processes must end now; the job's status stays
        self.deadline = self.now + grace_s + STOP_MARGIN_S
        self.tell(t.JobStopping(status, message, grace_s, self.now))
        self.end_if_gone()

    def end_if_gone(self) -> None:
        """End a stopping job if none of its agents is left."""
        if all(agent.state in ("stopped", "lost", "wanted") for agent in self.state.agents.values()):
            self.end()

    def end(self, note: str = "") -> None:
        """End the job."""
        state = self.state
        self.tell(t.JobEnded(state.status, state.message, state.committed, note))
        self.want(e.End(state.status, state.message))

    def view(self) -> JobView:
        """Return the job as diagnosers and levels see it."""
        state, config = self.state, self.config
        ranks = tuple(
            RankView(*key, self.node(key), rank.state, rank.finished, rank.launch.generation, rank.durable)
            for key, rank in state.ranks.items()
        )
        nodes = tuple(
            NodeState(agent.place.node, name, agent.state in ("starting", "up") or not agent.node_lost)
            for name, agent in state.agents.items()
        )
        used = {rank.node for rank in ranks}.union(state.away())
        return JobView(
            config.job.name, config.epoch, state.committed, ranks, tuple(self.groups), config.job.stateful, nodes,
            state.persisted, tuple(state.failures), tuple(state.attempts), self.now,
            tuple(state.failed_at[: len(state.failures)]), tuple(n for n in self.nodes if n not in used),
            ranges=config.ranges, resources=config.resources | state.resources, most=config.most,
        )  # fmt: skip

    def ordered(self, wanted: Iterable[RankRef]) -> tuple[RankRef, ...]:
        """Return these ranks in the job's order."""
        known = set(wanted)
        return tuple(key for key in self.state.ranks if key in known)
