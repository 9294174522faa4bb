"""The job of a script: one collective role whose flow continues the script. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rolemesh import Budget, Job, flow
from rolemesh_launch.flags import Asked

__all__ = ["ROLE", "job_of", "script"]

ROLE = "worker"


@flow
def script(job):  # type: ignore[no-untyped-def]
    """Flow: a role that runs a script. Each step of the job runs some of the script's steps."""
    job.worker.step()


def job_of(asked: Asked, folder: Path) -> Job:
    """Return the job. `folder` is the script's working directory and the start of its import path."""
    least, most = (nodes * asked.per_node for nodes in asked.nodes)
    options = {
        "target": asked.target, "how": asked.how, "arguments": list(asked.arguments),
        "max_restarts": asked.max_restarts, "run_id": asked.run_id,
        "role_name": asked.role_name, "threads": asked.threads,
        "environment": dict(asked.environment),
        **({} if asked.preload else {"preload": False}),
        **({"stdin": asked.stdin} if asked.stdin else {}),
        **({} if asked.open_files is None else {"open_files": asked.open_files}),
    }  # fmt: skip
    elastic = least != most
    rooms = [{"use": "room", "options": {"per_node": asked.per_node}}]
    more: dict[str, Any] = {"plugins": {"scalers": rooms}} if elastic else {}
    if asked.nodes[1] > 1:
        spread = {"spread": {ROLE: {"over": "node", "most": asked.per_node}}}
        more["placement"] = {"use": "separation", "options": spread}
    of_engine: dict[str, Any] = {"hang": {"after_s": asked.hang_after_s}}
    if asked.keeps_state and not asked.max_restarts:
        of_engine["snapshots"] = {"enabled": True}  # for --resume
    of_engine["stop_grace_s"] = asked.grace_s
    if asked.max_restarts or elastic:
        counted = {"use": "standard", "options": {"max_restarts": asked.max_restarts, "repeats": None}}
        more["diagnosers"] = [counted]
    job = Job(asked.name, base=folder, steps=None, engine={"options": of_engine}, observers=[], **more)
    job.role(
        ROLE,
        use="script",
        world_size={"min": least, "max": most} if elastic else least,
        **({"runtime_env": {"env_vars": dict(asked.early)}} if asked.early else {}),
        resources={"cpu": 1, **({"gpu": asked.gpus} if asked.gpus else {})},
        options=options,
    )
    # The diagnoser counts restarts over all levels. The levels' own budgets leave room for lost nodes and agents, which
    # do not count.
    attempts = asked.max_restarts + Budget().max_attempts
    if asked.max_restarts:
        job.failover("process", max_attempts=attempts)
    if elastic or (asked.max_restarts and asked.nodes[1] > 1):
        job.failover("node", when_full="fail")
    if elastic:
        job.failover("shrink")
    if asked.max_restarts:
        job.failover("job", max_attempts=attempts)
    return job.flow("rolemesh_launch.job:script")
