"""Plain torchrun, the judge of `rolemesh launch`."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

__all__ = ["judged"]

ABORT = "terminate called without an active exception"
TIMES = 3


def judged(*arguments: str, cwd: Path, env: Mapping[str, str], timeout_s: float = 100.0) -> str:
    """Run ``torchrun ARGUMENTS`` and return its output. If it fails, fail with what it said.

    Run it again if PyTorch has aborted a worker at its end, on a busy machine
    (https://github.com/pytorch/pytorch/issues/190489). When the interpreter ends, a thread of gloo may still hold the
    tensors of the last collective, and wait for the GIL to free them. Then CPython ends the thread, in a C++ frame that
    nothing may leave. `destroy_process_group` waits for such threads only if nobody else holds the group; DDP and FSDP
    do. To see it each time, give the threads ``pt_gloo_runloop`` of a script the policy SCHED_IDLE.
    """
    command = [str(Path(sys.executable).with_name("torchrun")), *arguments]
    for _ in range(TIMES):
        done = subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, check=False)
        if done.returncode == 0 or ABORT not in done.stderr.splitlines():
            break
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
