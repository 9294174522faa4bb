"""The conformance kit: what every plugin of a kind is tested for. A pytest plugin; ``pip install 'rolemesh[test]'``.

A plugin's tests subclass the class of its kind, and get its standard tests::

    from rolemesh import Batch
    from rolemesh_testing import WorkloadConformance


    class TestCounter(WorkloadConformance):
        plugin = "counter"  # as in ``use:``
        options = {"start": 5}  # as in a job file
        bad_options = ({"start": -1},)  # what must be refused

        def step(self, role, step):  # workloads only: what a step asks of the role, with whole values
            role.add(Batch({"number": [step, step + 1]}))

A standard test that does not apply is replaced by one of its name that is marked ``@override("why")``.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rolemesh_testing.backends.conformance import BackendConformance
    from rolemesh_testing.checks.conformance import CheckConformance
    from rolemesh_testing.commands.conformance import CommandConformance
    from rolemesh_testing.conformance import PluginConformance
    from rolemesh_testing.diagnosers.conformance import DiagnoserConformance
    from rolemesh_testing.engines.conformance import EngineConformance
    from rolemesh_testing.environments.conformance import EnvironmentConformance
    from rolemesh_testing.examinations.conformance import ExaminationConformance
    from rolemesh_testing.extensions.conformance import ExtensionConformance
    from rolemesh_testing.failover.conformance import FailoverConformance
    from rolemesh_testing.harnesses.conformance import HarnessConformance
    from rolemesh_testing.kinds.conformance import KindConformance
    from rolemesh_testing.observers.conformance import ObserverConformance
    from rolemesh_testing.overriding import override
    from rolemesh_testing.sandboxes.conformance import SandboxConformance
    from rolemesh_testing.scalers.conformance import ScalerConformance
    from rolemesh_testing.schedulers.conformance import SchedulerConformance
    from rolemesh_testing.sources.conformance import SourceConformance
    from rolemesh_testing.stores.conformance import StoreConformance
    from rolemesh_testing.transports.conformance import TransportConformance
    from rolemesh_testing.workloads.conformance import WorkloadConformance

__all__ = [
    "BackendConformance",
    "CheckConformance",
    "CommandConformance",
    "DiagnoserConformance",
    "EngineConformance",
    "EnvironmentConformance",
    "ExaminationConformance",
    "ExtensionConformance",
    "FailoverConformance",
    "HarnessConformance",
    "KindConformance",
    "ObserverConformance",
    "PluginConformance",
    "SandboxConformance",
    "ScalerConformance",
    "SchedulerConformance",
    "SourceConformance",
    "StoreConformance",
    "TransportConformance",
    "WorkloadConformance",
    "override",
]

_HOME = {
    "BackendConformance": "backends.conformance",
    "CheckConformance": "checks.conformance",
    "CommandConformance": "commands.conformance",
    "DiagnoserConformance": "diagnosers.conformance",
    "EngineConformance": "engines.conformance",
    "EnvironmentConformance": "environments.conformance",
    "ExaminationConformance": "examinations.conformance",
    "ExtensionConformance": "extensions.conformance",
    "FailoverConformance": "failover.conformance",
    "HarnessConformance": "harnesses.conformance",
    "KindConformance": "kinds.conformance",
    "ObserverConformance": "observers.conformance",
    "PluginConformance": "conformance",
    "SandboxConformance": "sandboxes.conformance",
    "ScalerConformance": "scalers.conformance",
    "SchedulerConformance": "schedulers.conformance",
    "SourceConformance": "sources.conformance",
    "StoreConformance": "stores.conformance",
    "TransportConformance": "transports.conformance",
    "WorkloadConformance": "workloads.conformance",
    "override": "overriding",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'rolemesh_testing' has no attribute {name!r}")
    value = getattr(import_module(f"rolemesh_testing.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
