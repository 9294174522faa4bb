"""Servers with a real limit of memory: that of their reservation, and what their process needs without tables."""

import os
from pathlib import Path

from rolemesh_embeddings import Embeddings

GROUPS = Path("/sys/fs/cgroup/memory")
PROCESS_MB = 120


class Capped(Embeddings):
    """Puts its process into a control group (version 1) of its own."""

    def setup(self, ctx):
        super().setup(ctx)
        group = GROUPS / f"rolemesh-{ctx.base.name}-{os.getpid()}"
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(PROCESS_MB * 10**6 + int(ctx.memory_gb * 1e9)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
