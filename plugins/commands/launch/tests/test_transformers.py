"""A Trainer of Hugging Face's that is killed in the middle of an epoch ends as one that was not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

BIN = Path(sys.executable).parent
TRAIN = """
import hashlib, os, signal, sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from rolemesh_launch.transformers import KeepState

class Killed(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if sys.argv[1:] == ["killed"] and (life, args.process_index, state.global_step) in ((0, 1, 3), (1, 0, 9)):
            os.kill(os.getpid(), signal.SIGKILL)

torch.manual_seed(0)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 50, (40, 12))]
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=16, n_embd=16, n_layer=1, n_head=2))
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=3, use_cpu=True,
    report_to=[], save_strategy="no", logging_steps=2, disable_tqdm=True, lr_scheduler_type="cosine",
)
trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[Killed(), KeepState()])
trainer.train()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print(f"rank {arguments.process_index} ends after {trainer.state.global_step} with {digest}", flush=True)
"""


@pytest.mark.soak
def test_a_trainer_that_is_killed_ends_as_one_that_is_not(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(TRAIN)
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    ends = []
    for command in (("torchrun", "--nproc-per-node", "2"), ("rolemesh", "launch", "--nproc-per-node", "2")):
        killed = ("killed",) if command[0] == "rolemesh" else ()
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:], "train.py", *killed],
            cwd=tmp_path, env=plain, capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        ends.append(set(re.findall(r"rank \d ends after (\d+ with [0-9a-f]{64})", done.stdout)))
    assert "started again 2 times" in done.stderr
    assert len(ends[0]) == 1
    assert ends[1] == ends[0]
