"""``python -m rolemesh_local JOB_ID``: the supervisor of a job. It reads a `SupervisorStart` from standard input."""

from __future__ import annotations

import importlib
import os
import signal
import sys
from pathlib import Path

import msgspec

from rolemesh.api.import_ref import import_paths
from rolemesh.kinds import kind_named
from rolemesh.runs.run import LOGS_DIR
from rolemesh_durable.api.hosting import MasterConfig, give_up
from rolemesh_local.messages import SupervisorStart
from rolemesh_local.processes import run_agent, run_master
from rolemesh_local.supervisor import Supervisor
from rolemesh_processes.beginning import entitle, raise_limits
from rolemesh_processes.guard import ResourceGuard, remove_job
from rolemesh_processes.signals import pass_over

PRELOAD = ("sqlite3",)
"""Modules that every master imports. The master itself imports the plugins of observers, because those may start
threads."""


def main() -> int:
    raise_limits()
    start = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=SupervisorStart)
    bundle = msgspec.msgpack.decode(start.bundle, type=MasterConfig)
    entitle(bundle.job.name, f"supervisor {bundle.job.job_id}")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    pass_over(signal.SIGINT)
    for module in PRELOAD:
        importlib.import_module(module)
    import_paths(bundle.job.base)
    for kind in bundle.job.plugins:
        kind_named(kind)  # the metadata of what is installed are read once, not by every master and agent
    logs = Path(bundle.job.run_dir, LOGS_DIR)
    guard = ResourceGuard(bundle.job.job_id, "supervisor")
    try:
        supervisor = Supervisor(start, guard.tmp, lambda name: logs / f"{name}.log", run_master, run_agent)
        finished = supervisor.run()
        remove_job(bundle.job.job_id)
        if not finished:
            give_up(bundle, supervisor.gave_up)
    finally:
        guard.close()
    return 0 if finished else 1


if __name__ == "__main__":
    sys.exit(main())
