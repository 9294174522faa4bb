"""A Trainer of Hugging Face's that is killed in the middle of an epoch ends as one that was not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.torchrun import judged

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
    calm = judged("--nproc-per-node", "2", "train.py", cwd=tmp_path, env=plain, timeout_s=200)
    done = subprocess.run(
        [str(BIN / "rolemesh"), "launch", "--nproc-per-node", "2", "train.py", "killed"],
        cwd=tmp_path, env=plain, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "started again 2 times" in done.stderr
    ends = [set(re.findall(r"rank \d ends after (\d+ with [0-9a-f]{64})", out)) for out in (calm, done.stdout)]
    assert len(ends[0]) == 1
    assert ends[1] == ends[0]


KINDS = """
import hashlib, os, signal, sys
import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from rolemesh_launch.transformers import KeepState

kind, *kills = sys.argv[1:]

class Killed(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        life = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
        if life < len(kills) and state.global_step == int(kills[life]):
            os.kill(os.getpid(), signal.SIGKILL)

torch.manual_seed(0)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 50, (10, 8))]

class Stream(IterableDataset):
    def __iter__(self):
        yield from rows
        while kind == "endless":
            yield from rows

class Noisy(Dataset):
    def __len__(self):
        return 10

    def __getitem__(self, index):
        row = torch.where(torch.rand(8) < 0.3, torch.randint(0, 50, (8,)), rows[index]["input_ids"])
        return {"input_ids": row, "labels": row}

data = {"stream": Stream(), "endless": Stream(), "workers": Noisy()}.get(kind, rows)
more = {
    "stream": {"max_steps": 13, "gradient_accumulation_steps": 2}, "endless": {"max_steps": 13},
    "workers": {"dataloader_num_workers": 2}, "accumulation": {"gradient_accumulation_steps": 2},
    "lengths": {"train_sampling_strategy": "group_by_length"}, "evaluation": {"eval_strategy": "epoch"},
}.get(kind, {})
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2))
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, num_train_epochs=3, use_cpu=True, report_to=[], save_strategy="no",
    logging_steps=2, disable_tqdm=True, **more,
)
trainer = Trainer(model, arguments, train_dataset=data, eval_dataset=rows, callbacks=[Killed(), KeepState()])
trainer.train()
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print("ends after", trainer.state.global_step, digest, [line.get("loss") for line in trainer.state.log_history])
"""


@pytest.mark.soak
@pytest.mark.parametrize(
    ("kind", "kills"),
    [
        ("plain", ["5", "6", "10"]),
        ("accumulation", ["3", "4", "8"]),
        ("stream", ["3", "4", "7"]),
        ("endless", ["3", "4", "8"]),
        ("workers", ["4", "6", "12"]),
        ("lengths", ["4", "6", "12"]),
        ("evaluation", ["5", "6", "14"]),
    ],
)
def test_a_trainer_killed_at_any_moment_has_the_weights_and_losses_of_an_undisturbed_run(
    tmp_path: Path, kind: str, kills: list[str]
) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(KINDS)
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    ends = []
    for command in (("torchrun",), ("rolemesh", "launch", "--set", "engine.options.snapshots.every=0s")):
        killed = kills if command[0] == "rolemesh" else []
        done = subprocess.run(
            [str(BIN / command[0]), *command[1:], "--max-restarts", "3", "train.py", kind, *killed],
            cwd=tmp_path, env=plain, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        ends.append(re.findall(r"ends after .*", done.stdout))
    assert "started again 3 times" in done.stderr
    assert ends[1] == ends[0]


OWN = """
import hashlib, os, signal, sys
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from rolemesh_launch.transformers import KeepState

checkpoint, kill = sys.argv[1], int(sys.argv[2])

class Killed(TrainerCallback):
    def on_step_begin(self, args, state, control, **_):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and state.global_step == kill:
            os.kill(os.getpid(), signal.SIGKILL)

torch.manual_seed(0)
rows = [{"input_ids": row, "labels": row} for row in torch.randint(0, 50, (10, 8))]
model = GPT2LMHeadModel(GPT2Config(vocab_size=50, n_positions=8, n_embd=16, n_layer=1, n_head=2))
arguments = TrainingArguments(
    sys.argv[3], per_device_train_batch_size=2, num_train_epochs=3, use_cpu=True, report_to=[], save_strategy="steps",
    save_steps=1, logging_steps=2, disable_tqdm=True,
)
trainer = Trainer(model, arguments, train_dataset=rows, callbacks=[Killed(), KeepState()])
trainer.train(resume_from_checkpoint=checkpoint if os.path.exists(checkpoint) else None)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print("ends after", trainer.state.global_step, digest, [line.get("loss") for line in trainer.state.log_history])
"""


@pytest.mark.soak
def test_a_trainer_that_also_resumes_from_its_own_checkpoint_ends_as_an_undisturbed_one(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    (tmp_path / "train.py").write_text(OWN)
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    calm = judged("train.py", "none", "-1", "calm", cwd=tmp_path, env=plain, timeout_s=200)
    command = [str(BIN / "rolemesh"), "launch", "--max-restarts", "1"]
    # In the middle and at the end of an epoch; and a checkpoint that is newer than the kept state.
    newer = tmp_path / "ours-8" / "checkpoint-8"
    for checkpoint, kill in (("calm/checkpoint-3", 5), ("calm/checkpoint-5", 7), ("calm/checkpoint-7", 10), (newer, 9)):
        each = [] if checkpoint is newer else ["--set", "engine.options.snapshots.every=0s"]
        done = subprocess.run(
            [*command, *each, "train.py", str(checkpoint), str(kill), f"ours-{kill - 1}"],
            cwd=tmp_path, env=plain, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        assert "started again 1 times" in done.stderr
        assert checkpoint is newer or "KeepState goes on after its step" in done.stderr
        ends = [re.findall(r"ends after (\d+ [0-9a-f]{64})", out) for out in (calm, done.stdout)]
        assert ends[1] == ends[0], checkpoint
