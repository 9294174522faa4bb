"""A folder of text as a stream of windows of bytes, in an order that follows from the job's seed, epoch after epoch."""

import glob
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field, ValidationInfo, field_validator

from rolemesh import Batch, OptionsError, Ragged, Split, Workload, operator


class TextOptions(BaseModel, extra="forbid"):
    """Options of the role `text`."""

    folder: str = Field(description="folder of text files, relative to the job file")
    pattern: str = Field("*.md", description="which of its files")
    window: int = Field(128, ge=2, description="tokens (bytes) of a row")
    rows: int = Field(16, gt=0, description="rows of a step, over all ranks")
    held_out: float = Field(0.05, gt=0, lt=1, description="part of the text that is never learned from: its end")

    @field_validator("folder")
    @classmethod
    def _relative_to_job(cls, folder: str, info: ValidationInfo) -> str:
        return str(Path((info.context or {}).get("base", "."), folder).resolve())


def files_of(options):
    """Return the files that the pattern names, sorted. Wildcards match no hidden files or folders."""
    found = glob.glob(options.pattern, root_dir=options.folder, recursive=True)
    return sorted(path for name in found if (path := Path(options.folder, name)).is_file())


class Text(Workload):
    """Row *i* of the job is the same on every rank.

    Ranks take rows by number, so their number may change later. The position in the stream follows from the step. The
    role therefore has no state, and a resumed job goes on with the next row.
    """

    Options = TextOptions
    deterministic = True

    @classmethod
    def check(cls, options, world_size):
        """Raise `OptionsError` if the folder has too little text for a held-out window."""
        size = sum(path.stat().st_size for path in files_of(options))
        if size * options.held_out < options.window:
            raise OptionsError(
                f"{options.folder} has {size} bytes in {options.pattern}: too few for windows of {options.window}",
                where="folder",
                remedy="name a folder with more text, or another pattern",
            )

    def setup(self, ctx):
        self.ctx, options = ctx, self.options
        text = np.frombuffer(b"\n".join(path.read_bytes() for path in files_of(options)), dtype=np.uint8).astype(
            np.int32
        )
        count = len(text) // options.window
        windows = text[: count * options.window].reshape(count, options.window)
        kept = max(1, int(count * options.held_out))
        self.windows, self.kept = windows[:-kept], windows[-kept:]
        self.epoch, self.order = -1, np.arange(0)

    @operator(returns=Split())
    def next(self):
        """Return this rank's part of the step's rows: `input_ids`."""
        options, ctx = self.options, self.ctx
        first = ctx.step * options.rows
        rows = [self._window(first + row) for row in ctx.mine(options.rows)]
        ctx.metric(epoch=(first + options.rows) / len(self.windows))
        return Batch({"input_ids": Ragged.from_rows(rows, dtype=np.int32)})

    @operator(returns=Split())
    def held_out(self):
        """Return this rank's part of the held-out text."""
        rows = [self.kept[row] for row in self.ctx.mine(len(self.kept))]
        return Batch(
            {
                "prompt_ids": Ragged.from_rows([row[:1] for row in rows], dtype=np.int32),
                "completion_ids": Ragged.from_rows([row[1:] for row in rows], dtype=np.int32),
            }
        )

    @operator(rows=Split())
    def judge(self, rows):
        """Report `eval_loss`, the mean over held-out tokens in nats, and `eval_bits`, the same in bits per byte."""
        for row in rows["ref_logprobs"]:
            loss = -float(np.mean(row))
            self.ctx.metric(eval_loss=loss, eval_bits=loss / float(np.log(2)))

    def _window(self, number):
        epoch, at = divmod(number, len(self.windows))
        if epoch != self.epoch:
            rng = np.random.default_rng(self.ctx.seed_for("epoch", epoch))
            self.epoch, self.order = epoch, rng.permutation(len(self.windows))
        return self.windows[self.order[at]]
