"""The GRPO job as one would write it without rolemesh: one process, everything in line, the plugins used as libraries.

``python -m benchmarks.inline_grpo STEPS [OVERRIDE…]`` prints the seconds of each step as a JSON list.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

GRPO = Path(__file__).resolve().parents[1] / "examples" / "grpo" / "job.yaml"


def main(steps: int, overrides: list[str]) -> list[float]:
    """Seconds per step: data, generate, score, advantages, train, weights into the engine."""
    from rolemesh import RankContext
    from rolemesh.job.prepared import prepare

    prepared = prepare(GRPO, [f"steps={steps}", "roles.trainer.world_size=1", *overrides])
    spec, chosen = prepared.job.spec, prepared.selection.roles
    scratch = Path(tempfile.mkdtemp(prefix="rolemesh-bench-"))
    for name in chosen:
        os.environ.update(chosen[name].cls.env)
    roles: dict[str, Any] = {}
    contexts = []
    for name, selected in chosen.items():
        ctx = RankContext(
            role=name, seed=spec.seed, steps=steps, base=prepared.job.base,
            cpus=spec.roles[name].resources.cpu, run_dir=scratch,
        )  # fmt: skip
        roles[name] = selected.cls(selected.options)
        roles[name].setup(ctx)
        contexts.append(ctx)
    data, rollout, reward, trainer = (roles[name] for name in ("data", "rollout", "reward", "trainer"))
    seconds = []
    for step in range(steps):
        began = time.perf_counter()
        for ctx in contexts:
            ctx.step = step
        scored = reward.advantages(reward.score(rollout.generate(data.next())))
        trainer.train(scored)
        rollout.load_weights({name: shard.data for name, shard in trainer.weights().items()})
        seconds.append(time.perf_counter() - began)
    for role in roles.values():
        role.teardown()
    scratch.rmdir()
    return seconds


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2:])))
