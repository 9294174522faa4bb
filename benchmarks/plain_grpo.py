"""GRPO as one would write it by hand: one process, torch and transformers, everything in line.

``python -m benchmarks.plain_grpo JSON`` prints a JSON line with the rewards of the steps and the evaluations. A group's
prompt is computed once, when its completions are sampled and when they are trained: their keys and values are shared.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the job's roles: spinning threads slow what runs beside them

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

from benchmarks.jobs.short_tasks import advantages, questions, reward

CLIP, CLIP_NORM = 0.2, 1.0


class Loop:
    """Model, tokenizer and optimizer."""

    def __init__(self, given: dict[str, Any]) -> None:
        torch.manual_seed(given["seed"])
        self.given = given
        self.tokenizer = AutoTokenizer.from_pretrained(given["model"])
        self.model = AutoModelForCausalLM.from_pretrained(given["model"], dtype=torch.float32)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=given["lr"], betas=(0.9, 0.95), weight_decay=0.0, fused=True
        )
        self.newline = self.tokenizer.encode("\n")[0]

    def prefix(self, prompts: list[str], copies: int) -> tuple[DynamicCache, torch.Tensor, torch.Tensor]:
        """Return the cache, the mask and the last logits of the prompts, each `copies` times."""
        rows = [self.tokenizer.encode(prompt) for prompt in prompts]
        width = max(map(len, rows))
        ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        cache = DynamicCache(config=self.model.config)
        places = (mask.cumsum(1) - 1).clamp(min=0)
        out = self.model(ids, attention_mask=mask, position_ids=places, past_key_values=cache, logits_to_keep=1)
        cache.batch_repeat_interleave(copies)
        return cache, mask.repeat_interleave(copies, 0), out.logits[:, -1].repeat_interleave(copies, 0)

    @torch.no_grad()
    def generate(self, prompts: list[str], samples: int, *, greedy: bool = False) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the completions' token ids, and a mask of those before and at the line's end."""
        cache, mask, logits = self.prefix(prompts, samples)
        open_rows = torch.ones(len(mask), dtype=torch.long)
        ids, alive = [], []
        for _ in range(self.given["max_tokens"]):
            chosen = logits.argmax(-1) if greedy else torch.multinomial(logits.softmax(-1), 1)[:, 0]
            ids.append(chosen)
            alive.append(open_rows)
            mask = torch.cat([mask, open_rows[:, None]], 1)
            open_rows = open_rows * (chosen != self.newline)
            if not open_rows.any():
                break
            places = mask.sum(1, keepdim=True) - 1
            step = self.model(chosen[:, None], attention_mask=mask, position_ids=places, past_key_values=cache)
            logits = step.logits[:, -1]
        return torch.stack(ids, 1), torch.stack(alive, 1)

    def train(self, prompts: list[str], ids: torch.Tensor, alive: torch.Tensor, gain: torch.Tensor, step: int) -> None:
        """Make one on-policy update."""
        cache, mask, last = self.prefix(prompts, self.given["samples"])
        places = mask.sum(1, keepdim=True) - 1 + alive.cumsum(1)
        out = self.model(
            ids[:, :-1],
            attention_mask=torch.cat([mask, alive[:, :-1]], 1),
            position_ids=places[:, :-1],
            past_key_values=cache,
        )
        logits = torch.cat([last[:, None], out.logits], 1)
        logprobs = torch.gather(logits.log_softmax(-1), 2, ids[..., None])[..., 0]
        ratio = (logprobs - logprobs.detach()).exp()
        clipped = ratio.clamp(1 - CLIP, 1 + CLIP)
        loss = -(torch.minimum(ratio * gain[:, None], clipped * gain[:, None]) * alive).sum() / alive.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP_NORM)
        for group in self.optimizer.param_groups:
            group["lr"] = self.given["lr"] * min(1.0, (step + 1) / self.given["warmup_steps"])
        self.optimizer.step()
        self.optimizer.zero_grad()

    def texts(self, ids: torch.Tensor, alive: torch.Tensor) -> list[str]:
        """Return the completions as text."""
        return [self.tokenizer.decode(row[: int(count)]) for row, count in zip(ids.tolist(), alive.sum(1), strict=True)]


def main(given: dict[str, Any]) -> dict[str, Any]:
    """Return `rewards` by step, `ends` of the steps in seconds since the first one's begin, and `evaluations`: pairs of
    such seconds and an accuracy."""
    torch.set_num_threads(given["threads"])
    loop = Loop(given)
    task, seed, samples = given["task"], given["seed"], given["samples"]
    held = questions(task, "eval", 0, given["held_out"], seed)
    rewards: list[float] = []
    evaluations: list[list[float]] = []
    ends: list[float] = []
    began = time.perf_counter()
    for step in range(given["steps"]):
        rows = questions(task, "train", step * given["prompts"], given["prompts"], seed)
        prompts = [prompt for prompt, _ in rows]
        ids, alive = loop.generate(prompts, samples)
        answers = [answer for _, answer in rows for _ in range(samples)]
        found = [reward(text, answer) for text, answer in zip(loop.texts(ids, alive), answers, strict=True)]
        rewards.append(sum(found) / len(found))
        loop.train(prompts, ids, alive, torch.from_numpy(advantages(found, samples)), step)
        if step % given["every"] == 0:
            said = loop.texts(*loop.generate([prompt for prompt, _ in held], 1, greedy=True))
            right = [reward(text, answer) == 1 for text, (_, answer) in zip(said, held, strict=True)]
            evaluations.append([time.perf_counter() - began, sum(right) / len(right)])
        ends.append(time.perf_counter() - began)
    return {"rewards": rewards, "evaluations": evaluations, "ends": ends}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
