"""The GRPO example in TRL's `GRPOTrainer`, from the same job file: ``python -m benchmarks.trl_grpo STEPS GENERATION``.

GENERATION is `transformers`, or `vllm` for vLLM in the same process. Prints a JSON line with the `seconds`, the
`processor` seconds and the mean `reward` of each step. Needs `make judges`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import uuid
from pathlib import Path
from typing import Any

GRPO = Path(__file__).resolve().parents[1] / "examples" / "grpo" / "job.yaml"
MICRO_BATCH = 8
"""Rows that TRL computes at once. All 64 need more than 24 GiB of memory."""


def main(steps: int, generation: str) -> dict[str, list[float]]:
    """Train `steps` steps with the settings of the job file."""
    sys.path.append(str(Path(sys.prefix, "judges")))
    from datasets import Dataset, fingerprint
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from rolemesh import RankContext
    from rolemesh.job.prepared import prepare

    fingerprint.Hasher.hash = classmethod(lambda cls, value: uuid.uuid4().hex)  # dill cannot read pyarrow's classes
    prepared = prepare(GRPO, [f"steps={steps}", "roles.data.options.held_out=2"])
    options = {name: role.options for name, role in prepared.selection.roles.items()}
    data, rollout, trainer = options["data"], options["rollout"], options["trainer"]
    role = prepared.selection.roles["data"].cls(data)
    role.setup(RankContext(seed=prepared.job.spec.seed, steps=steps, base=prepared.job.base))
    batches = [role.next() for _ in range(steps)]

    class Clock(TrainerCallback):
        """Reads both clocks at the end of each step."""

        def __init__(self) -> None:
            self.ends: list[tuple[float, float]] = []
            self.rewards: list[float] = []

        def on_train_begin(self, *args: Any, **named: Any) -> None:
            self.ends.append((time.perf_counter(), time.process_time()))

        def on_step_end(self, *args: Any, **named: Any) -> None:
            self.ends.append((time.perf_counter(), time.process_time()))

        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **named: Any) -> None:
            if logs and "reward" in logs:
                self.rewards.append(logs["reward"])

    rows = data.prompts_per_step * rollout.samples
    given = GRPOTrainer(
        model=str(Path(prepared.job.base, trainer.model)),
        reward_funcs=options["reward"].functions[0].use.resolve(),  # the others have no weight
        train_dataset=Dataset.from_dict(
            {
                "prompt": [chat for batch in batches for chat in batch["messages"]],
                "answer": [row["answer"] for batch in batches for row in batch["row"]],
            }
        ),
        callbacks=[clock := Clock()],
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            max_steps=steps,
            shuffle_dataset=False,
            per_device_train_batch_size=MICRO_BATCH,
            gradient_accumulation_steps=rows // MICRO_BATCH,
            num_generations=rollout.samples,
            max_completion_length=rollout.max_tokens,
            temperature=1.0,
            beta=0.0,
            loss_type="dapo",  # as the job's loss: the mean over all tokens of the step
            learning_rate=trainer.lr,
            adam_beta1=trainer.betas[0],
            adam_beta2=trainer.betas[1],
            weight_decay=trainer.weight_decay,
            max_grad_norm=trainer.clip_norm,
            warmup_steps=trainer.warmup_steps,
            lr_scheduler_type="constant_with_warmup",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
            use_vllm=generation == "vllm",
            **({"vllm_mode": "colocate", "vllm_max_model_length": 512} if generation == "vllm" else {}),
        ),
    )
    given.train()
    spans = [(b[0] - a[0], b[1] - a[1]) for a, b in zip(clock.ends, clock.ends[1:], strict=False)]
    return {"seconds": [s for s, _ in spans], "processor": [p for _, p in spans], "reward": clock.rewards}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), sys.argv[2])))
