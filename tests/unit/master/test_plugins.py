"""The plugins beside the master: in which order they are asked, and what they may answer."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rolemesh.api.failover import GiveUp
from rolemesh.api.failures import Failure, JobView, RankView, Verdict
from rolemesh.job.prepared import prepare
from rolemesh_durable.bundle import plugin_use
from rolemesh_durable.master.plugins import MasterPlugins
from rolemesh_durable.protocol.master.ladder import diagnosed, propose

PLUGINS = """
from rolemesh import FailoverLevel, GiveUp, Verdict, Workload, hookimpl, operator

class Worker(Workload):
    @operator()
    def run(self): ...

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


def master_plugins(folder: Path, **keys: Any) -> MasterPlugins:
    """The plugins of a job with one role, as its master makes them."""
    (folder / "licence_level.py").write_text(PLUGINS)
    (folder / "flow.py").write_text(FLOW)
    (folder / "job.yaml").write_text(
        "name: j\nsteps: 1\nflow: flow.py:flow\nroles: {a: {use: 'licence_level.py:Worker'}}\n"
        "failover: [{use: 'licence_level.py:Licence'}, {use: job}]\ndiagnosers: [{use: standard}]\n"
    )
    selection = prepare(folder / "job.yaml").selection
    uses = {"ladder": selection.failover, "diagnosers": selection.diagnosers, "strategies": (), "scalers": ()}
    bundle = SimpleNamespace(
        config=SimpleNamespace(base=str(folder)), **{key: tuple(map(plugin_use, each)) for key, each in uses.items()}
    )
    return MasterPlugins(bundle)  # type: ignore[arg-type]


def test_levels_judge_a_failure_before_the_diagnoser_that_always_has_a_verdict(tmp_path: Path) -> None:
    plugins = master_plugins(tmp_path)
    view = JobView("j", 1, -1, (RankView("a", 0, "n", "failed", 3, 0),), ())
    gone, other = Failure("exception", "a", 0, message="no licence"), Failure("signal", "a", 0, signal=9)
    assert diagnosed(gone, view, plugins.diagnosers) == Verdict("hardware", "the licence server is gone")
    assert diagnosed(other, view, plugins.diagnosers).reason.startswith("killed from outside")  # type: ignore[union-attr]
    ended, brought_back = (propose([each], view, plugins.ladder, plugins.diagnosers) for each in (gone, other))
    assert (ended.plan, ended.trail[-1]) == (None, "  licence_level.py:Licence ends the job: no licence, no work")
    assert brought_back.plan is not None
    assert brought_back.plan.level == "job"
    assert plugins.ladder[0].recover(gone, view) == GiveUp("no licence, no work")
