"""The load that a rank reports of its engine is that of vLLM's own metrics."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rolemesh_vllm import VLLMWorkload

ENGINE = """
import json, sys
from pathlib import Path
from vllm import SamplingParams
from rolemesh_vllm.engine import Engine
from rolemesh_vllm.options import VLLMOptions

own = {"max_model_len": 64, "kv_cache_memory_bytes": 200_000, "disable_log_stats": False}
engine = Engine(Path(sys.argv[1]), VLLMOptions(model=sys.argv[1], engine=own), seed=0, cpus=1.0)
for number in range(8):
    params = SamplingParams(max_tokens=30, ignore_eos=True, temperature=0.0, logprobs=0)
    engine.requests.add([3 + number] * 30, params, lambda output: None)
steps = []
while len(engine.requests):
    engine.requests.step()
    told = {each.name: each.value for each in engine.llm.get_metrics() if hasattr(each, "value")}
    steps.append((*engine.requests.load.metrics(1), told))
print(json.dumps(steps))
engine.close()
"""


def test_tokens_requests_and_the_cache_are_reported_once(rollout: VLLMWorkload, prompts: Any) -> None:
    rollout.report_load()
    port = rollout.ctx.port
    port.means.clear()
    out = rollout.generate(prompts(2))
    found = {name: total / count for name, (total, count) in port.means.items()}
    assert 0 < found["requests_running"] <= 6
    assert (found["requests_waiting"], port.sums["preemptions"]) == (0.0, 0.0)
    assert 0 < found["kv_cache_usage"] < 1
    assert found["generated_tokens_per_s"] > len(out["completion_ids"].values) / 60
    port.means.clear()
    rollout.report_load()
    assert not port.means


@pytest.mark.more
def test_each_step_has_the_values_of_vllms_metrics(tiny_model: Path) -> None:
    env = os.environ | dict(VLLMWorkload.env) | {"OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, str(tiny_model)], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    steps = json.loads(done.stdout.splitlines()[-1])
    for ours, _, told in steps:
        assert ours["requests_running"] == told["vllm:num_requests_running"]
        assert ours["requests_waiting"] == told["vllm:num_requests_waiting"]
        assert ours["kv_cache_usage"] == pytest.approx(told["vllm:kv_cache_usage_perc"])
    last = steps[-1][2]
    assert sum(preemptions for _, preemptions, _ in steps) == last["vllm:num_preemptions"] > 0
    assert max(ours["requests_waiting"] for ours, _, _ in steps) > 0
    assert last["vllm:generation_tokens"] == 8 * 30
