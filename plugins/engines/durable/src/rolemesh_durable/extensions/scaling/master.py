"""The master's part of scaling: it measures the load, asks scalers about it, and resizes the job by their answers.

An answer counts when a scaler has given it `agree` times in a row, and no resize has happened for `cool_down_s`. Two
answers agree if the same roles grow, and the same shrink; the last one gives the sizes. The master asks no scaler while
the job is resized, ends, or recovers. After a refused resize the pause doubles, until one succeeds.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rolemesh.api.rank_ref import RankRef
from rolemesh_durable.extensions.relayout.resizing import Resizing
from rolemesh_durable.extensions.scaling.lags import lag_of
from rolemesh_durable.protocol.master import events as e
from rolemesh_durable.protocol.master.extension import MasterExtension, MasterParts
from rolemesh_durable.protocol.master.hooks import Handler
from rolemesh_durable.protocol.messages import RankReport
from rolemesh_durable.scalers import EdgeLoad, Load, RoleLoad, ScalerOptions, Wanted

__all__ = ["AskScaler", "ScalerSaid", "Scaling"]

LATE_S = 30.0
"""Seconds after which the status says that a scaler has not answered."""
MOST_DOUBLED = 6
"""Maximum number of times that the pause doubles after refused resizes."""
BUSY = -1
"""The time in operators, in `RankProgress.times`."""


class AskScaler(e.ExtensionEffect, frozen=True):
    """Ask scaler number `index` about the job's load; answer with `ScalerSaid`."""

    index: int
    load: Load


class ScalerSaid(e.ExtensionEvent, frozen=True):
    """The answer to `AskScaler`: the sizes that scaler number `index` wants, or None; or `error` with the reason."""

    index: int
    wanted: Wanted | None = None
    error: str = ""


class _Watch:
    """One scaler: the window of its next question, and its answers."""

    def __init__(self, name: str, options: Mapping[str, Any]) -> None:
        self.name = name
        known = {key: value for key, value in options.items() if key in ScalerOptions.model_fields}
        self.limits = ScalerOptions(**known)
        self.asked_at: float | None = None
        self.began: dict[RankRef, tuple[float, RankReport]] | None = None
        self.grows: dict[str, bool] = {}
        """The roles whose size it wanted to change in its last answers; True to grow."""
        self.agreed = 0
        self.number = 0
        """Number of the pending resize that this scaler caused; 0 if there is none."""
        self.refused = 0
        """Number of its resizes in a row that were refused."""

    @property
    def pause_s(self) -> float:
        """Seconds after a resize in which the master does not ask it."""
        return float(self.limits.cool_down_s * 2.0 ** min(self.refused, MOST_DOUBLED))


class Scaling(MasterExtension):
    """Asks the scalers in turn, and resizes the job by their answers."""

    needs = (Resizing,)

    def __init__(self, parts: MasterParts) -> None:
        super().__init__(parts)
        self._resizing = parts.extension(Resizing)
        self._watches = [_Watch(name, use.options) for name, use in parts.context.config.scalers.items()]
        self._since = 0.0
        """The time of the last resize, or of the job's begin, as far as this master knows."""

    def handlers(self) -> Mapping[type, Handler]:
        """Handle the answers of scalers."""
        return {ScalerSaid: self._answered}

    def turn(self) -> None:
        """Ask the scalers whose window is over."""
        now, state = self._context.now, self._context.state
        if not self._watches:
            return
        if state.phase != "running" or self._resizing.wanted is not None:
            self._since = now
        for index, watch in enumerate(self._watches):
            if not self._is_calm:
                watch.began, watch.agreed = None, 0
                continue
            if watch.number:
                watch.refused = 0 if state.layout.number >= watch.number else watch.refused + 1
                watch.number = 0
            if watch.asked_at is not None:
                if now > watch.asked_at + LATE_S:
                    self._warn(watch, f"it has not answered for {LATE_S:g} s")
            elif watch.began is None:
                watch.began = self._reports() if now >= self._since + watch.pause_s else None
            elif now >= max(at for at, _ in watch.began.values()) + watch.limits.period_s:
                self._ask(index, watch, watch.began)

    @property
    def _is_calm(self) -> bool:
        state = self._context.state
        quiet = state.phase == "running" and not state.busy and not state.finishing
        return quiet and self._resizing.wanted is None and not state.stop.active and state.are(state.ranks, "running")

    def _reports(self) -> dict[RankRef, tuple[float, RankReport]] | None:
        """Return the newest report of each rank with its time; None while a rank has none."""
        state = self._context.state
        found = {
            key: (state.agents[rank.agent].heard, rank.report)
            for key, rank in state.ranks.items()
            if rank.report is not None and rank.report.times
        }
        return found if len(found) == len(state.ranks) else None

    def _ask(self, index: int, watch: _Watch, before: Mapping[RankRef, tuple[float, RankReport]]) -> None:
        watch.began = self._reports()
        if watch.began is None or any(at <= before[key][0] for key, (at, _) in watch.began.items()):
            return
        window_s = sum(at - before[key][0] for key, (at, _) in watch.began.items()) / len(before)
        watch.asked_at = self._context.now
        self._context.want(AskScaler(index, self._load(before, watch.began, window_s)))

    def _load(
        self,
        before: Mapping[RankRef, tuple[float, RankReport]],
        after: Mapping[RankRef, tuple[float, RankReport]],
        window_s: float,
    ) -> Load:
        graph, ranges, sizes = self._context.config.job.graph, self._context.config.ranges, self._context.state.sizes
        spent: dict[tuple[str, int], float] = {}
        for key, (at, report) in after.items():
            since, earlier = before[key]
            for where, seconds in report.times.items():
                share = min(1.0, max(0.0, (seconds - earlier.times.get(where, 0.0)) / (at - since)))
                spent[key[0], where] = spent.get((key[0], where), 0.0) + share / sizes[key[0]]
        roles = []
        for role, size in sizes.items():
            least, most = ranges.get(role, (size, size))
            room = max(size, self._context.room.get(role, size))
            roles.append(RoleLoad(role, size, least, most, room, round(spent.get((role, BUSY), 0.0), 3)))
        edges = []
        for edge in graph.edges:
            src, dst = graph.ops[edge.src].role, graph.ops[edge.dst]
            waiting, blocked = (round(spent.get((role, edge.id), 0.0), 3) for role in (dst.role, src))
            if src != dst.role:
                edges.append(EdgeLoad(src, dst.role, dst.label, edge.param, waiting, blocked, lag_of(graph, edge)))
        return Load(round(window_s, 3), round(self._context.now - self._since, 3), tuple(roles), tuple(edges))

    def _answered(self, said: ScalerSaid) -> None:
        watch, context = self._watches[said.index], self._context
        watch.asked_at = None
        if said.error:
            self._warn(watch, said.error)
            return
        context.warnings.pop(f"scaler {watch.name}", None)
        wanted = self._within(said.wanted.sizes) if said.wanted is not None else {}
        now = context.state.sizes
        grows = {role: size > now[role] for role, size in wanted.items()}
        watch.agreed = watch.agreed + 1 if grows == watch.grows else 1
        watch.grows = grows
        if not wanted or said.wanted is None or not self._is_calm or watch.agreed < watch.limits.agree:
            return
        watch.agreed = 0
        if why := self._resizing.refusal(wanted):
            self._warn(watch, why)
            self._since, watch.refused = context.now, watch.refused + 1
            return
        self._resizing.ask_for(wanted, f"scaler {watch.name}: {said.wanted.reason}")
        watch.number = context.state.layouts

    def _within(self, sizes: Mapping[str, int]) -> dict[str, int]:
        """Return the sizes that differ from the present ones, within the limits of their roles."""
        now, ranges = self._context.state.sizes, self._context.config.ranges
        found = {
            role: max(ranges[role][0], min(size, ranges[role][1])) for role, size in sizes.items() if role in ranges
        }
        return {role: size for role, size in found.items() if size != now[role]}

    def _warn(self, watch: _Watch, text: str) -> None:
        self._context.warnings[f"scaler {watch.name}"] = text
