"""The plugins that run in the master: observers, levels, diagnosers, strategies, as the driver resolved them."""

from __future__ import annotations

from typing import Any

from rolemesh.api.cluster import ClusterView
from rolemesh.api.failover import GiveUp
from rolemesh.api.failures import Pass, RecoveryPlan, Verdict
from rolemesh.placement import PlacementPlan, PlacementRequest, Strategy
from rolemesh.plugins.contract import hooks_of
from rolemesh.plugins.manager import JobPlugins
from rolemesh_durable.plugin_calls import asked, created
from rolemesh_durable.protocol.master.ladder import Diagnose, LadderLevel
from rolemesh_durable.protocol.master_config import MasterConfig

__all__ = ["MasterPlugins"]


class MasterPlugins:
    """The plugins that the master's machine and its placement call: levels, diagnosers and strategies."""

    def __init__(self, config: MasterConfig) -> None:
        base = config.job.base
        self._levels = created(config.ladder, base)
        self._diagnosers = created(config.diagnosers, base)
        self._strategies = created(config.strategies, base)

    @property
    def ladder(self) -> tuple[LadderLevel, ...]:
        """Return the levels in the job file's order. Levels of one name are distinguished by their position."""
        names = [self._levels.record(name).name for name in self._levels.names]
        return tuple(
            self._level(instance, name if names.count(name) == 1 else instance)
            for instance, name in zip(self._levels.names, names, strict=True)
        )

    def _level(self, instance: str, name: str) -> LadderLevel:
        level = self._levels.instance(instance)

        def recover(failure: Any, view: Any) -> Any:
            return asked(self._levels, instance, "recover", RecoveryPlan, Pass, GiveUp, failure=failure, view=view)

        return LadderLevel(name, level.scope, level.options.max_attempts, level.options.window_s, recover)

    @property
    def diagnosers(self) -> tuple[Diagnose, ...]:
        """Return the judging levels, then the diagnosers, in the job file's order. `standard` always has a verdict."""
        return tuple(
            self._diagnose(plugins, instance)
            for plugins in (self._levels, self._diagnosers)
            for instance in plugins.names
        )

    @staticmethod
    def _diagnose(plugins: JobPlugins, instance: str) -> Diagnose:
        def diagnose(failure: Any, view: Any) -> Any:
            return asked(plugins, instance, "diagnose", Verdict, failure=failure, view=view)

        return diagnose

    @property
    def strategies(self) -> tuple[Strategy, ...]:
        """Return the placement strategies in the job file's order."""
        return tuple(self._strategy(instance) for instance in self._strategies.names)

    def _strategy(self, instance: str) -> Strategy:
        strategies = self._strategies
        hooks = hooks_of(type(strategies.instance(instance)))

        def place(request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan) -> PlacementPlan | None:
            found: PlacementPlan | None = strategies.call(
                instance, "place", request=request, cluster=cluster, plan=plan
            )
            return found

        def replace(plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> PlacementPlan | None:
            found: PlacementPlan | None = strategies.call(instance, "replace", plan=plan, lost=lost, cluster=cluster)
            return found

        name = strategies.record(instance).name
        return Strategy(name, place, replace if "replace" in hooks else None)
