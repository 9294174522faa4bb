"""A frozen model that returns the likeliest next tokens after each token."""

from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from rolemesh import OptionsError, Ragged, Split, Workload, operator


class TeacherOptions(BaseModel, extra="forbid"):
    """Options of the role `teacher`."""

    model: str = Field(description="folder of a Hugging Face model, relative to the job file")
    top: int = Field(32, gt=0, description="how many logits of each token go to the student, the highest ones")

    @field_validator("model")
    @classmethod
    def _relative_to_job(cls, model: str, info: ValidationInfo) -> str:
        return str(Path((info.context or {}).get("base", "."), model).resolve())


class Teacher(Workload):
    """A stateless teacher. With several ranks each takes its part of the rows."""

    Options = TeacherOptions
    deterministic = True
    preload = ("transformers.models.auto.modeling_auto", "transformers.models.llama.modeling_llama")
    env = {"HF_HUB_OFFLINE": "1", "OMP_WAIT_POLICY": "PASSIVE"}  # noqa: RUF012

    @classmethod
    def check(cls, options, world_size):
        if not Path(options.model, "config.json").is_file():
            what = f"there is no model in {options.model}"
            raise OptionsError(what, where="model", remedy="run `python examples/grpo/prepare.py`")

    def setup(self, ctx):
        import torch
        from transformers import AutoModelForCausalLM

        self.ctx = ctx
        self.model = AutoModelForCausalLM.from_pretrained(self.options.model, dtype=torch.float32).eval()

    @operator(batch=Split(), returns=Split())
    def judge(self, batch):
        """Add `teacher_ids` (ragged int32) and `teacher_logits` (ragged float32), both of shape (tokens, top) per row.

        They are the likeliest tokens after each token, and their logits.
        """
        import torch

        rows = [np.array(row, dtype=np.int64) for row in batch["input_ids"]]
        if not rows:
            empty = Ragged(np.zeros((0, self.options.top), np.float32), np.zeros(1, np.int64))
            return batch | {
                "teacher_ids": Ragged(empty.values.astype(np.int32), empty.offsets),
                "teacher_logits": empty,
            }
        ids = torch.nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True)
        with torch.no_grad():
            logits, tokens = self.model(input_ids=ids, use_cache=False).logits.topk(self.options.top)
        parts = [(tokens[i, : len(row)], logits[i, : len(row)]) for i, row in enumerate(rows)]
        offsets = batch["input_ids"].offsets
        return batch | {
            "teacher_ids": Ragged(np.concatenate([t.numpy().astype(np.int32) for t, _ in parts]), offsets),
            "teacher_logits": Ragged(np.concatenate([v.numpy() for _, v in parts]), offsets),
        }
