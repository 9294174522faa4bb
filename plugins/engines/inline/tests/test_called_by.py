"""A service sees who calls it, also where calls of several callers are under way at once."""

from pathlib import Path

import rolemesh

ROLES = """
import asyncio

from rolemesh import CalledBy, Broadcast, Workload, operator, service


class Agent(Workload):
    def setup(self, ctx):
        self.ctx = ctx

    @operator()
    async def act(self):
        ctx = self.ctx
        assert ctx.called_by is None
        session = ctx.session("box")
        asked = [ctx.call("box", "who", session=named) for named in (session, "", session)]
        first, second, third = await asyncio.gather(*asked)
        assert first == third == ["agent", ctx.rank, ctx.step, session], first
        assert second == ["agent", ctx.rank, ctx.step, ""], second
        assert await ctx.call("box", "plain") == ["agent", ctx.rank, ctx.step, ""]
        assert ctx.called_by is None
        ctx.count(asked=4)


class Box(Workload):
    def setup(self, ctx):
        self.ctx = ctx

    def told(self):
        by = self.ctx.called_by
        return [by.role, by.rank, by.step, by.session]

    @service(concurrency=4)
    async def who(self):
        before = self.told()
        await asyncio.sleep(0.01)
        assert self.told() == before
        return before

    @service
    def plain(self):
        return self.told()
"""
FLOW = "from rolemesh import flow\n\n\n@flow\ndef called(job):\n    job.agent.act(calls=[job.box])\n"


def test_a_service_sees_role_rank_step_and_session_of_its_caller(tmp_path: Path) -> None:
    (tmp_path / "called_by_roles.py").write_text(ROLES)
    (tmp_path / "called_by_flow.py").write_text(FLOW)
    job = rolemesh.Job("called-by", base=tmp_path, steps=2).flow("called_by_flow.py:called")
    job.role("agent", use="called_by_roles.py:Agent", world_size=2).role("box", use="called_by_roles.py:Box")
    result = job.run(engine="inline", runs_dir=tmp_path / "runs")
    assert result["status"] == "done", result
