"""The way of a batch from the operator to the socket, counted in the process of a rank of a real job."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.e2e.harness import Job

MOST = 6
"""Maximum number of packages that call one another, from the loop to the socket."""
ROLES = '''
import json, sys
from pathlib import Path
import numpy as np
import rolemesh


class Make(rolemesh.Workload):
    """Makes small and large values. It profiles its rank's thread from step 5 to 9."""

    def setup(self, ctx):
        self.ctx, self.chains = ctx, {}

    @rolemesh.operator(returns=rolemesh.Split())
    def make(self):
        if self.ctx.step == 5:
            sys.setprofile(self._called)
        if self.ctx.step == 9:
            sys.setprofile(None)
            Path(self.ctx.run_dir, "chains.json").write_text(json.dumps(self.chains))
        return np.ones((4, 1 + 100_000 * (self.ctx.step % 2)))

    def _called(self, frame, event, arg):
        function = f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}"
        packages = []
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            package = name.rpartition(".")[0]
            if name.startswith("rolemesh") and packages[-1:] != [package]:
                packages.append(package)
            if name == "rolemesh_durable.protocol.rank.machine" and frame.f_code.co_name == "call":
                if len(packages) > len(self.chains.get(function, ())):
                    self.chains[function] = packages[::-1]
                return
            frame = frame.f_back

    def snapshot(self):
        return {"ones": np.ones(2)}

    def restore(self, state):
        pass


class Take(rolemesh.Workload):
    @rolemesh.operator(rows=rolemesh.Split())
    def take(self, rows):
        pass
'''
FLOW = "import rolemesh\n\n\n@rolemesh.flow\ndef flow(job):\n    job.taker.take(job.maker.make())\n"
JOB = """
name: batch
flow: flow.py:flow
steps: 12
roles:
  maker: {use: "roles.py:Make"}
  taker: {use: "roles.py:Take"}
failover: [{use: process}]
"""


def test_a_batch_passes_at_most_six_packages_to_the_socket(make_job: Callable[..., Job]) -> None:
    job = make_job("batch")
    for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
        (job.folder / name).write_text(text)
    assert job.run().returncode == 0
    chains = json.loads((job.run_dir / "chains.json").read_text())
    ways = ("OutPort.put", "SendLog.chunk", "Payload.__init__", "SlotPool.acquire", "OutEdgeState.sent")
    assert {way for way in ways if not any(function.endswith(f".{way}") for function in chains)} == set()
    assert {function: chain for function, chain in chains.items() if len(chain) > MOST} == {}
