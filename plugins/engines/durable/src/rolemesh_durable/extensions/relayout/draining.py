"""Ranks leave nodes that are going to leave, with notice.

asked ─▶ there is room ─▶ a step ─▶ all ranks are there ─▶ the ranks start elsewhere (a recovery) ─▶ drained
            └─ none: waiting, and asked again

The ranks of the node come to one step with all others, and go on elsewhere from their snapshots, which the new places
fetch from the old ones. No step is lost, none is run twice, and no level is charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.relayout.records import (
    Drain,
    DrainAsked,
    Drained,
    DrainOver,
    DrainWaiting,
    DrainWanted,
    Relayout,
)
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.context import ASK_AGAIN_S
from rolemesh_durable.protocol.master.extension import MasterExtension, MasterParts
from rolemesh_durable.protocol.master.hooks import Handler
from rolemesh_durable.protocol.master.sizes import NO_SNAPSHOTS
from rolemesh_durable.protocol.master.state import AgentRecord
from rolemesh_durable.protocol.messages import NOTICE_S, Report

__all__ = ["DRAIN", "Draining"]

DRAIN = "drain"
"""The word in place of a level's name when ranks leave nodes."""
PATIENCE = 0.5
"""Share of a notice after which the ranks leave from where they are, even in the middle of a step."""
STAYS = 2.0
"""Number of notices after which a node stays that is still there, if only its agent has got a SIGTERM."""


class Draining(MasterExtension):
    """Empties the nodes that ranks must leave: all of them together, or one if there is less room."""

    records = (DrainAsked, DrainWaiting, Drained, DrainOver)
    slice = Relayout
    words: ClassVar[Mapping[str, str]] = {DRAIN: "its node is drained, and it could not be brought elsewhere"}

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self._stops, self._coordinator = parts.stops, parts.coordinator
        self._room: tuple[str, ...] = ()
        """The nodes whose ranks have room elsewhere, as far as this master knows."""
        self._asked: tuple[str, ...] = ()
        self._asked_at = float("-inf")
        self._round = 0

    # ------------------------------------------------------------------------------------------------- what is wanted

    def handlers(self) -> Mapping[type, Handler]:
        """Requests to drain nodes, the backend's news, and the answers about places."""
        return {DrainWanted: self._asked_to, e.NodesLeave: self._leave_soon, e.PlacesFound: self._answered}

    @property
    def _drains(self) -> dict[str, Drain]:
        return self._context.state.slice(Relayout).drains

    def refusal(self, node: str, *, back: bool = False) -> str:
        """Return why a node cannot be drained, or taken `back`; "" if it can, or already is."""
        state, drains = self._context.state, self._drains
        lost = {agent.place.node for agent in state.agents.values() if agent.node_lost}
        known = {*self._context.nodes, *(agent.place.node for agent in state.agents.values())} - lost
        if back:
            return "" if node in drains else f"node {node} is not drained; {', '.join(drains) or 'none'} is"
        if node in drains:
            return ""
        if node not in known:
            return f"the job knows no node {node!r}; there are {', '.join(sorted(known))}"
        if not state.snapshots:
            return NO_SNAPSHOTS
        if state.phase in ("new", "starting"):
            return "the job does not run yet: ask again when it does"
        if state.finishing or state.phase != "running":
            return "the job is about to end"
        if not known - {node} - {each for each, _ in state.barred} - drains.keys():
            return "it is the last node that the job may use: let another one join, or take one back, and ask again"
        return ""

    def _leave_soon(self, event: e.NodesLeave) -> None:
        for node, notice_s in event.nodes.items():
            self._asked_to(DrainWanted(node, "its backend says that it leaves", notice_s))

    def _asked_to(self, event: DrainWanted) -> None:
        if self.refusal(event.node, back=event.back):
            return
        if event.back:
            self._context.tell(DrainOver(event.node, event.reason))
        elif (drain := self._drains.get(event.node)) is None or drain.reason != event.reason:
            self._ask_for(event.node, event.reason, event.notice_s)

    def agent_reported(self, agent: AgentRecord, report: Report) -> None:
        """Drain the node of an agent that has got a SIGTERM."""
        leaving, node, name = report.leaving, agent.place.node, agent.place.agent
        drain = self._drains.get(node)
        if leaving and drain is None:
            self._ask_for(node, f"agent {name} was told to end", NOTICE_S, name)
        elif not leaving and drain is not None and drain.agent == name:
            self._context.tell(DrainOver(node, "its agent is there again"))

    def _ask_for(self, node: str, reason: str, notice_s: float, agent: str = "") -> None:
        self._context.tell(DrainAsked(node, reason, self._context.now, notice_s, agent))
        self._asked_at = float("-inf")

    # -------------------------------------------------------------------------------------------------- what is done

    def _answered(self, found: e.PlacesFound) -> None:
        """Take the shell's answer about room for the ranks."""
        nodes, state = self._asked, self._context.state
        if not nodes or found.wanted != self._places(nodes) or state.busy or not set(nodes) <= self._drains.keys():
            return
        if found.why:
            self._wait(nodes, found.why)
        else:
            self._room = nodes

    def turn(self) -> None:
        """Empty nodes as far as possible now."""
        context, state = self._context, self._context.state
        resizing = state.slice(Relayout).resize is not None and state.stop.then != "move"
        if state.phase != "running" or state.busy or resizing:
            return
        here: dict[str, list[RankRef]] = {node: [] for node, drain in self._drains.items() if not drain.done}
        for key in state.ranks if here else ():
            here.get(context.node(key), []).append(key)
        for node, ranks in list(here.items()):
            if not ranks:
                del here[node]
                self._empty(node)
        self._forget()
        if state.stop.then == "end":
            return
        if not here:
            self._stops.release("move", "no rank has to leave a node any more")
            return
        if not state.snapshots:
            self._wait(tuple(here), NO_SNAPSHOTS)
        elif not self._room or not set(self._room) <= here.keys():
            self._ask(list(here))
        else:
            self._leave(self._room, [key for node in self._room for key in here[node]])

    def _places(self, nodes: tuple[str, ...]) -> e.Places:
        """Return the request to the shell for room for the ranks of these nodes elsewhere."""
        return e.Places(self._context.state.away(nodes), dry=True)

    def _ask(self, nodes: list[str]) -> None:
        """Ask if there is room: for the ranks of all these nodes, or the next time for those of one."""
        self._room = ()
        if self._context.now >= self._asked_at + ASK_AGAIN_S:
            choices = [tuple(nodes), *((node,) for node in nodes if len(nodes) > 1)]
            self._asked, self._asked_at = choices[self._round % len(choices)], self._context.now
            self._round += 1
            self._context.want(self._places(self._asked))

    def _wait(self, nodes: tuple[str, ...], missing: str) -> None:
        self._stops.release("move", missing)
        if any(self._drains[node].waiting != missing for node in nodes):
            self._context.tell(DrainWaiting(nodes, missing))

    def _leave(self, nodes: tuple[str, ...], ranks: list[RankRef]) -> None:
        context, state = self._context, self._context.state
        agents = {state.ranks[key].agent: state.agents[state.ranks[key].agent] for key in ranks}
        serve = all(a.state == "up" and a.report is not None and a.report.address for a in agents.values())
        late = any(state.leaving[node].left_s(context.now, PATIENCE) <= 0 for node in nodes)
        told = state.stop.then == "move" and set(nodes) <= set(state.stop.nodes)
        reasons = "; ".join(self._drains[node].reason for node in nodes)
        if serve and (late or (told and self._stops.reached())):
            self._room = ()
            self._asked_at = float("-inf")
            restart = context.ordered(mate for group in context.groups_of(ranks) for mate in group)
            self._coordinator.restart(DRAIN, restart, f"node {', '.join(nodes)} is drained: {reasons}", avoid=nodes)
        elif (newest := self._stops.newest()) is not None:
            # No rank may run to the step after it yet, so all ranks know of the stop point before they come there.
            if newest + 1 < state.end:
                self._stops.decide("move", newest + 1, reasons, nodes)
        elif not told:  # the step was chosen for other nodes, and ranks may have passed it
            self._stops.release("move", f"the ranks of node {', '.join(nodes)} leave, too")

    def _empty(self, node: str) -> None:
        agents = [agent for agent in self._context.state.agents.values() if agent.place.node == node]
        if agents and all(agent.node_lost for agent in agents):
            self._context.tell(DrainOver(node, "it is gone"))
        else:
            seconds = round(self._context.now - self._context.state.leaving[node].heard, 3)
            self._context.tell(Drained(node, seconds, self._context.now))

    def _forget(self) -> None:
        """Forget drained nodes that are gone, and those that have not gone after all."""
        context, state = self._context, self._context.state
        for node in sorted(node for node, drain in self._drains.items() if drain.done):
            left = all(a.state in ("lost", "stopped") for a in state.agents.values() if a.place.node == node)
            drain, gone = self._drains[node], context.nodes and node not in context.nodes
            if left and gone:
                context.tell(DrainOver(node, "it is gone"))
            elif left and drain.agent and state.leaving[node].left_s(context.now, STAYS) < 0:
                context.tell(DrainOver(node, "it is still there"))

    def make_room(self) -> bool:
        """Take back the drained nodes whose only notice was a SIGTERM of their agents."""
        noticed = [node for node, drain in self._drains.items() if drain.done and drain.agent]
        for node in noticed:
            self._context.tell(DrainOver(node, "it is still there, and there is no other room"))
        return bool(noticed)

    def warnings(self) -> Iterable[str]:
        """Name the nodes that are drained, and the resources that their ranks wait for."""
        found = []
        for node, drain in self._drains.items():
            waiting = drain.waiting if node not in self._context.state.stop.nodes else ""
            waits = f"; its ranks stay for now: {waiting}" if waiting else ""
            found.append(f"node {node[:12]} is {'drained' if drain.done else 'being drained'} ({drain.reason}){waits}")
        return found
