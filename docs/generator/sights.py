"""The pictures of docs/what-to-look-at.md, from a job that runs here and loses a process on the way.

``python -m docs.generator.sights`` renews them. They differ from run to run, so no test compares them.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path

from rolemesh_report.style import STYLE

IMAGES = Path(__file__).resolve().parents[1] / "images"
PICTURES = {"Flow": "look-flow.svg", "Where the time went": "look-time.svg", "Lanes": "look-lanes.svg"}
ROLES = """
import time
import numpy as np
from rolemesh import Batch, Split, Workload, operator

class Rollout(Workload):
    @operator(returns=Split())
    def generate(self):
        time.sleep(0.15)
        return Batch({"reward": np.ones(4)})

class Reward(Workload):
    @operator(samples=Split(), returns=Split())
    def score(self, samples):
        time.sleep(0.02)
        return samples

class Trainer(Workload):
    @operator(scored=Split())
    def train(self, scored):
        time.sleep(0.06)
"""
FLOW = """
from rolemesh import flow

@flow
def steps(job):
    job.trainer.train(job.reward.score(job.rollout.generate()))
"""
JOB = """
name: look
flow: flow.py:steps
steps: 40
roles:
  rollout: {use: "roles:Rollout", world_size: 2, resources: {cpu: 0}}
  reward: {use: "roles:Reward", resources: {cpu: 0}}
  trainer: {use: "roles:Trainer", resources: {cpu: 0}}
failover: [{use: process}]
"""


def main() -> None:
    """Run the job and write the pictures."""
    with tempfile.TemporaryDirectory() as folder:
        for name, text in (("roles.py", ROLES), ("flow.py", FLOW), ("job.yaml", JOB)):
            Path(folder, name).write_text(text)
        rolemesh = Path(sys.executable).with_name("rolemesh")
        command = [rolemesh, "run", "job.yaml", "--backend", "local", "--chaos", "kills=1,targets=trainer/0"]
        subprocess.run(command, cwd=folder, check=True)
        report = Path(folder, "runs/look/report.html").read_text()
    for title, name in PICTURES.items():
        found = re.search(rf"<h2>{title}</h2>.*?<svg (.*?</svg>)", report, re.DOTALL)
        assert found, title
        style = f"{STYLE}svg{{background:var(--bg)}}".replace("&", "&amp;")
        head, _, rest = found[1].partition(">")
        svg = f'<svg xmlns="http://www.w3.org/2000/svg" {head}><style>{style}</style>{rest}\n'
        (IMAGES / name).write_text(svg)


if __name__ == "__main__":
    main()
