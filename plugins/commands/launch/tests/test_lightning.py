"""A Lightning Trainer that is killed in the middle and at the edges of epochs ends as one that was not."""

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
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import EarlyStopping
from torch.utils.data import DataLoader, TensorDataset

from rolemesh_launch.lightning import KeepState

workers, kills = int(os.environ["WORLD_SIZE"]), sys.argv[1:]

class Killed(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if f"{os.environ['TORCHELASTIC_RESTART_COUNT']}:{trainer.global_rank}:{trainer.global_step}" in kills:
            os.kill(os.getpid(), signal.SIGKILL)

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 1))
        self.seen = []

    def training_step(self, batch, batch_idx):
        loss = (self.layers(batch[0]).squeeze(1) - batch[0].sum(1)).square().mean()
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, batch_idx):
        self.log("val", self.layers(batch[0]).square().mean(), sync_dist=workers > 1)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]

seed_everything(1)
rows = TensorDataset(torch.randn(44, 8, generator=torch.Generator().manual_seed(0)))
model = Model()
trainer = Trainer(
    accelerator="cpu", devices=workers, max_epochs=3, accumulate_grad_batches=2, logger=False,
    enable_model_summary=False, enable_checkpointing=False, enable_progress_bar=False,
    strategy="ddp" if workers > 1 else "auto",
    callbacks=[Killed(), EarlyStopping("val", patience=9), KeepState()],
)
trainer.fit(model, DataLoader(rows, batch_size=4, shuffle=True), DataLoader(rows, batch_size=11))
stopping = trainer.early_stopping_callback
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
lr, wait = trainer.optimizers[0].param_groups[0]["lr"], (stopping.wait_count, float(stopping.best_score))
end = (trainer.global_step, trainer.current_epoch, lr, wait, digest)
print(f"rank {trainer.global_rank} ends after {end}\\n", end="", flush=True)
"""


@pytest.mark.soak
@pytest.mark.parametrize(("workers", "kills"), [(1, ("0:0:3", "1:0:6", "2:0:14")), (2, ("0:1:2", "1:0:3", "2:1:7"))])
def test_a_lightning_trainer_that_is_killed_ends_as_one_that_is_not(
    tmp_path: Path, workers: int, kills: tuple[str, ...]
) -> None:
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(TRAIN)
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    plain["OMP_NUM_THREADS"] = "1"
    command = ("--nproc-per-node", str(workers), "train.py")
    calm = judged(*command, cwd=tmp_path, env=plain, timeout_s=200)
    done = subprocess.run(
        [str(BIN / "rolemesh"), "launch", *command, *kills],
        cwd=tmp_path, env=plain, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "started again 3 times" in done.stderr
    ends = [set(re.findall(r"rank (\d ends after .*)", out)) for out in (calm, done.stdout)]
    assert len(ends[0]) == workers
    assert ends[1] == ends[0]


OWN = """
import hashlib, os, signal, sys
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from rolemesh_launch.lightning import KeepState

class Killed(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and trainer.global_step == int(sys.argv[2]):
            os.kill(os.getpid(), signal.SIGKILL)

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Linear(8, 1)

    def training_step(self, batch, batch_idx):
        return (self.layers(batch[0]).squeeze(1) - batch[0].sum(1)).square().mean()

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.7)]

seed_everything(1)
rows = TensorDataset(torch.randn(20, 8, generator=torch.Generator().manual_seed(0)))
model = Model()
trainer = Trainer(
    accelerator="cpu", devices=1, max_epochs=3, logger=False, enable_model_summary=False, enable_progress_bar=False,
    callbacks=[Killed(), ModelCheckpoint(sys.argv[3], every_n_train_steps=1, save_top_k=-1, filename="{step}"),
    KeepState()],
)
trainer.fit(model, DataLoader(rows, batch_size=4, shuffle=True), ckpt_path=sys.argv[1] or None)
digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters())).hexdigest()
print("ends after", trainer.global_step, digest)
"""


@pytest.mark.soak
@pytest.mark.parametrize("step", [3, 5])
def test_a_lightning_trainer_that_also_resumes_from_a_checkpoint_ends_as_an_undisturbed_one(
    tmp_path: Path, step: int
) -> None:
    pytest.importorskip("lightning")
    (tmp_path / "train.py").write_text(OWN)
    plain = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    judged("train.py", "", "-1", "first", cwd=tmp_path, env=plain, timeout_s=200)
    own = f"first/step={step}.ckpt"
    calm = judged("train.py", own, "-1", "calm", cwd=tmp_path, env=plain, timeout_s=200)
    command = [str(BIN / "rolemesh"), "launch", "--max-restarts", "1", "--set", "engine.options.snapshots.every=0s"]
    done = subprocess.run(
        [*command, "train.py", own, str(step + 2), "ours"],
        cwd=tmp_path, env=plain, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "started again 1 times" in done.stderr
    assert "KeepState goes on after its step" in done.stderr
    ends = [re.findall(r"ends after .*", out) for out in (calm, done.stdout)]
    assert ends[1] == ends[0]
