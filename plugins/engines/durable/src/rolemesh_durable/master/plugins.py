"""The plugins that live beside the master: observers, levels, diagnosers, strategies, as the driver resolved them."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.api.failover import GiveUp
from rolemesh.api.failures import Pass, RecoveryPlan, Verdict
from rolemesh.api.import_ref import import_paths
from rolemesh.api.observer import StepMetrics
from rolemesh.errors import RolemeshError
from rolemesh.placement import PlacementPlan, PlacementRequest, Strategy
from rolemesh.plugins.contract import hooks_of
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins, misbehaved
from rolemesh_durable.protocol.job import JobBundle, PluginUse
from rolemesh_durable.protocol.master.ladder import Diagnose, LadderLevel
from rolemesh_durable.resolved import load_exact
from rolemesh_durable.scalers import Load, Wanted

__all__ = ["MasterPlugins", "asked", "created", "exact"]

T = TypeVar("T")

MOST_LINES = 1000
"""Maximum number of lines of metrics that a scaler is given with one question, the latest ones."""
MOST_SHOWN = 200
"""Characters of a wrong answer that are shown."""


def exact(use: PluginUse) -> type[Any]:
    """The class that the driver has resolved. Raises `PluginError` if it is another one here."""
    return load_exact(msgspec.convert(use.record, PluginRecord))


def created(uses: Iterable[PluginUse], base: str) -> JobPlugins:
    """Import and create plugins, in order, as ``name#index``; `base` is the job file's folder. Raises `PluginError`."""
    import_paths(base)
    plugins = JobPlugins()
    for index, use in enumerate(uses):
        record = msgspec.convert(use.record, PluginRecord)
        cls = load_exact(record)
        options = cls.Options.model_validate(use.options, context={"base": base})
        plugins.create(f"{record.name}#{index}", record, cls, options)
    return plugins


def asked(plugins: JobPlugins, name: str, hook: str, *kinds: type[T], **arguments: Any) -> T | None:
    """What a hook answers that gives one of `kinds`, or None. Raises `PluginError` for anything else."""
    return _checked(plugins.record(name), f"hook {hook!r}", plugins.call(name, hook, **arguments), *kinds)


def _checked(record: PluginRecord, what: str, value: Any, *kinds: type[T]) -> T | None:
    if value is None:
        return None
    try:
        if not isinstance(value, kinds):
            names = " or ".join([*(kind.__name__ for kind in kinds), "None"])
            raise msgspec.ValidationError(f"expected {names}, got {type(value).__name__}")
        return msgspec.convert(msgspec.to_builtins(value), type(value))
    except (msgspec.ValidationError, TypeError) as error:
        shown = repr(value)
        shown = shown if len(shown) <= MOST_SHOWN else f"{shown[:MOST_SHOWN]} …"
        raise misbehaved(record, f"answered {shown} from its {what}: {error}") from error


class MasterPlugins:
    """What the master's machine asks: the ladder's levels, diagnosers, placement strategies and scalers."""

    def __init__(self, bundle: JobBundle) -> None:
        base, self._run_dir = bundle.config.base, bundle.config.run_dir
        self._levels = created(bundle.ladder, base)
        self._diagnosers = created(bundle.diagnosers, base)
        self._strategies = created(bundle.strategies, base)
        self._scalers = created(bundle.scalers, base)

    def decide(self, index: int, load: Load, lines: Sequence[StepMetrics]) -> Wanted | None:
        """What scaler number `index` makes of the job's load; `lines` are the latest lines of metrics.

        Raises `RolemeshError`.
        """
        now = time.time()
        within = tuple(line for line in lines if line.time >= now - load.window_s)[-MOST_LINES:]
        load = msgspec.structs.replace(load, now=now, metrics=within, run_dir=self._run_dir)
        name = self._scalers.names[index]
        record = self._scalers.record(name)
        try:
            value = self._scalers.instance(name).decide(load)
        except RolemeshError:
            raise
        except Exception as error:
            raise misbehaved(record, f"failed in its decide(): {type(error).__name__}: {error}") from error
        return _checked(record, "decide()", value, Wanted)

    @property
    def ladder(self) -> tuple[LadderLevel, ...]:
        """The levels in the job file's order. Levels of one name are told apart by their position."""
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
        """The levels that judge, then the diagnosers, each in the job file's order: `standard` always has a verdict."""
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
        """The placement strategies in the job file's order."""
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
