"""The master's machine decides how a job begins, recovers and ends, from the events that its master receives.

`MasterMachine.turn` takes events and the present time, and returns effects in order. It never waits and reads no clock.
Events come at any time and in any order. Messages of agents may be lost, late or repeated. The machine measures time
with its own clock (`own_time`), which stands still while the machine has no turn.

    starting ──all ranks ready──▶ running ──all ranks done, all persisted──▶ stopping ──all agents gone──▶ ended
        └──────── a failure without a plan, stop, lost owner ──────────────────▲
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.checkpoints import Checkpoints
from rolemesh_durable.protocol.master.commands import Commands
from rolemesh_durable.protocol.master.context import STOP_MARGIN_S, MasterContext
from rolemesh_durable.protocol.master.coordinator import Coordinator
from rolemesh_durable.protocol.master.extension import MasterExtension, MasterParts
from rolemesh_durable.protocol.master.ladder import Diagnose, Ladder
from rolemesh_durable.protocol.master.own_time import OwnTime
from rolemesh_durable.protocol.master.progress import Progress
from rolemesh_durable.protocol.master.reports import Reports
from rolemesh_durable.protocol.master.stop_points import StopPoints
from rolemesh_durable.protocol.master_config import MasterConfig
from rolemesh_durable.protocol.snapshot_plan import known

__all__ = ["MasterMachine"]

OWNER_START_S = 15.0
"""Minimum number of seconds that a driver may be silent before its first request: it loads the live view first."""


class MasterMachine:
    """Controls one job. `state` is the job as the journal records it, with the newest reports of its agents.

    The parts of the core share a `MasterContext`. `extensions` make the other parts, in the order given; see
    `MasterExtension`.
    """

    def __init__(
        self,
        config: MasterConfig,
        ladder: Ladder = (),
        diagnosers: Sequence[Diagnose] = (),
        extensions: Sequence[Callable[[MasterParts], MasterExtension | None]] = (),
    ) -> None:
        self.config = config
        self._context = context = MasterContext(config, ladder, diagnosers)
        self.state = context.state
        self.progress = Progress(context)
        self._checkpoints = Checkpoints(context, self.progress)
        self._coordinator = Coordinator(context, self.progress, self._checkpoints)
        self._stops = StopPoints(context, self.progress)
        self._reports = Reports(context, self._coordinator, self._checkpoints)
        self._commands = Commands(context, self.progress)
        parts = MasterParts(context, self.progress, self._checkpoints, self._coordinator, self._stops, {})
        for make in extensions:
            if (extension := make(parts)) is not None:
                parts.others[type(extension)] = extension
                context.hooks.add(extension, MasterExtension)
        self.extension = parts.extension
        self._time = OwnTime()
        self._owner_seen, self._owner_known = 0.0, False

    @property
    def now(self) -> float:
        """Time of the latest turn, on the machine's own clock."""
        return self._context.now

    def handle(self, event: e.Event, clock: float) -> list[e.Effect]:
        """Return the effects of one event at time `clock` (seconds of any monotonic clock)."""
        return self.turn((event,), clock)

    def turn(self, events: Iterable[e.Event], clock: float) -> list[e.Effect]:
        """Return the effects of several events, handled in order. The machine decides once, after the last event.

        Thousands of agents may report in one turn.
        """
        context, state = self._context, self.state
        context.now = self._time.turn(clock)
        for event in events:
            if state.phase == "ended":
                # The last master may have died between the journal and the result.
                context.want(*([e.End(state.status, state.message)] if isinstance(event, e.Begin) else []))
                break
            self._handle(event)
        context.run_if_ready()
        parts = *context.hooks.turn, self._coordinator.step, self._stops.turn, self.progress.turn
        for part in parts:
            if state.phase in ("starting", "running"):
                part()
        self._commands.turn()
        return context.taken()

    def _handle(self, event: e.Event) -> None:
        match event:
            case e.Begin():
                self._begin()
            case e.FromAgent(agent, message):
                self._reports.message(agent, message)
            case e.AgentLost(agent, incarnation, why, node_lost):
                self._reports.gone(agent, incarnation, why, node_lost)
            case e.StartFailed(why, agents):
                self._reports.not_started(why, agents)
            case e.PlacesFound() | e.OriginFound():
                self._coordinator.answered(event)
            case e.NodesSeen(nodes, room):
                self._context.nodes, self._context.room = nodes, room
            case e.CheckpointCommitted(step, error):
                self._checkpoints.completed(step, error)
            case e.Published():
                self.progress.written(event)
            case e.StopAsked(reason):
                self._context.stop("interrupted", reason, self.config.stop_grace_s)
            case e.FinishAsked(reason):
                self._context.finish(reason)
            case e.OwnerSeen():
                self._owner_seen, self._owner_known = self.now, True
            case e.Disown():
                self._context.tell(t.JobDetached())
            case e.Tick():
                self._tick()
        self._context.hooks.handle(event)

    def _begin(self) -> None:
        context, state, config, now = self._context, self.state, self.config, self.now
        self._owner_seen = now
        for begin in context.hooks.begin:
            begin()
        if state.phase != "new":
            self._take_over()
            return
        context.deadline = now + config.start_timeout_s
        origin = (config.origin, config.origin_step) if config.origin else ()
        job, agents, ranks = config.job, list(state.agents), len(state.ranks)
        context.tell(t.JobStarted(job.name, known(job.steps), agents, ranks, now, config.clock, *origin))
        context.start_agents(agents)

    def _take_over(self) -> None:
        """Find the agents, and continue what the previous master had begun."""
        context, state, now = self._context, self.state, self.now
        context.tell(t.MasterRecovered(self.config.epoch, state.phase, now, self.config.clock))
        context.deadline = now + (STOP_MARGIN_S if state.phase == "stopping" else self.config.start_timeout_s)
        for agent in state.agents.values():
            agent.heard = now
        self._reports.take_over()
        known = [agent for agent in state.agents.values() if agent.state in ("starting", "up")]
        context.want(e.Attach(tuple(e.Incarnation(agent.place, agent.incarnation) for agent in known)))
        if state.phase == "stopping":
            context.end_if_gone()
            return
        if state.snapshots:
            context.want(e.FindCheckpoints(state.persisted))
        if wanted := [name for name, agent in state.agents.items() if agent.state == "wanted"]:
            context.start_agents(wanted)

    def _tick(self) -> None:
        context, state, now, config = self._context, self.state, self.now, self.config
        lease = max(config.job.lease_s, 0.0 if self._owner_known else OWNER_START_S)
        if state.phase == "stopping":
            if now >= context.deadline:
                context.end("agents did not confirm their end in time")
        elif state.owned and now > self._owner_seen + lease:
            context.stop("interrupted", f"its driver has not been heard of for {lease:g} s", 1.0)
        elif state.phase == "starting" and state.recovery is None and now >= context.deadline:
            late = ", ".join(f"{ref} ({r.state})" for ref, r in state.ranks.items() if r.state not in ("ready", "done"))
            context.stop("failed", f"not ready within start_timeout_s = {config.start_timeout_s:g} s: {late}", 0.0)
        else:
            self._reports.silent()
            for tick in context.hooks.tick:
                tick()

    # ---------------------------------------------------------------------------------------------------------- view

    @property
    def troubles(self) -> tuple[str, ...]:
        """Lasting problems with snapshots."""
        return tuple(f"{who}: {text}" if who else text for who, text in self._context.warnings.items())

    def warnings(self) -> tuple[str, ...]:
        """The delay of a recovery, the warnings of extensions, and lasting problems with snapshots."""
        extensions = (text for warnings in self._context.hooks.warnings for text in warnings())
        delay = [self._coordinator.waiting] if self._coordinator.waiting else []
        return (*delay, *extensions, *self.troubles)
