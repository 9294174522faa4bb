"""Weights that lie on the device, from role to role."""

from __future__ import annotations

import json
from collections.abc import Callable

from tests.e2e.harness import Job

Make = Callable[..., Job]


def sampler(device: str) -> str:
    gpu = 0.5 if device == "cuda" else 0
    options = f'{{cpu: 0.2, gpu: {gpu}}}, options: {{target: "roles.py:Sampler"}}'
    return f"roles.sampler={{use: function, resources: {options}}}"


def test_a_sampler_with_tensors_of_its_own_on_the_device_gets_the_trainers_weights(gpu_job: Make, device: str) -> None:
    job = gpu_job("handed")
    chaos = ("--chaos", "kills=3,seed=2,targets=rank", "--chaos-compare")
    done = job.run("flow=flow.py:handed", sampler(device), *chaos)
    print(done.stdout, done.stderr)
    assert done.returncode == 0
    assert "ended exactly as the undisturbed one" in done.stdout


def test_a_tensor_on_the_device_arrives_on_the_cpu(gpu_job: Make, device: str) -> None:
    job = gpu_job("given")
    gpu = 1 if device == "cuda" else 0
    path = job.folder / "job.yaml"
    head, _, tail = path.read_text().partition("roles:")
    roles = {
        "giver": {"use": "function", "options": {"target": "roles.py:Giver"}, "resources": {"cpu": 0.2, "gpu": gpu}},
        "taker": {"use": "function", "options": {"target": "roles.py:Taker"}, "resources": {"cpu": 0.2}},
    }
    path.write_text(f"{head}roles: {json.dumps(roles)}\n{tail[tail.index('failover:') :]}")
    done = job.run("flow=flow.py:given", "steps=5")
    assert done.returncode == 0, done.stdout + done.stderr
