"""Windows of bytes of a folder of text."""

from pathlib import Path

import numpy as np

from rolemesh import Batch


class Text:
    """The rows of a step follow from its number and the job's seed: there is no state."""

    def __init__(self, ctx, folder, rows=8, window=48):
        self.ctx, self.rows, self.window = ctx, rows, window
        files = sorted(Path(ctx.base, folder).resolve().glob("*.md"))
        self.bytes = np.frombuffer(b"\n".join(path.read_bytes() for path in files), dtype=np.uint8)

    def next(self, micro=0):
        """Return a micro-batch: `tokens`, int64 of shape (rows, window + 1)."""
        starts = self.ctx.rng(self.ctx.step, micro).integers(0, len(self.bytes) - self.window - 1, size=self.rows)
        return Batch({"tokens": np.stack([self.bytes[s : s + self.window + 1] for s in starts]).astype(np.int64)})
