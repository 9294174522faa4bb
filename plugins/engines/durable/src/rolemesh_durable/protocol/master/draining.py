"""Nodes that leave with notice: their ranks come to one step with all others, and go on elsewhere from their snapshots,
which the new places fetch from the old ones. No step is lost, none is run twice, and no failure is charged.

asked ─▶ there is room ─▶ a step ─▶ everybody is there ─▶ the ranks start elsewhere (a recovery) ─▶ drained
            └─ none: waiting, and asked again
"""

from __future__ import annotations

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.context import MasterContext
from rolemesh_durable.protocol.master.coordinator import Coordinator
from rolemesh_durable.protocol.master.sizes import NO_SNAPSHOTS
from rolemesh_durable.protocol.master.state import AgentRecord, Drain
from rolemesh_durable.protocol.master.stop_points import StopPoints
from rolemesh_durable.protocol.messages import NOTICE_S

__all__ = ["Draining"]

PATIENCE = 0.5
"""Of a notice: after this share of it the ranks leave from where they are, even if that is in the middle of a step."""
STAYS = 2.0
"""A node of which an agent has got a SIGTERM, and that is there after so many notices, is not meant to go."""
ASK_AGAIN_S = 5.0
"""After so long room is looked for again."""


class Draining:
    """Sees to the nodes that are to be without ranks: to all of them together, or to one where there is less room."""

    def __init__(self, context: MasterContext, stops: StopPoints, coordinator: Coordinator) -> None:
        self._context, self._stops, self._coordinator = context, stops, coordinator
        self._room: tuple[str, ...] = ()
        """The nodes whose ranks have room elsewhere, as far as this master knows."""
        self._asked: tuple[str, ...] = ()
        self._asked_at = float("-inf")
        self._round = 0

    # ------------------------------------------------------------------------------------------------- what is wanted

    def refusal(self, node: str, *, back: bool = False) -> str:
        """Why a node cannot be drained, or taken `back`; "" if it can, or is."""
        state, drains = self._context.state, self._context.state.asked.drains
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
        if state.asked.finish or state.phase != "running":
            return "the job is about to end"
        if not known - {node} - {each for each, _ in state.barred} - drains.keys():
            return "it is the last node that the job may use: let another one join, or take one back, and ask again"
        return ""

    def wanted(self, event: e.DrainWanted) -> None:
        """Somebody wants a node to be without ranks, or has it back."""
        if self.refusal(event.node, back=event.back):
            return
        if event.back:
            self._context.tell(t.DrainOver(event.node, event.reason))
        elif (drain := self._context.state.asked.drains.get(event.node)) is None or drain.reason != event.reason:
            self._ask_for(event.node, event.reason, event.notice_s)

    def told(self, agent: AgentRecord, *, leaving: bool) -> None:
        """An agent has reported whether it has got a SIGTERM: its node leaves then."""
        node, name = agent.place.node, agent.place.agent
        drain = self._context.state.asked.drains.get(node)
        if leaving and drain is None:
            self._ask_for(node, f"agent {name} was told to end", NOTICE_S, name)
        elif not leaving and drain is not None and drain.agent == name:
            self._context.tell(t.DrainOver(node, "its agent is there again"))

    def _ask_for(self, node: str, reason: str, notice_s: float, agent: str = "") -> None:
        self._context.tell(t.DrainAsked(node, reason, self._context.now, notice_s, agent))
        self._asked_at = float("-inf")

    # -------------------------------------------------------------------------------------------------- what is done

    def answered(self, found: e.PlacesFound) -> None:
        """The shell has looked whether there is room."""
        nodes, state = self._asked, self._context.state
        if (
            not nodes
            or found.wanted != self._places(nodes)
            or state.busy
            or not set(nodes) <= state.asked.drains.keys()
        ):
            return
        if found.why:
            self._wait(nodes, found.why)
        else:
            self._room = nodes

    def turn(self) -> None:
        """Whatever can be done now."""
        context, state = self._context, self._context.state
        resizing = state.asked.resize is not None and state.stop.then != "move"
        if state.phase != "running" or state.busy or resizing:
            return
        here: dict[str, list[RankRef]] = {node: [] for node, drain in state.asked.drains.items() if not drain.done}
        for key in state.ranks if here else ():
            here.get(context.node(key), []).append(key)
        for node, ranks in list(here.items()):
            if not ranks:
                del here[node]
                self._empty(node, state.asked.drains[node])
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
        """What is asked: whether there is room elsewhere for the ranks of these nodes."""
        return e.Places(self._context.state.away(nodes), dry=True)

    def _ask(self, nodes: list[str]) -> None:
        """Whether there is room: for all of them, or, the next time, for one."""
        self._room = ()
        if self._context.now >= self._asked_at + ASK_AGAIN_S:
            choices = [tuple(nodes), *((node,) for node in nodes if len(nodes) > 1)]
            self._asked, self._asked_at = choices[self._round % len(choices)], self._context.now
            self._round += 1
            self._context.want(self._places(self._asked))

    def _wait(self, nodes: tuple[str, ...], missing: str) -> None:
        state = self._context.state
        self._stops.release("move", missing)
        if any(state.asked.drains[node].waiting != missing for node in nodes):
            self._context.tell(t.DrainWaiting(nodes, missing))

    def _leave(self, nodes: tuple[str, ...], ranks: list[RankRef]) -> None:
        context, state = self._context, self._context.state
        agents = {state.ranks[key].agent: state.agents[state.ranks[key].agent] for key in ranks}
        serve = all(a.state == "up" and a.report is not None and a.report.address for a in agents.values())
        late = any(_left_s(state.asked.drains[node], context.now) <= 0 for node in nodes)
        told = state.stop.then == "move" and set(nodes) <= set(state.stop.nodes)
        reasons = "; ".join(state.asked.drains[node].reason for node in nodes)
        if serve and (late or (told and self._stops.reached())):
            self._room = ()
            self._asked_at = float("-inf")
            self._coordinator.drains(nodes, ranks, f"node {', '.join(nodes)} is drained: {reasons}")
        elif (newest := self._stops.newest()) is not None:
            # No rank may run to the step after it yet, so all know before they come there what happens there.
            if newest + 1 < state.end:
                self._stops.decide("move", newest + 1, reasons, nodes)
        elif not told:  # that step was chosen for other nodes, and some ranks may have passed it by then
            self._stops.release("move", f"the ranks of node {', '.join(nodes)} leave, too")

    def _empty(self, node: str, drain: Drain) -> None:
        agents = [agent for agent in self._context.state.agents.values() if agent.place.node == node]
        if agents and all(agent.node_lost for agent in agents):
            self._context.tell(t.DrainOver(node, "it is gone"))
        else:
            seconds = round(self._context.now - drain.begun, 3)
            self._context.tell(t.Drained(node, seconds, self._context.now))

    def _forget(self) -> None:
        """Nodes that are gone, which come and go while the job lives for long, and those that have not gone."""
        context, state = self._context, self._context.state
        for node in sorted(state.drained):
            left = all(a.state in ("lost", "stopped") for a in state.agents.values() if a.place.node == node)
            drain, gone = state.asked.drains[node], context.nodes and node not in context.nodes
            if left and gone:
                context.tell(t.DrainOver(node, "it is gone"))
            elif left and drain.agent and context.now > drain.begun + STAYS * drain.notice_s:
                context.tell(t.DrainOver(node, "it is still there"))

    def warnings(self) -> list[str]:
        """What is drained, and what that waits for."""
        found = []
        for node, drain in self._context.state.asked.drains.items():
            waits = f"; its ranks stay for now: {drain.waiting}" if drain.waiting else ""
            found.append(f"node {node[:12]} is {'drained' if drain.done else 'being drained'} ({drain.reason}){waits}")
        return found


def _left_s(drain: Drain, now: float) -> float:
    return drain.begun + PATIENCE * drain.notice_s - now if drain.notice_s else float("inf")
