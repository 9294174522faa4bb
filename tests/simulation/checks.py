"""The invariants of every schedule. A breach raises `Violation` at the moment at which it happens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from tests.simulation.model import SHARDS, State, Value
from tests.simulation.scenario import MOST_MEMORY, REST_S

from rolemesh.api.observer import Event, StepMetrics
from rolemesh.api.partition import Balanced
from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.bans.master import Banned
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.agent import events as ae
from rolemesh_durable.protocol.master.state import JobState, KeptJob

if TYPE_CHECKING:
    from tests.simulation.agent import SimAgent
    from tests.simulation.effects import SimItem
    from tests.simulation.memory import NodeMemory
    from tests.simulation.rank import SimRank
    from tests.simulation.world import World

    from rolemesh.graph.logical import Edge, OpCall
    from rolemesh_durable.protocol.edge import Kept
    from rolemesh_durable.protocol.rank.out_edge import OutEdge

__all__ = ["INVARIANTS", "Checks"]

UNHEARD = 3
"""If this number of reports with a line was lost, the master may write the line without the agent's part."""
INVARIANTS = (
    "a bounded lag is kept",
    "a call that is given up is cancelled",
    "a conversation is repeated as it was",
    "a drain loses no step",
    "a failed job names the levels it tried",
    "a rehearsal holds ranks back",
    "a resize loses no call",
    "a resize restarts its roles only",
    "a role keeps its minimum of ranks",
    "a role's memory stays within its limit",
    "a role keeps its granted memory",
    "a scaler waits after a resize",
    "a repeated step takes the same values",
    "a turn that was heard is not asked again",
    "all consumers of a value agree",
    "all ranks end with the same step",
    "an extension gets no older message",
    "an agent's death restarts no rank",
    "a producer answers every request",
    "a checkpoint has one history",
    "checkpoints are whole",
    "compaction forgets nothing",
    "the master calls each hook once, in order",
    "an item's metrics count once",
    "a line of metrics is of one life",
    "a line of metrics is written once",
    "a shard is trained once",
    "generations grow",
    "an agent clears its memory once per timeline",
    "no action comes twice",
    "no answer of an older life is taken",
    "no call is lost",
    "a callee runs no call twice in one life",
    "no deadlock",
    "no exception",
    "a node's ranks fit its resources",
    "no rank is on a drained node",
    "no rank is placed on a banned node",
    "no report is lost",
    "no row comes twice",
    "ranks make no row twice without need",
    "no row is lost",
    "no step is skipped",
    "a role keeps ranks that have a place",
    "no rank restores a step before the commit",
    "no rank restarts without a failure",
    "a rank has one agent",
    "only the newest master acts",
    "a line of metrics has one layout",
    "a step has one layout",
    "a rank has one process",
    "ranks move to nodes of their plan",
    "ranks start on fit nodes",
    "ranks restore a snapshot that exists",
    "the job rolls back to a whole checkpoint",
    "steps are committed once",
    "the job ends as its faults allow",
    "the ladder ends",
    "the last state is kept",
    "recovery restarts the fewest ranks",
    "the state is the undisturbed run's",
    "ranks leave unfit nodes only",
    "every rank can restore the committed step",
    "the index of ranks by agent equals a scan",
    "the journal agrees with the processes",
    "an ended rank does nothing more",
    "a leaving rank knows its last step",
    "a busy operator is not restarted",
)
"""The names of the invariants, as a violation reports them."""


class Checks:
    """The invariants of one world."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.committed = -1
        self.timeline = 0
        self.epoch = 0
        self.banned: set[str] = set()
        self.lines: list[int] = []
        self._rests = -1, 0.0
        """The master that has ended the latest resize, and the time until which it asks no scaler."""
        self._layouts = [(-1, world.job.sizes)]
        """The world sizes of each layout, with the step after which it holds."""
        self.last: int | None = None
        self.recoveries = 0
        self.levels: list[str] = []
        self.restarted: list[tuple[str, tuple[str, ...]]] = []
        self.kinds: dict[str, int] = {}
        self.trail: list[str] = []
        self.used: dict[RankRef, tuple[int, ...]] = {}
        self.fit: set[str] = set()
        """Nodes that the journal says are fit for ranks."""
        self._generations: dict[RankRef, int] = {}
        self._known_up: dict[RankRef, int] = {}
        """The newest generations of which the journal says that they have started."""
        self._epochs: dict[str, int] = {}
        self._chosen: dict[tuple[NodeMemory, int, RankRef, int, int], Any] = {}
        self._took: dict[tuple[RankRef, int], dict[tuple[int, int], int]] = {}
        self._working: dict[tuple[int, int, int], list[tuple[SimRank, float]]] = {}
        """(call, step, item) → the ranks that took the item, with the time. For rows that ranks share by demand."""
        self._ran: set[tuple[str, object]] = set()
        self._acts: dict[tuple[int, int], int] = {}
        self._resized: set[str] = set()
        self._given: dict[str, float] = {}
        """Role → the memory of its ranks, since a recovery has given them more."""
        self._begun: dict[RankRef, int] = {}
        """Rank → the newest step that it has begun."""
        self._told: dict[RankRef, tuple[str, int]] = {}
        """Rank → the node that it must leave, and the step at which it learned this."""
        self._hold = -1
        self._taken: dict[RankRef, dict[tuple[int, int, int, int], int]] = {}
        """Consumer → the values that it took.

        Of each value: step, call and rank that made it (-1: a group; or the item's number), its time and version.
        """
        self.unkept = False
        """A rank could not write its last state."""
        self._unlike = world.job.unlike()
        self._restarts: dict[RankRef, list[tuple[int, int]]] = {}

    # --------------------------------------------------------------------------------------------------- the journal

    def recorded(self, event: Event) -> None:
        """A record has been written."""
        world = self.world
        self.kinds[event.kind] = self.kinds.get(event.kind, 0) + 1
        world.note(f"journal {event.epoch}", f"{event.kind} {brief(event.data)}")
        if event.epoch < self.epoch:
            world.fail("only the newest master acts", f"epoch {event.epoch} writes after epoch {self.epoch}")
        self.epoch = event.epoch
        data = event.data
        match event.kind:
            case "committed":
                self._commit(data["step"])
            case "rolled_back":
                self.timeline += 1
                self.committed = data["step"]
                if data["step"] != world.disk.newest():
                    world.fail(
                        "the job rolls back to a whole checkpoint",
                        f"step {data['step']} is not the newest checkpoint on disk",
                    )
            case "recovery_planned":
                if data["plan"]["level"] == "drain" and world.scenario.family == "drain calm":
                    self._leaves(data["plan"])
                if data["plan"]["level"] == "resize" and {role for role, _ in data["plan"]["restart"]} - self._resized:
                    world.fail("a resize restarts its roles only", str(data["plan"]))
                for role, size in data["plan"].get("resize", {}).items():
                    self._shrinks(role, size, data["plan"].get("avoid", ()))
                if world.scenario.family == "adopt":
                    world.fail("an agent's death restarts no rank", str(data["plan"]))
                self.recoveries += 1
                self.levels.append(data["plan"]["level"])
                if self.recoveries > world.scenario.max_recoveries:
                    world.fail("the ladder ends", f"{self.recoveries} recoveries")
            case "ladder_exhausted":
                self.trail = data["trail"]
            case "recovery_launched":
                for rank in data["ranks"]:
                    self._launched(rank)
                    key = RankRef(rank["role"], rank["rank"])
                    if world.scenario.family == "drain calm" and rank["resume"] != self._begun[key]:
                        world.fail("a drain loses no step", f"{key} has begun {self._begun[key]}: {rank}")
            case "rank_up":
                self._known_up[RankRef(data["role"], data["rank"])] = data["generation"]
            case "node_checked":
                self.fit |= {data["node"]} if not data.get("unfit") else set()
            case "nodes_banned":
                self.banned |= set(data["nodes"])
            case "ban_lifted":
                self.banned.discard(data["node"])
            case "replanned":
                self._moved()
                self._gives()
                self._shuns()
            case "stop_point":
                if data["then"] == "end":
                    self._ends_with(data["step"])
                elif data["then"] == "move":
                    self._hold = data["step"]
            case "drained":
                self._empty(data["node"])
                world.scenario.drained(world, data["node"])
            case "layout_changed":
                self._relaid(data)
                self._shuns()
            case "resized" | "resize_refused":
                self._rests = event.epoch, world.now + REST_S
            case "resize_asked" if data["reason"].startswith("scaler"):
                epoch, until = self._rests
                if epoch == event.epoch and world.now < until - 0.5:
                    world.fail("a scaler waits after a resize", f"{data}: it is {world.now:.2f}, not {until:.2f}")
            case "recovered":
                self.restarted.append((data["level"], tuple(data["restarted"])))
        world.scenario.nemesis.recorded(world, event)

    def _commit(self, step: int) -> None:
        world = self.world
        self._agree(step)
        if step <= self.committed:
            world.fail("steps are committed once", f"step {step} after step {self.committed}")
        self.committed = step
        for key in world.shape.keys:
            kept = {memory.node: (*memory.steps(key), *memory.copies.get(key, ())) for memory in world.memories()}
            best = max((at for steps in kept.values() for at in steps), default=-1)
            if best < step and not world.wiped and world.scenario.plan.enabled:
                world.fail("every rank can restore the committed step", f"{key} has only {best}, {step} is committed")
            on_disk = world.disk.newest() >= step
            if world.scenario.plan.replicas and not on_disk and not world.wiped and len(world.backend.agents) > 1:
                homes = {node for node, steps in kept.items() if any(at >= step for at in steps)}
                if len(homes) < 2:
                    world.fail("every rank can restore the committed step", f"{key}: step {step} is on {homes} only")

    def starts_on(self, node: str) -> None:
        """A rank starts on this node."""
        if self.world.scenario.limits and (node not in self.fit or node in self.world.scenario.speeds):
            self.world.fail("ranks start on fit nodes", f"{node} has not been found to be one")

    def _moved(self) -> None:
        state = self.world.journal.state
        assert state.recovery is not None
        avoid = {*state.recovery.plan.avoid, *(node for node, why in state.barred if why == "unfit")}
        homes = {rank.agent: state.agents[rank.agent] for rank in state.ranks.values()}
        if wrong := [name for name, agent in homes.items() if agent.place.node in avoid or agent.node_lost]:
            self.world.fail("ranks move to nodes of their plan", f"ranks are on {wrong}, to avoid are {avoid}")

    def _shuns(self) -> None:
        """Ranks have new places, for whatever reason."""
        state = self.world.journal.state
        nodes = {state.agents[rank.agent].place.node for rank in state.ranks.values()}
        if wrong := nodes & self.banned:
            self.world.fail("no rank is placed on a banned node", f"ranks are on {wrong}")

    def _gives(self) -> None:
        """Ranks have new places, and maybe more memory."""
        world, state = self.world, self.world.journal.state
        self._given |= {role: amounts["memory_gb"] for role, amounts in state.resources.items()}
        if wrong := {role: amount for role, amount in self._given.items() if amount > MOST_MEMORY}:
            world.fail("a role's memory stays within its limit", f"{wrong}")
        used: dict[str, float] = defaultdict(float)
        for (role, _), record in state.ranks.items():
            used[state.agents[record.agent].place.node] += self._given.get(role, 1.0)
        if full := {node: amount for node, amount in used.items() if amount > world.scenario.memory}:
            world.fail("a node's ranks fit its resources", f"{full} of {world.scenario.memory}")

    def _leaves(self, plan: dict[str, Any]) -> None:
        """Ranks leave nodes, and nothing has failed."""
        for rank in self.world.processes.values():
            if list(rank.key) not in [list(key) for key in plan["restart"]] or not rank.alive:
                continue
            if rank.finished != self._hold:
                self.world.fail("a drain loses no step", f"{rank.name} has finished {rank.finished}, not {self._hold}")
            if rank.agent.node in plan["avoid"] and self._told.get(rank.key) != (rank.agent.node, self._hold):
                self.world.fail(
                    "a leaving rank knows its last step", f"{rank.name} at {self._hold}: {self._told.get(rank.key)}"
                )

    def held(self, rank: SimRank, step: int) -> None:
        """A rank has its snapshot of `step`, after which all are held."""
        if step == rank.pause and rank.heard < step:
            self.world.fail("a resize loses no call", f"{rank.name} may be called after its snapshot of {step}")

    def leaves(self, rank: SimRank, step: int) -> None:
        """Note that a rank learns, before its snapshot of `step`, that it must leave its node."""
        self._told[rank.key] = rank.agent.node, step

    def _empty(self, node: str) -> None:
        for rank in self.world.processes.values():
            if rank.alive and rank.agent.node == node and self._generations[rank.key] == rank.generation:
                self.world.fail("no rank is on a drained node", f"{rank.name} lives on {node}")

    def _shrinks(self, role: str, size: int, away: list[str]) -> None:
        """Check a recovery that continues with `size` ranks of a role."""
        world, state = self.world, self.world.journal.state
        nodes = [state.agents[record.agent].place.node for key, record in state.ranks.items() if key[0] == role]
        if size < min(len(nodes), sum(node not in away for node in nodes)):
            world.fail("a role keeps ranks that have a place", f"{role} is to have {size}, on {nodes} without {away}")

    def _relaid(self, data: dict[str, Any]) -> None:
        world, layout = self.world, data["layout"]
        self.committed = step = layout["step"]
        for (timeline, at), number in self._acts.items():
            if timeline == self.timeline and at > step and number < layout["number"]:
                world.fail(
                    "a step has one layout", f"{number} has acted at {at}, {layout['number']} holds after {step}"
                )
        self._resized |= set(data["roles"])
        world.shape = world.job.shaped(layout["sizes"])
        self._layouts = [*(known for known in self._layouts if known[0] < step), (step, world.shape.sizes)]
        self.used = {key: seen for key, seen in self.used.items() if key in world.shape.keys}
        self._taken = {key: taken for key, taken in self._taken.items() if key in world.shape.keys}
        for role, (least, _) in world.scenario.ranges.items():
            if world.shape.sizes[role] < least:
                world.fail("a role keeps its minimum of ranks", f"{role} has {world.shape.sizes[role]}")
        world.after.resize(step, world.shape)

    def _ends_with(self, step: int) -> None:
        if self.last is not None:
            self.world.fail("all ranks end with the same step", f"{step}, and {self.last} before")
        self.last = step
        for rank in self.world.processes.values():
            if rank.alive:
                self._within(rank, rank.step)

    def begins(self, rank: SimRank, step: int) -> None:
        """A rank begins a step."""
        self._begun[rank.key] = step
        if step > (released := self.world.scenario.released):
            self.world.fail("a rehearsal holds ranks back", f"{rank.name} begins {step}, {released} is released")
        number = self._acts.setdefault((self.timeline, step), rank.layout.number)
        if number != rank.layout.number:
            self.world.fail(
                "a step has one layout", f"{rank.name} is at {step} in {rank.layout.number}, others in {number}"
            )
        self._within(rank, step)

    def _within(self, rank: SimRank, step: int) -> None:
        if self.last is not None and step > self.last:
            self.world.fail(
                "all ranks end with the same step", f"{rank.name} is at {step}, {self.last} is the last one"
            )

    @property
    def end(self) -> int:
        """The last step, as far as it is known."""
        return self.last if self.last is not None else self.world.job.steps - 1

    def complete(self, step: int, parts: tuple[m.Persisted, ...]) -> None:
        """The master has a checkpoint completed."""
        for part in parts:
            key = part.ref
            if part.timeline != self.timeline:
                self.world.fail("a checkpoint has one history", f"{key} at {step} is of timeline {part.timeline}")
            for generation, resume in self._restarts.get(key, ()):
                if generation > part.generation and resume < step:
                    self.world.fail(
                        "a checkpoint has one history",
                        f"{key} at {step} is of generation {part.generation}, {generation} goes on from {resume}",
                    )

    def replayed(self, kept: KeptJob, whole: KeptJob) -> None:
        """A new master has read what is kept of the journal; `whole` is what all of it would have told."""
        for name in kept.__struct_fields__:
            if (mine := getattr(kept, name)) != (should := getattr(whole, name)):
                self.world.fail("compaction forgets nothing", f"{name}: {mine} instead of {should}")

    def told(self, master: JobState, journal: JobState) -> None:
        """A master has journalled its turn: who reads the journal must come to the state that the master is in."""
        for name in master.agents:
            if master.on(name) != (there := [key for key, rank in master.ranks.items() if rank.agent == name]):
                self.world.fail("the index of ranks by agent equals a scan", f"{name}: {master.on(name)} for {there}")
        mine, should, exact = master.kept, journal.kept, self.world.scenario.weather is None
        for name in mine.__struct_fields__:
            told, read = (_told(name, getattr(state, name), exact) for state in (mine, should))
            if told != read:
                self.world.fail("the journal agrees with the processes", f"{name}: {told}, the journal tells {read}")

    def _launched(self, rank: dict[str, Any]) -> None:
        key = RankRef(rank["role"], rank["rank"])
        self._restarts.setdefault(key, []).append((rank["generation"], rank["resume"]))
        if rank["resume"] < self.committed:
            self.world.fail(
                "no rank restores a step before the commit",
                f"{rank['role']}/{rank['rank']} goes on from {rank['resume']}, {self.committed} is committed",
            )

    # --------------------------------------------------------------------------------------------------------- agents

    def obeyed(self, agent: SimAgent, message: m.MasterToAgent, effects: list[ae.Effect]) -> None:
        """An agent has acted on a master's message."""
        newest = self._epochs.get(agent.uid, -1)
        acts = [e for e in effects if not isinstance(e, ae.ToMaster | ae.ReviveMaster | ae.RankDied)]
        if message.epoch < newest and acts:
            self.world.fail(
                "only the newest master acts", f"{agent.label} obeys epoch {message.epoch} after epoch {newest}: {acts}"
            )
        self._epochs[agent.uid] = max(newest, message.epoch)

    def commands(self, agent: SimAgent) -> None:
        """An agent does something to a rank."""
        if agent.memory.owner is not agent:
            self.world.fail("a rank has one agent", f"{agent.label} acts, {agent.memory.owner.label} has taken over")

    # ---------------------------------------------------------------------------------------------------------- ranks

    def forked(self, rank: SimRank) -> None:
        """A process starts."""
        world = self.world
        self._alone(rank)
        if (rank.agent.node, "drained") in world.journal.state.barred:
            world.fail("no rank is on a drained node", f"{rank.name} starts on {rank.agent.node}")
        known = self._generations.get(rank.key, -1)
        if world.scenario.family == "resize calm" and known >= 0 and rank.key[0] not in self._resized:
            world.fail("a resize restarts its roles only", f"{rank.name} starts")
        # Who has died with its agent before anybody heard of it was never there.
        if rank.generation < known or rank.generation == known == self._known_up.get(rank.key):
            world.fail("generations grow", f"{rank.name} starts after generation {known}")
        self._generations[rank.key] = rank.generation
        if (state := world.journal.state).ranks[rank.key].launch.generation == rank.generation:
            given = state.resources.get(rank.key[0], {}).get("memory_gb", 1.0)
            if rank.launch.memory_gb != given or given < self._given.get(rank.key[0], 0.0):
                world.fail("a role keeps its granted memory", f"{rank.name} has {rank.launch.memory_gb}, not {given}")
        if rank.launch.resume < self.committed and rank.generation == self._generations[rank.key]:
            world.fail("no rank restores a step before the commit", f"{rank.name} goes on from {rank.launch.resume}")

    def acts(self, rank: SimRank) -> None:
        """A rank handles what has arrived, or is about to touch its memory."""
        if rank.left:
            self.world.fail("an ended rank does nothing more", f"{rank.name} goes on, but its main thread has ended")

    def owns(self, rank: SimRank) -> None:
        """A rank touches its memory."""
        self.acts(rank)
        self._alone(rank)

    def _alone(self, rank: SimRank) -> None:
        for other in self.world.processes.values():
            if other is not rank and other.key == rank.key and other.agent.memory is rank.agent.memory and other.alive:
                self.world.fail("a rank has one process", f"{rank.name} and {other.name} live on {rank.agent.name}")

    def restored(self, rank: SimRank) -> None:
        """A rank has its state back."""
        if rank.launch.replica or rank.launch.restore == "disk":  # it does not know what it had chosen
            there = rank.agent.memory, rank.key
            self._chosen = {at: made for at, made in self._chosen.items() if (at[0], at[2]) != there}
        for (key, _), found in self._took.items():
            if key == rank.key:
                for piece in [piece for piece, step in found.items() if step > rank.launch.resume]:
                    del found[piece]
        known = self._taken.get(rank.key, {})
        self._taken[rank.key] = {at: version for at, version in known.items() if at[0] <= rank.launch.resume}
        self._as_undisturbed(rank, rank.launch.resume)

    def snapshot(self, rank: SimRank, step: int) -> None:
        """A snapshot is complete."""
        self._as_undisturbed(rank, step)

    def runs(self, rank: SimRank, key: object) -> None:
        """A rank runs a call of another role."""
        if (rank.uid, key) in self._ran:
            self.world.fail("a callee runs no call twice in one life", f"{rank.name}: {key}")
        self._ran.add((rank.uid, key))

    def cancelled(self, rank: SimRank, key: object) -> None:
        """A rank has cancelled a call that its caller has given up, and may run it again."""
        self._ran.discard((rank.uid, key))

    def stuck(self) -> None:
        """The job does not end: who waits for the answer to a call?"""
        for rank in self.world.processes.values():
            if rank.alive and not rank.frozen and (waits := rank.calls.waits):
                self.world.fail("no call is lost", f"{rank.name} waits for {waits}")

    def chose(self, rank: SimRank, edge: Edge, step: int, made: int) -> None:
        """A step takes the value of an edge with a bounded lag that was made at step `made`."""
        activity = self.world.job.activity
        begun = made >= activity.first(edge) or edge.initial
        if not (step - edge.lag <= made <= step and begun):
            self.world.fail("a bounded lag is kept", f"{rank.name} takes at {step} what was made at {made}: {edge}")
        memory = rank.agent.memory
        at = memory, memory.timeline, rank.key, edge.id, step
        if (before := self._chosen.setdefault(at, made)) != made:
            self.world.fail(
                "a repeated step takes the same values", f"{rank.name} at {step}: {made} after {before}: {edge}"
            )

    def took(self, rank: SimRank, edge: Edge, step: int, took: tuple[tuple[int, int], ...]) -> None:
        """A step takes these items, (step, number), of those that are finished first."""
        if any(made < step - edge.lag for made, _ in took):
            self.world.fail("a bounded lag is kept", f"{rank.name} takes {took} at {step}: {edge}")
        memory = rank.agent.memory
        at = memory, memory.timeline, rank.key, edge.id, step
        if (before := self._chosen.setdefault(at, took)) != took:
            self.world.fail(
                "a repeated step takes the same values", f"{rank.name} at {step}: {took} after {before}: {edge}"
            )
        found = self._took.setdefault((rank.key, edge.id), {})
        for piece in took:
            if found.setdefault(piece, step) != step:
                self.world.fail("no row comes twice", f"{rank.name} at {step}: {piece} as at {found[piece]}: {edge}")

    def works(self, rank: SimRank, op: OpCall, step: int, item: int) -> None:
        """A rank takes an item that is shared out by demand, after it has heard all that has arrived.

        Two ranks may take an item while the message about it is under way; later only one of two that live may.
        """
        latest = self.world.now - self.world.scenario.net.socket
        takers = self._working.setdefault((op.id, step, item), [])
        for other, at in takers:
            if other is not rank and other.alive and at < latest:
                self.world.fail(
                    "ranks make no row twice without need",
                    f"{rank.name} takes item {item} of {op.label} at {step}, which {other.name} took at {at:.3f}",
                )
        takers.append((rank, self.world.now))

    def _took_all(self, rank: SimRank) -> None:
        for (key, edge), found in self._took.items():
            each = sum(step == 0 for step, _ in found)
            missing = [step for step in range(self.end + 1) if sum(at == step for at, _ in found) != each]
            if key == rank.key and missing:
                self.world.fail("no row is lost", f"{rank.name} has not taken all of {missing}: edge {edge}, {found}")

    def collated(self, rank: SimRank, edge: Edge, step: int, rows: list[Value], wanted: int) -> None:
        """A consumer has put the rows of a step together that were shared out by demand: `wanted` of them are its."""
        if len({row.h for row in rows}) < len(rows):
            self.world.fail("no row comes twice", f"{rank.name} has {rows} of step {step}: {edge}")
        if len(rows) < wanted:
            self.world.fail("no row is lost", f"{rank.name} has {len(rows)} of {wanted} rows of step {step}: {edge}")

    def used_version(
        self, rank: SimRank, edge: Edge, step: int, made: int, sources: Sequence[int], parts: list[list[Any]]
    ) -> None:
        """A call of `step` uses the value of an edge that was made at step `made`."""
        known, found = self._taken.setdefault(rank.key, {}), dict[int, set[int]]()
        job = rank.job
        if isinstance(edge.src_partition, Balanced):  # of an item that has come twice the first counts
            for number, *_, rows in [item for part in parts for item in part if item[4]]:
                found.setdefault(number, {rows[0].version})
        else:
            together = job.kinds[job.graph.ops[edge.src].role] == "collective"
            for source, chunks in zip(sources, parts, strict=True):
                found.setdefault(-1 if together else source, set()).update(chunk.version for chunk in chunks)
        for which, versions in found.items():
            if len(versions) > 1:
                self.world.fail("all consumers of a value agree", f"{rank.name} at {step} mixes versions: {edge}")
            known[step, edge.src, which, made] = versions.pop()

    def _agree(self, upto: int) -> None:
        """Nobody goes back before `upto`, except to the disk."""
        first: dict[tuple[int, ...], tuple[int, RankRef]] = {}
        for key, known in self._taken.items():
            for (step, *value), version in known.items():
                if step > upto:
                    continue
                before, other = first.setdefault(tuple(value), (version, key))
                if before != version:
                    self.world.fail(
                        "all consumers of a value agree", f"{key} and {other} differ in what {value} has made"
                    )

    def _as_undisturbed(self, rank: SimRank, step: int) -> None:
        if rank.key[0] in self._unlike:
            return
        expected = self.world.after[step][rank.key] if step >= 0 else State()
        if rank.mind.kind != "stateless" and rank.mind.state != expected:
            self.world.fail(
                "the state is the undisturbed run's",
                f"{rank.name} after step {step}: {rank.mind.state}, not {expected}",
            )

    def done(self, rank: SimRank) -> None:
        """A rank has finished all steps."""
        self.used[rank.key] = tuple(rank.mind.state.seen)
        if rank.finished != self.end:
            self.world.fail(
                "all ranks end with the same step", f"{rank.name} ends after {rank.finished}, not {self.end}"
            )
        self._took_all(rank)
        self._as_undisturbed(rank, self.end)

    def answered(
        self,
        rank: SimRank,
        out_edge: OutEdge[SimItem],
        consumer: int,
        generation: int,
        from_step: int,
        kept: list[Kept[Any]],
    ) -> None:
        """A producer has answered an ask: all it has made and the consumer lacks must be there."""
        if generation < out_edge.state._generations[consumer]:
            return
        job, edge = rank.job, out_edge.edge
        there = {item.step for item in kept}
        floor = max(from_step, rank.launch.origin_step + 1 if rank.launch.restore != "memory" else from_step)
        for step in range(floor, rank.finished + 1):
            made = job.activity.active(edge.src, step) and job.activity.consumed(edge, step, job.steps)
            if made and step not in there:
                self.world.fail(
                    "a producer answers every request",
                    f"{rank.name} has no value of step {step} of edge {edge.id} for rank {consumer}, "
                    f"which asks from {from_step} on",
                )

    # ------------------------------------------------------------------------------------------------------- metrics

    def published(self, line: StepMetrics) -> None:
        """A line of metrics has been written."""
        steps = range(line.step - line.steps + 1, line.step + 1)
        if steps.start != len(self.lines):
            self.world.fail(
                "a line of metrics is written once", f"a line of steps {steps} after {len(self.lines)} steps"
            )
        after, sizes = [layout for layout in self._layouts if layout[0] < line.step][-1]
        if after >= steps.start:
            self.world.fail(
                "a line of metrics has one layout", f"a line of {steps}: the layout has changed after {after}"
            )
        for role, size in sizes.items():
            self._counts_all(line, role, size)
        for label, values in line.operators.items():
            role = label.partition(".")[0]
            if round(values.get("shares", 0.0) * line.steps, 6) not in range(
                line.steps + 1
            ):  # a line has sums per step
                self.world.fail("an item's metrics count once", f"line {line.step}: {label} {values}")
        if len(lives := {values["life"] for values in line.operators.values() if "life" in values}) > 1:
            self.world.fail("a line of metrics is of one life", f"line {line.step} has parts of {sorted(lives)}")
        self.lines += steps

    def _counts_all(self, line: StepMetrics, role: str, size: int) -> None:
        """A line counts each of the `size` ranks of a role once in each step."""
        label = next((op.label for op in self.world.job.schedule[role]), "")
        counted = line.operators.get(label, {}).get("n", 0.0) if label else size  # the sum per step
        found = round(counted * line.steps, 6)
        if found > size * line.steps:
            self.world.fail(
                "a line of metrics is written once", f"line {line.step} counts a rank twice: {label} {found}"
            )
        # The master does not wait for ever. Several reports in a row may be lost or overtaken, and a rank that is in a
        # long operator may have a line that it has not sent.
        patient = self.world.scenario.family != "slow" and self.world.lost_lines[role, line.step] < UNHEARD
        if found < size * line.steps and patient:
            self.world.fail("no report is lost", f"line {line.step} counts {found} ranks in {label}, not {size} a step")

    # ---------------------------------------------------------------------------------------------------------- the end

    def ended(self) -> None:
        """The job is over."""
        world = self.world
        if world.ended not in world.scenario.outcomes:
            world.fail("the job ends as its faults allow", f"{world.ended}: {world.message}")
        if world.ended == "failed":
            if not self.trail:
                world.fail("a failed job names the levels it tried", repr(world.message))
            return
        self.final_state()
        self._agree(self.end)
        self.every_shard()
        self.every_line()
        if world.scenario.plan.enabled and self.committed != self.end:
            world.fail("no step is skipped", f"only step {self.committed} is committed")
        if world.scenario.plan.last and (world.disk.newest() == self.end) is self.unkept:
            world.fail("the last state is kept", f"unless the disk is full: {self.unkept}, {world.disk.newest()}")
        world.scenario.expect(world)

    def final_state(self) -> None:
        """Compare the digests of the ranks at the end with those of the undisturbed run."""
        world = self.world
        final = {
            (e.data["role"], e.data["rank"]): e.data["sha256"] for e in world.journal.events if e.kind == "rank_done"
        }
        for key in world.shape.keys:
            stateful = world.job.kinds[key[0]] != "stateless"
            expected = repr(world.after[self.end][key]) if stateful else ""
            if key[0] not in self._unlike and final.get(key) != expected:
                world.fail("the state is the undisturbed run's", f"{key} ends with {final.get(key)}, not {expected}")

    def every_shard(self) -> None:
        """Check that each shard was used once in the end."""
        world = self.world
        used = sorted(shard for key, seen in self.used.items() if key[0] in world.scenario.users for shard in seen)
        sources = sum(n for role, n in world.job.sizes.items() if world.job.kinds[role] == "source")
        if world.scenario.users and used != list(range((self.end + 1) * SHARDS * sources)):
            world.fail("a shard is trained once", f"{used}")

    def every_line(self) -> None:
        """The lines of metrics."""
        if self.lines != list(range(self.end + 1)):
            self.world.fail(
                "a line of metrics is written once",
                f"the job has ended with lines {self.lines}, {self.end} is the last step",
            )


def brief(data: dict[str, Any]) -> str:
    """A record's data in one line."""
    text = str({key: value for key, value in data.items() if key not in ("at", "trail", "sha256")})
    return text if len(text) < 400 else text[:400] + "…"


def _told(name: str, value: Any, exact: bool) -> Any:
    """Return a field of a checkpoint without the positions of ranks and without times, which differ.

    `exact`: ages of bans do not differ, since nobody has set a clock and all clocks are of one speed.
    """
    match name:
        case "ranks":
            return [msgspec.structs.replace(rank, finished=0, durable=0) for rank in value.values()]
        case "recovery" if value is not None:
            return msgspec.structs.replace(value, phase="halting", since=0.0, asked=None, waiting="", begun=0.0)
        case "leaving":
            return {node: leave.notice_s for node, leave in value.items()}
        case "attempts":
            return [msgspec.structs.replace(each, at=0.0, ended_at=0.0) for each in value]
        case "failed_at":
            return len(value)
        case "slices" if not exact:
            return {key: _timeless(each) for key, each in value.items()}
        case "last" | "refused" | "clock":
            return None
    return value


def _timeless(kept: Any) -> Any:
    return msgspec.structs.replace(kept, since=sorted(kept.since)) if isinstance(kept, Banned) else kept
