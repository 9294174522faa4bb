"""The trial of a sandbox at the start of a rank: whether it works on this machine, and what it cannot enforce."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from rolemesh.api.workload import RankContext
from rolemesh_agents.sandbox import Limits, Sandbox

__all__ = ["try_sandbox"]


def try_sandbox(ctx: RankContext, name: str, limits: Limits) -> None:
    """Open a sandbox and close it again. The rank's log says what it cannot enforce.

    Raises `AgentError` if the sandbox cannot work here.
    """
    sandbox: Sandbox = ctx.plugins["sandboxes", name]()
    folder = Path(tempfile.mkdtemp(prefix="trial-", dir=ctx.tmp_dir))
    try:
        sandbox.open(folder, limits)
        missing = " ".join(sandbox.unenforced())
    finally:
        sandbox.close()
        shutil.rmtree(folder, ignore_errors=True)
    if missing:
        ctx.log.warning("the sandbox %s does not enforce everything here: %s", name, missing)
