"""The plugins beside the master: the order of the questions to them, and the answers that they may give."""

import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.unit.engine.extensions.master_shell import FakeShell, running

from rolemesh.api.failover import GiveUp
from rolemesh.api.failures import Failure, JobView, RankView, Verdict
from rolemesh.api.observer import StepMetrics
from rolemesh.job.prepared import prepare
from rolemesh_durable.bundle import plugin_use
from rolemesh_durable.extensions.scaling.shell import Scalers
from rolemesh_durable.master.plugins import MasterPlugins
from rolemesh_durable.protocol.master.ladder import diagnosed, propose
from rolemesh_durable.scalers import Load, Wanted

PLUGINS = """
from rolemesh_durable.scalers import Scaler, Wanted
from rolemesh import FailoverLevel, GiveUp, Verdict, Workload, hookimpl, operator

class Worker(Workload):
    @operator()
    def run(self): ...

class Queue(Scaler):
    def decide(self, load):
        assert load.now > 1.7e9 and load.run_dir, load
        lines = load.metrics
        return Wanted({"a": int(lines[-1].values["queue"])}, f"{len(lines)} lines") if lines else None

class Licence(FailoverLevel):
    scope = "job"

    @hookimpl
    def diagnose(self, failure, view):
        return Verdict("hardware", "the licence server is gone") if "licence" in failure.message else None

    @hookimpl
    def recover(self, failure, view):
        return GiveUp("no licence, no work") if "licence" in failure.message else None
"""
FLOW = "import rolemesh\n@rolemesh.flow\ndef flow(job):\n    job.a.run()\n"


def config_of(folder: Path) -> Any:
    """The plugins of a job with one role, as its master makes them."""
    (folder / "licence_level.py").write_text(PLUGINS)
    (folder / "flow.py").write_text(FLOW)
    (folder / "job.yaml").write_text(
        "name: j\nsteps: 1\nflow: flow.py:flow\n"
        "roles: {a: {use: 'licence_level.py:Worker', world_size: {min: 1, max: 9}}}\n"
        "plugins: {scalers: [{use: 'licence_level.py:Queue'}]}\n"
        "failover: [{use: 'licence_level.py:Licence'}, {use: job}]\ndiagnosers: [{use: standard}]\n"
    )
    selection = prepare(folder / "job.yaml").selection
    uses = {"ladder": selection.failover, "diagnosers": selection.diagnosers, "strategies": ()}
    scalers = {name: plugin_use(each) for (kind, name), each in selection.declared.items() if kind == "scalers"}
    job = SimpleNamespace(base=str(folder), run_dir=str(folder))
    levels = {key: tuple(map(plugin_use, each)) for key, each in uses.items()}
    return SimpleNamespace(job=job, scalers=scalers, **levels)


def test_levels_judge_a_failure_before_the_diagnoser_that_always_has_a_verdict(tmp_path: Path) -> None:
    plugins = MasterPlugins(config_of(tmp_path))
    view = JobView("j", 1, -1, (RankView("a", 0, "n", "failed", 3, 0),), ())
    gone, other = Failure("exception", "a", 0, message="no licence"), Failure("signal", "a", 0, signal=9)
    assert diagnosed(gone, view, plugins.diagnosers) == Verdict("hardware", "the licence server is gone")
    assert diagnosed(other, view, plugins.diagnosers).reason.startswith("killed from outside")  # type: ignore[union-attr]
    ended, brought_back = (propose([each], view, plugins.ladder, plugins.diagnosers) for each in (gone, other))
    assert (ended.plan, ended.trail[-1]) == (None, "  licence_level.py:Licence ends the job: no licence, no work")
    assert brought_back.plan is not None
    assert brought_back.plan.level == "job"
    assert plugins.ladder[0].recover(gone, view) == GiveUp("no licence, no work")


def test_a_scaler_sees_the_time_the_lines_of_its_window_and_the_run_folder(tmp_path: Path) -> None:
    config, now = config_of(tmp_path), time.time()
    plugins = Scalers(FakeShell(running()).shell._replace(config=config))
    lines = [
        StepMetrics(step, 1, now - age, {"queue": size}) for step, (age, size) in enumerate([(60, 9), (5, 3), (1, 4)])
    ]
    load = Load(window_s=30.0, since_resize_s=100.0, roles=(), edges=())
    assert plugins.decide(0, load, lines) == Wanted({"a": 4}, "2 lines")
    assert plugins.decide(0, load, lines[:1]) is None
