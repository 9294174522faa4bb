"""Calls a placement strategy through its hooks, as a job does, with the job's time limits."""

from __future__ import annotations

from typing import Any

import msgspec

from rolemesh.api.cluster import ClusterView
from rolemesh.errors import PluginError, RolemeshError
from rolemesh.placement import PlacementPlan, PlacementRequest, Strategy
from rolemesh.plugins.contract import hooks_of
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.plugins.manager import JobPlugins
from rolemesh_testing.subprocess_probe import Subject

__all__ = ["Case", "Planner", "Refused", "plan_there"]


class Refused(AssertionError):
    """The strategy refuses a request. `error` is its exception, which is a valid answer."""

    def __init__(self, error: RolemeshError) -> None:
        super().__init__(f"the strategy refuses: {error}")
        self.error = error


class Case(msgspec.Struct, frozen=True):
    """One call of `place`; or of `replace` if nodes are `lost`. Then `plan` is the plan before the loss."""

    request: PlacementRequest
    cluster: ClusterView
    plan: PlacementPlan = PlacementPlan()
    lost: tuple[str, ...] = ()


class Planner:
    """One instance of the strategy. `renewed` makes another with the same options."""

    def __init__(self, record: PluginRecord, cls: type[Any], options: Any) -> None:
        self._made_of = record, cls, options
        self._plugins = JobPlugins()
        self._plugins.create(record.name, record, cls, options)
        self.name = record.name

    @property
    def replaces(self) -> bool:
        """True if the plugin has the hook `replace`."""
        return "replace" in hooks_of(self._made_of[1])

    @property
    def strategy(self) -> Strategy:
        """The strategy as a job asks it among others."""
        return Strategy(self.name, self.place, self.replace if self.replaces else None)

    @property
    def module(self) -> str:
        """Module of the plugin's class."""
        return str(self._made_of[1].__module__)

    def renewed(self) -> Planner:
        """Return a new instance."""
        return Planner(*self._made_of)

    def place(
        self, request: PlacementRequest, cluster: ClusterView, plan: PlacementPlan | None = None
    ) -> PlacementPlan | None:
        """Return the answer of the hook `place`. Raises `Refused` for a refusal, `PluginError` for other errors."""
        plan = plan or PlacementPlan()
        found: PlacementPlan | None = self._call("place", request=request, cluster=cluster, plan=plan)
        return found

    def replace(self, plan: PlacementPlan, lost: tuple[str, ...], cluster: ClusterView) -> PlacementPlan | None:
        """Return the answer of the hook `replace`; None also if there is no such hook. Raises like `place`."""
        found: PlacementPlan | None = self._call("replace", plan=plan, lost=lost, cluster=cluster)
        return found

    def answer(self, case: Case) -> PlacementPlan | str | None:
        """Return the answer to `case` as text: a plan, a refusal or an exception; None if the strategy passes."""
        try:
            if case.lost:
                return self.replace(case.plan, case.lost, case.cluster)
            return self.place(case.request, case.cluster, case.plan)
        except Refused as refused:
            return f"refused: {refused.error}"
        except PluginError as error:
            return error.what

    def _call(self, hook: str, **arguments: Any) -> Any:
        try:
            return self._plugins.call(self.name, hook, **arguments)
        except PluginError:
            raise
        except RolemeshError as error:
            raise Refused(error) from error


def plan_there(subject: Subject, cases: bytes) -> bytes:
    """Answer all cases in another process, as JSON."""
    planner = Planner(subject.record, *subject.loaded())
    return msgspec.json.encode([planner.answer(case) for case in msgspec.json.decode(cases, type=list[Case])])
