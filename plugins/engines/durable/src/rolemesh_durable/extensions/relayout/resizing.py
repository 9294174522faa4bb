"""Roles get more or fewer ranks while the job runs.

asked ─▶ there is room ─▶ a step ─▶ all ranks are there, persisted ─▶ the layout changes ─▶ ranks start ─▶ resized

All ranks come to one step, of which there is a persisted snapshot. Then the layout changes: the ranks of the resized
roles start from the snapshot, and the others go on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from rolemesh_durable.extensions.relayout.records import (
    Relayout,
    Resize,
    ResizeAsked,
    Resized,
    ResizeRefused,
    ResizeTried,
    ResizeWanted,
)
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master import transitions as t
from rolemesh_durable.protocol.master.context import ASK_AGAIN_S
from rolemesh_durable.protocol.master.extension import MasterExtension, MasterParts
from rolemesh_durable.protocol.master.hooks import Handler
from rolemesh_durable.protocol.master.sizes import refusal

__all__ = ["RESIZE", "Resizing"]

RESIZE = "resize"
"""The word in place of a level's name when the ranks of resized roles start in the new layout."""
TRIED_S, MOST_TRIED = 10.0, 16
"""Seconds for which the answer to a trial holds, and the maximum number of answers that the master remembers."""


class Resizing(MasterExtension):
    """Carries out one resize at a time."""

    records = (ResizeAsked, Resized, ResizeRefused)
    slice = Relayout
    words: ClassVar[Mapping[str, str]] = {RESIZE: "its role was resized, and it did not start"}

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self._stops, self._checkpoints, self._coordinator = parts.stops, parts.checkpoints, parts.coordinator
        self._room = -1
        """Number of the resize for which there is room, as far as this master knows."""
        self._asked_at = float("-inf")
        self._quiet_since: float | None = None
        self._trials: list[tuple[e.Places, float, str | None]] = []
        """The latest trials, each with its time and its answer; None if the shell has not answered."""

    def handlers(self) -> Mapping[type, Handler]:
        """Handle requests for other sizes, trials, and the answers about places."""
        return {
            ResizeWanted: lambda event: self.ask_for(event.sizes, event.reason),
            ResizeTried: lambda event: self._try(event.sizes),
            e.PlacesFound: self._answered,
        }

    @property
    def wanted(self) -> Resize | None:
        """The pending resize; None if there is none."""
        return self._context.state.slice(Relayout).resize

    def refusal(self, wanted: Mapping[str, int]) -> str:
        """Return why the job cannot have these world sizes now; "" if it can, or is being resized to them."""
        state = self._context.state
        if (resize := self.wanted) is not None:
            return "" if resize.sizes == self._changes(wanted) else "it is being resized already"
        if state.finishing or state.phase not in ("starting", "running"):
            return "the job is about to end"
        return refusal(wanted, self._context.config, state)

    def tried(self, wanted: Mapping[str, int]) -> str | None:
        """Return why the job cannot have these world sizes now; "" if it can; None if nobody has looked for room."""
        changes = self._changes(wanted)
        if (why := self.refusal(wanted)) or not changes:
            return why
        places = self._trial(changes)
        known = [why for tried, at, why in self._trials if tried == places and self._context.now < at + TRIED_S]
        return known[-1] if known else None

    def _try(self, wanted: Mapping[str, int]) -> None:
        """Let the shell look for room for these world sizes, unless it does or has."""
        now, places = self._context.now, self._trial(self._changes(wanted))
        tried = [at for each, at, _ in self._trials if each == places]
        if not tried or now >= tried[-1] + ASK_AGAIN_S:
            self._trials = [*self._trials, (places, now, None)][-MOST_TRIED:]
            self._context.want(places)

    def _trial(self, changes: dict[str, int]) -> e.Places:
        return e.Places(self._context.state.away(), changes, others_stay=True, dry=True)

    def ask_for(self, wanted: Mapping[str, int], reason: str) -> None:
        """Begin to resize roles to these world sizes, unless there is a reason to refuse it."""
        context, state = self._context, self._context.state
        changes = {} if self.refusal(wanted) else self._changes(wanted)
        if self.wanted is None and changes:
            context.tell(ResizeAsked(state.layouts + 1, changes, reason, context.now))
            self._asked_at = float("-inf")

    def _changes(self, wanted: Mapping[str, int]) -> dict[str, int]:
        now = self._context.state.sizes
        return {role: size for role, size in wanted.items() if now.get(role) != size}

    def _answered(self, found: e.PlacesFound) -> None:
        """Take the shell's answer about places and, if there is one already, about the snapshot of the step."""
        state, resize = self._context.state, self.wanted
        if any(tried == found.wanted for tried, _, _ in self._trials):
            others = [trial for trial in self._trials if trial[0] != found.wanted]
            self._trials = [*others, (found.wanted, self._context.now, found.why)]
        if resize is None or found.wanted != self._places(resize) or state.phase != "running" or self._changed(resize):
            return
        self._asked_at = float("-inf")
        if found.why:
            self._refuse(resize, found.why)
        elif found.wanted.dry:
            self._room = resize.number
        elif self._stops.reached() and self._can_take(found):
            self._change(resize, found)

    def turn(self) -> None:
        """Take the next step of the resize, if possible."""
        state, resize = self._context.state, self.wanted
        stop = state.stop
        if resize is not None and self._overtaken(resize):
            self._refuse(resize, "the job has gone back to its last snapshot, to go on with other numbers of ranks")
            return
        if resize is None or state.phase != "running" or stop.then == "move":
            self._quiet_since = None
            return
        if self._changed(resize):
            self._end_if_up(resize)
            return
        given_up = max((a.report.given_up for a in state.agents.values() if a.report is not None), default=-1)
        decided = stop.then == "relayout"
        if state.finishing:
            self._refuse(resize, "the job is about to end")
        elif decided and given_up >= stop.step > state.persisted:
            self._refuse(resize, f"its snapshot of step {stop.step} cannot be written to disk")
        elif not decided and self._room != resize.number:
            self._ask(resize)
        elif not decided:
            self._decide(resize, given_up)
        elif self._stops.arrived():
            self._quiet_since = self._context.now if self._quiet_since is None else self._quiet_since
            if self._stops.reached():
                self._ask(resize)

    def _overtaken(self, resize: Resize) -> bool:
        """Return True if a recovery has changed the layout since the request."""
        return self._context.state.layout.number > resize.number

    def _changed(self, resize: Resize) -> bool:
        return self._context.state.layout.number == resize.number

    def _ask(self, resize: Resize) -> None:
        if self._context.now >= self._asked_at + ASK_AGAIN_S:
            self._asked_at = self._context.now
            self._context.want(self._places(resize))

    def _places(self, resize: Resize) -> e.Places:
        """Return the request to the shell: for room, or once the step is decided for places."""
        state = self._context.state
        if state.stop.then == "relayout":
            return e.Places(state.away(), resize.sizes, at_step=state.stop.step, others_stay=True)
        return self._trial(resize.sizes)

    def _decide(self, resize: Resize, given_up: int) -> None:
        state, newest = self._context.state, self._stops.newest()
        if newest is None:
            return
        # A called rank must know the stop point before its snapshot of that step: other ranks may be behind, and call
        # it.
        known = newest + bool(self._context.config.job.graph.services)
        # Values from before the last change are only in the snapshot of that change, and in no later one.
        step = max(known, given_up + 1, state.layout.step + 1)
        while not self._checkpoints.whole(step):
            step += 1
        if step >= state.end:
            self._refuse(resize, f"the job ends with step {state.end}, and its ranks may run to step {step} by now")
        else:
            self._stops.decide("relayout", step, resize.reason)

    def _can_take(self, found: e.PlacesFound) -> bool:
        """Return True if the places are still valid: an agent may have been lost since."""
        agents = self._context.state.agents
        return all(move.agent not in agents or agents[move.agent].state == "up" for move in found.moves)

    def _change(self, resize: Resize, found: e.PlacesFound) -> None:
        context, state, config = self._context, self._context.state, self._context.config
        layout = state.layout.next(resize.number, state.stop.step, found.folder, resize.sizes)
        groups = tuple(role for role, size in resize.sizes.items() if role in config.collective and size > 1)
        context.tell(
            t.LayoutChanged(resize.number, layout, tuple(resize.sizes), groups, found.moves, found.places, found.plan)
        )
        ranks = [key for key in state.ranks if key[0] in resize.sizes]
        self._coordinator.restart(RESIZE, ranks, resize.reason)

    def _end_if_up(self, resize: Resize) -> None:
        context, state = self._context, self._context.state
        if not state.busy and state.are(state.ranks, "running"):
            since = context.now if self._quiet_since is None else self._quiet_since
            self._quiet_since = None
            took = round(context.now - since, 3)
            context.tell(Resized(resize.number, state.layout.step, resize.sizes, took, context.now))

    def _refuse(self, resize: Resize, why: str) -> None:
        self._quiet_since = None
        self._context.tell(ResizeRefused(resize.number, why, self._context.now))
