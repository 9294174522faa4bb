"""PPO as four roles is PPO as one process: the flow and the role of examples/ppo, with a tiny model."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from tests.e2e import ppo_roles as roles
from tests.e2e.harness import Job
from tests.e2e.ladder import launched, of_kind, pids

ROOT = Path(__file__).parents[2]
TINY = ROOT / "examples/sft/tiny-llama"
KL, LAM, CLIP, VALUE_CLIP, LR = 0.1, 0.95, 0.2, 0.2, 1e-2


def job_file(job: Job, steps: int) -> None:
    """The job of examples/ppo with other ends."""
    tiny = {"model": str(TINY), "init": "random", "init_seed": 3, "lr": LR, "warmup_steps": 0, "mini_batches": 2}
    function = {name: {"use": "function", "options": {"target": f"ppo_roles.py:{name.title()}"}} for name in
                ("data", "rollout", "reward")}  # fmt: skip
    function["rollout"]["options"]["kwargs"] = {"model": str(TINY)}
    trained = {
        "actor": {"world_size": 2, "options": {"loss": "rolemesh_training.losses:ppo", "loss_options": {"clip": CLIP}}},
        "critic": {"options": {"task": "value", "loss": "rolemesh_training.losses:value",
                               "loss_options": {"clip": VALUE_CLIP}}},
        "reference": {"options": {"frozen": True, "mini_batches": 1}},
    }  # fmt: skip
    for role in trained.values():
        role |= {"use": "fsdp", "options": tiny | role["options"]}
    advantages = {"use": "advantages.py:Advantages", "options": {"kl_coef": KL, "lam": LAM}}
    every = {"resources": {"cpu": 0.1}}
    found = {**function, **trained, "advantages": advantages}
    spec = {
        "name": job.name, "flow": "flow.py:ppo", "steps": steps, "seed": 0,
        "engine": {"options": {"stop_grace_s": 2}},
        "roles": {name: role | every for name, role in found.items()},
    }  # fmt: skip
    (job.folder / "job.yaml").write_text(yaml.safe_dump(spec, sort_keys=False))
    for file in ("flow.py", "advantages.py"):
        shutil.copy(ROOT / "examples/ppo" / file, job.folder / file)
    shutil.copy(Path(roles.__file__), job.folder / "ppo_roles.py")


class OneProcess:
    """The same in plain torch: no role, no edge, no shard, no packing."""

    def __init__(self) -> None:
        self.actor, self.reference = roles.tiny(str(TINY)), roles.tiny(str(TINY))
        self.critic = roles.tiny(str(TINY), task="value")
        both = {"lr": LR, "betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.0}
        self.steps = [torch.optim.AdamW(model.parameters(), **both) for model in (self.actor, self.critic)]  # type: ignore[arg-type]

    def logprobs(self, model: Any, prompt: Any, completion: Any) -> torch.Tensor:
        ids = torch.tensor([[*map(int, prompt), *map(int, completion)]])
        logits = model(input_ids=ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        return logits.gather(-1, torch.tensor(completion, dtype=torch.int64)[:, None])[:, 0]

    def values(self, prompt: Any, completion: Any) -> torch.Tensor:
        ids = torch.tensor([[*map(int, prompt), *map(int, completion)]])
        return self.critic(input_ids=ids).logits[0, len(prompt) - 1 : -1, 0]

    def step(self, step: int) -> tuple[float, float]:
        """The losses of the actor and of the critic."""
        asked = roles.prompts(step)
        answers, old = roles.sample(self.actor, asked, step)
        with torch.no_grad():
            kept = [self.logprobs(self.reference, p, c).numpy() for p, c in zip(asked, answers, strict=True)]
            values = [self.values(p, c).numpy() for p, c in zip(asked, answers, strict=True)]
        advantages, returns = [], []
        for row, answer in enumerate(answers):
            rewards = -KL * (old[row] - kept[row]).astype(np.float64)
            rewards[-1] += roles.score(answer)
            after = np.append(values[row][1:], 0.0)
            delta = rewards + after - values[row]
            found = [sum(LAM**k * delta[at + k] for k in range(len(delta) - at)) for at in range(len(delta))]
            advantages.append(np.array(found))
            returns.append(np.array(found) + values[row])
        flat = np.concatenate(advantages)
        advantages = [(each - flat.mean()) / (flat.std() + 1e-8) for each in advantages]
        losses: list[list[float]] = [[], []]
        half = roles.ROWS // 4
        for part in range(2):  # the actor's ranks have 4 rows each, the critic 8
            rows = [r for rank in range(2) for r in range(4 * rank + half * part, 4 * rank + half * (part + 1))]
            totals = []
            for row in rows:
                ratio = (self.logprobs(self.actor, asked[row], answers[row]) - torch.tensor(old[row])).exp()
                a = torch.tensor(advantages[row], dtype=torch.float32)
                totals.append(-torch.minimum(ratio * a, ratio.clamp(1 - CLIP, 1 + CLIP) * a))
            losses[0].append(self.learn(0, self.actor, torch.cat(totals).mean()))
        for part in range(2):
            totals = []
            for row in range(4 * part, 4 * (part + 1)):
                before, wanted = torch.tensor(values[row]), torch.tensor(returns[row], dtype=torch.float32)
                new = self.values(asked[row], answers[row])
                near = before + (new - before).clamp(-VALUE_CLIP, VALUE_CLIP)
                totals.append(0.5 * torch.maximum((new - wanted) ** 2, (near - wanted) ** 2))
            losses[1].append(self.learn(1, self.critic, torch.cat(totals).mean()))
        return float(np.mean(losses[0])), float(np.mean(losses[1]))

    def learn(self, which: int, model: Any, loss: torch.Tensor) -> float:
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        self.steps[which].step()
        self.steps[which].zero_grad()
        return float(loss.detach())


@pytest.mark.soak
def test_the_first_steps_are_those_of_one_process(make_job: Callable[..., Job]) -> None:
    job = make_job("ppo")
    job_file(job, steps=3)
    done = job.cli("run", "job.yaml", "--backend", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    alone = OneProcess()
    for line in job.metrics():
        actor, critic = alone.step(line["step"])
        found = line["operators"]["actor.train"]["loss"], line["operators"]["critic.train"]["loss"]
        assert found == pytest.approx((actor, critic), abs=1e-5), line["step"]


@pytest.mark.soak
def test_the_critic_dies_and_nobody_else_starts_again(make_job: Callable[..., Job]) -> None:
    undisturbed, job = make_job("undisturbed"), make_job("killed")
    for each in (undisturbed, job):
        job_file(each, steps=200)
    ladder = ("failover=[{use: process}]",)
    assert undisturbed.cli("run", "job.yaml", "--backend", "local", *ladder).returncode == 0
    process = job.start(*ladder)
    os.kill(pids(job.running(20))["critic/0"], signal.SIGKILL)
    out, _ = process.communicate()
    assert process.returncode == 0, out
    assert launched(job) == [["critic/0"]]
    assert len(of_kind(job, "recovered")) == 1
    assert job.result()["state_sha256"] == undisturbed.result()["state_sha256"]
