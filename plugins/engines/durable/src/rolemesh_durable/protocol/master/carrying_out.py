"""The execution of a recovery plan, phase by phase: see `Recovery` for the phases."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol import messages as m
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.checkpoints import Checkpoints
from rolemesh_durable.protocol.master.context import ASK_AGAIN_S, MasterContext
from rolemesh_durable.protocol.master.progress import Progress
from rolemesh_durable.protocol.master.resume import Resume, resume_points
from rolemesh_durable.protocol.master.state import AgentRecord, JobState, Recovery

__all__ = ["CarryingOut"]

REPORTED_S = 1.0
"""Maximum seconds that a message is under way.

A report that arrives later than this after an event was sent after it.
"""
TOLD_S = 10.0
"""Maximum seconds after which the backend reports a lost node or a silent agent."""

WAITS = (False, "")
GOES_ON = (True, "")


class CarryingOut:
    """Decides whether a phase is over, and why it cannot be."""

    def __init__(self, context: MasterContext, progress: Progress, checkpoints: Checkpoints) -> None:
        self._context, self._progress, self._checkpoints = context, progress, checkpoints

    def step(self, recovery: Recovery) -> tuple[bool, str]:
        """Continue the recovery unless it has to wait.

        Return whether it continued, and why the plan has failed ("": it has not).
        """
        match recovery.phase:
            case "halting":
                return self._halting(recovery)
            case "origin":
                return WAITS
            case "placing":
                return self._placing(recovery)
            case "agents":
                return self._agents(recovery)
            case "launching":
                return self._launching(recovery)

    def answered(self, recovery: Recovery, event: e.PlacesFound | e.OriginFound) -> str:
        """Take the shell's answer: an origin, or places. Return why the plan has failed; "" if it has not."""
        if isinstance(event, e.OriginFound):
            if recovery.phase == "origin":
                self._roll_back(recovery, event)
        elif recovery.phase != "placing" or event.wanted != self._places(recovery):
            pass  # the answer belongs to an earlier plan
        elif event.why and self._unheard(recovery, event.gone):
            pass  # the master asks again later
        elif event.wanted.sizes:
            return event.why or self._change_layout(recovery, event)
        elif event.why:
            return self._no_place(recovery, event.why)
        else:
            state = self._context.state
            lost = {move.role for move in event.moves if state.agents[state.ranks[move.ref].agent].state == "lost"}
            calls = self._unrepeatable(lost)
            self._context.tell(t.RanksMoved(event.moves, event.places, event.plan, event.wanted.resources, calls))
            recovery.asked = None  # the layout may have to change, too
        return ""

    def _unheard(self, recovery: Recovery, gone: Collection[str]) -> bool:
        """Return True if the search left out nodes whose loss the backend has not reported yet.

        The answer to that loss may free places.
        """
        living = (a.place.node for a in self._context.state.agents.values() if a.state in ("starting", "up"))
        return self._context.now <= recovery.since + TOLD_S and not set(gone).isdisjoint(living)

    def _places(self, recovery: Recovery) -> e.Places:
        """Return the request for places: first with the plan's resources, and only then with its numbers of ranks."""
        state = self._context.state
        away, origin = state.away(recovery.plan.avoid), state.origin
        if (given := _given(recovery, self._context)) or not (changes := _changes(recovery, state)):
            return e.Places(away, resources=given)
        return e.Places(away, changes, at_step=origin.step, folder=origin.folder)

    def _enter(self, recovery: Recovery, phase: Any) -> None:
        recovery.phase, recovery.since = phase, self._context.now

    # -------------------------------------------------------------------------------------------- halting and origin

    def _halting(self, recovery: Recovery) -> tuple[bool, str]:
        state = self._context.state
        reported: dict[str, dict[RankRef, m.RankReport]] = {}
        for key in recovery.restart:
            name = state.ranks[key].agent
            if name not in reported and (report := state.agents[name].report) is not None:
                reported[name] = {seen.ref: seen for seen in report.ranks}
            if not self._gone(key, reported.get(name, {}).get(key)):
                return WAITS
        if self._context.now < recovery.not_before:
            return WAITS
        from_disk = recovery.plan.source == "disk"
        self._enter(recovery, "origin" if from_disk else "placing")
        if from_disk:
            self._context.want(e.FindOrigin())
        return GOES_ON

    def _gone(self, key: RankRef, seen: m.RankReport | None) -> bool:
        """Return True if no process of this rank is left and none can start. `seen` is its agent's report of it."""
        rank = self._context.state.ranks[key]
        agent = self._context.state.agents[rank.agent]
        if agent.orphans:
            return False  # the agent's next incarnation reports if it lives
        if agent.state != "up":
            return True  # nothing of it is left, or its next incarnation reports it
        return seen is not None and seen.state == "gone" and seen.generation >= rank.launch.generation

    def _roll_back(self, recovery: Recovery, found: e.OriginFound) -> None:
        context, state = self._context, self._context.state
        for text in found.damaged:
            context.tell(t.SnapshotDamaged(text))
        lost = max((rank.finished for rank in state.ranks.values()), default=-1) - found.step
        calls = self._unrepeatable(context.config.job.graph.roles)
        context.tell(t.RolledBack(found.step, found.folder, max(0, lost), state.timeline + 1, calls))
        self._checkpoints.roll_back()
        self._progress.roll_back(found.step)
        self._enter(recovery, "placing")

    def _unrepeatable(self, callers: Collection[str]) -> tuple[str, ...]:
        """Return the services with `repeatable=False` that these roles call: ``("mail.send",)``."""
        graph = self._context.config.job.graph
        called = dict.fromkeys(callee for caller, callee in graph.callers if caller in callers)
        return tuple(
            f"{role}.{name}" for role in called for name, spec in graph.services[role].items() if not spec.repeatable
        )

    # --------------------------------------------------------------------------------------------- places and agents

    def _placing(self, recovery: Recovery) -> tuple[bool, str]:
        context, state = self._context, self._context.state
        wanted = self._places(recovery)
        misplaced = {key for key in state.ranks if context.node(key) in wanted.away}
        if not misplaced and not wanted.sizes and not wanted.resources:
            self._enter(recovery, "agents")
            return GOES_ON
        if not misplaced <= set(recovery.restart):
            return False, f"ranks on {', '.join(wanted.away)} are not part of the plan"
        if recovery.asked is None or context.now >= recovery.asked + ASK_AGAIN_S:
            recovery.asked = context.now
            context.want(wanted)
        return WAITS

    def _change_layout(self, recovery: Recovery, found: e.PlacesFound) -> str:
        """Change the layout: every rank starts again from the origin, with the plan's numbers of ranks.

        No rank runs now.
        """
        context, state, changes = self._context, self._context.state, found.wanted.sizes
        number = state.layouts + 1
        layout = state.layout.next(number, state.origin.step, state.origin.folder, changes)
        groups = tuple(role for role, size in changes.items() if role in context.config.collective and size > 1)
        context.tell(t.LayoutChanged(number, layout, tuple(changes), groups, found.moves, found.places, found.plan))
        self._enter(recovery, "agents")
        return ""

    def _no_place(self, recovery: Recovery, why: str) -> str:
        context = self._context
        avoid = recovery.plan.avoid
        if leaving := (context.state.leaving.keys() & set(avoid)).difference(context.state.away()):
            # The node is still there, and better than none.
            self._use(recovery, sorted(leaving), why)
            return ""
        if any(make_room() for make_room in context.hooks.make_room):
            recovery.asked = None
            return ""
        if context.now - recovery.since < recovery.plan.wait_s:
            if why != recovery.waiting:
                recovery.waiting = why
                context.tell(t.WaitingForNodes(recovery.number, why, recovery.plan.wait_s))
            return ""
        suspect = sorted(set(avoid).difference(context.state.away()))
        if suspect and context.ladder and recovery.plan.level == context.ladder[-1].name:
            # A node that may be at fault is better than none.
            self._use(recovery, suspect, why)
            return ""
        limit = f"; waited {recovery.plan.wait_s:g} s for one" if recovery.plan.wait_s else ""
        return f"there is no place: {why}{limit}"

    def _use(self, recovery: Recovery, nodes: list[str], missing: str) -> None:
        recovery.asked = None
        self._context.tell(t.SuspectsUsed(recovery.number, nodes, missing))

    def _agents(self, recovery: Recovery) -> tuple[bool, str]:
        context, state, config = self._context, self._context.state, self._context.config
        needed = {state.ranks[key].agent: state.agents[state.ranks[key].agent] for key in recovery.restart}
        missing = [name for name in state.agents if name in needed and needed[name].state in ("wanted", "lost")]
        if missing:
            context.start_agents(missing)
            return GOES_ON
        if any(agent.state != "up" for agent in needed.values()):
            late = context.now > recovery.since + config.start_timeout_s
            return (False, "the agents did not come up in time") if late else WAITS
        known = [agent for agent in state.agents.values() if agent.state == "up"]
        if any(agent.report is None or agent.report.epoch < config.epoch for agent in known):
            return WAITS  # the snapshots that the agents hold are not known yet
        restart = set(recovery.restart)
        for agent in known:
            if any(seen.state != "gone" and seen.ref in restart for seen in _reported(agent)):
                return WAITS  # an incarnation that has come meanwhile has found processes, which are killed first
        points = self._points(recovery)
        if not isinstance(points, str):
            self._launch(recovery, points)
            return GOES_ON
        leaves = not recovery.attempt and recovery.plan.avoid  # the agents that its ranks leave still have snapshots
        elsewhere = config.job.snapshots.replicas or leaves or recovery.plan.resources
        if elsewhere and any(agent.heard < recovery.since + REPORTED_S for agent in known):
            return WAITS  # a copy may have been made that its holder's newest report does not know yet
        return False, points

    # ----------------------------------------------------------------------------------------------------- launching

    def _points(self, recovery: Recovery) -> dict[RankRef, Resume] | str:
        context, state = self._context, self._context.state
        groups = context.groups_of(recovery.restart)
        if recovery.plan.source == "disk":
            restore: Any = "disk" if state.origin.step >= 0 else "none"
            return {key: Resume(state.origin.step, restore) for group in groups for key in group}
        held: dict[RankRef, dict[str, tuple[int, ...]]] = {}
        copies: dict[RankRef, dict[str, tuple[int, ...]]] = {}
        for name, agent in state.agents.items():
            if agent.state != "up" or agent.report is None or agent.report.timeline != state.timeline:
                continue
            for seen in agent.report.ranks:
                known = state.ranks.get(seen.ref)
                if seen.state == "gone" and known is not None:
                    steps = self._own(seen.role, seen.snapshots)
                    if known.agent != name:
                        steps = _left_behind(seen, known.launch, steps) if agent.report.address else ()
                    held.setdefault(seen.ref, {})[name] = steps
            for stored in agent.report.stored:
                found = (copies if stored.copy else held).setdefault(stored.ref, {})
                found[name] = tuple(sorted({*found.get(name, ()), *self._own(stored.role, stored.steps)}))
        agents = {key: rank.agent for key, rank in state.ranks.items()}
        return resume_points(groups, held, copies, agents, state.committed, state.origin)

    def _own(self, role: str, steps: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of a rank's snapshots that belong to the present layout."""
        layout = self._context.state.layout
        return tuple(step for step in steps if not layout.is_void(role, step))

    def _launch(self, recovery: Recovery, points: dict[RankRef, Resume]) -> None:
        context, ranks = self._context, self._context.state.ranks
        started = [
            t.Started(
                *key, ranks[key].launch.generation + 1, ranks[key].agent, point.step, point.restore,
                self._address(point.replica), ranks[key].calls,
            )
            for key, point in points.items()
        ]  # fmt: skip
        context.tell(t.RecoveryLaunched(recovery.number, started, context.now))
        for key, point in points.items():
            self._checkpoints.went_back(key, point.step)
        self._enter(recovery, "launching")

    def _address(self, name: str) -> str:
        """Return the address of the agent that holds a replica; "" if there is none."""
        agent = self._context.state.agents.get(name)
        return agent.report.address if agent is not None and agent.report is not None else ""

    def _launching(self, recovery: Recovery) -> tuple[bool, str]:
        context, state, limit = self._context, self._context.state, self._context.config.start_timeout_s
        late = [key for key in recovery.restart if not state.are([key], "ready", "running", "done")]
        if late:
            if context.now <= recovery.since + limit:
                return WAITS
            return False, f"{', '.join(map(str, late))} did not get ready in {limit:g} s"
        restarted = list(map(str, recovery.restart))
        took = round(context.now - recovery.begun, 3)
        context.tell(t.Recovered(recovery.number, recovery.plan.level, restarted, took, context.now))
        context.deadline = context.now + limit  # those that start for the first time have waited for these
        context.run_if_ready()
        return GOES_ON


def _left_behind(seen: m.RankReport, launch: m.RankLaunch, steps: tuple[int, ...]) -> tuple[int, ...]:
    """Return those snapshots on a former node of a rank that belong to the rank's latest life.

    They do if the rank has had no life since, or one that began with this snapshot.
    """
    if seen.generation == launch.generation:
        return steps
    return tuple(step for step in steps if step == launch.resume and seen.generation == launch.generation - 1)


def _changes(recovery: Recovery, state: JobState) -> dict[str, int]:
    """Return the world sizes of the plan that the job does not have yet."""
    now = state.sizes
    return {role: size for role, size in recovery.plan.resize.items() if now[role] != size}


def _given(recovery: Recovery, context: MasterContext) -> dict[str, dict[str, float]]:
    """Return the plan's resources per rank that roles do not have yet."""
    has = context.config.resources | context.state.resources
    return {role: amounts for role, amounts in recovery.plan.resources.items() if has.get(role) != amounts}


def _reported(agent: AgentRecord) -> tuple[m.RankReport, ...]:
    return agent.report.ranks if agent.report is not None else ()
