"""A service that breaks its contract ends the job at once, and the error names the service's role."""

from pathlib import Path

import pytest

import rolemesh

ROLES = """
from rolemesh import PluginError, Workload, operator, service


class Agent(Workload):
    def setup(self, ctx):
        self.ctx = ctx

    @operator()
    async def act(self):
        await self.ctx.call("box", "deal")


class Box(Workload):
    @service
    def deal(self):
        raise PluginError("Deck.deal returned 7, which is no card", kind="misbehaved", remedy="return a card")
"""
FLOW = "from rolemesh import flow\n\n\n@flow\ndef dealt(job):\n    job.agent.act(calls=[job.box])\n"


@pytest.mark.parametrize("engine", ["inline", "durable"])
def test_a_broken_contract_of_a_service_ends_the_job_at_once_and_names_the_service(tmp_path: Path, engine: str) -> None:
    (tmp_path / "dealing_roles.py").write_text(ROLES)
    (tmp_path / "dealing_flow.py").write_text(FLOW)
    job = rolemesh.Job("dealing", base=tmp_path, steps=1).flow("dealing_flow.py:dealt")
    job.role("agent", use="dealing_roles.py:Agent").role("box", use="dealing_roles.py:Box")
    result = job.failover("process").run(engine=engine, runs_dir=tmp_path / "runs")
    failure = result["failure"]
    assert failure["cause"] == "contract", failure
    assert "box/0.deal has broken its contract: Deck.deal returned 7, which is no card" in failure["message"], failure
    assert "return a card" in failure["message"], failure
    assert not result.get("recoveries"), result
