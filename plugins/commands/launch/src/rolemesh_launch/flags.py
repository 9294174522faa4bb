"""What a command line of ``rolemesh launch`` says. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from rolemesh.errors import JobFileError
from rolemesh_launch.program import How

__all__ = ["Asked", "Std", "job_name", "node_range", "processes", "std"]


@dataclass(frozen=True)
class Asked:
    """A script, and how it is to be run. `nodes` are the fewest and the most."""

    target: str
    how: How = "path"
    arguments: tuple[str, ...] = ()
    nodes: tuple[int, int] = (1, 1)
    per_node: int = 1
    gpus: float = 0.0
    max_restarts: int = 0
    run_id: str = "none"
    role_name: str = "default"
    hang_after_s: float | None = None
    threads: bool = False
    name: str = "script"
    overrides: tuple[str, ...] = field(default=())


def node_range(text: str) -> tuple[int, int]:
    """``--nnodes``: ``2``, or ``1:4``. Raises `JobFileError`."""
    least, colon, most = text.partition(":")
    most = most if colon else least
    if not least.isdigit() or not most.isdigit() or not 1 <= int(least) <= int(most):
        raise JobFileError(f"{text!r} is no number of nodes", where="--nnodes", remedy="write 2, or 1:4")
    return int(least), int(most)


def processes(text: str, cores: int, gpus: int) -> int:
    """``--nproc-per-node``: a number, ``cpu``, ``gpu``, or ``auto``: GPUs, if there are any. Raises `JobFileError`."""
    if text.isdigit() and int(text) > 0:
        return int(text)
    if text == "gpu" and not gpus:
        raise JobFileError("there is no GPU here", where="--nproc-per-node", remedy="write a number, or cpu")
    if text not in ("gpu", "cpu", "auto"):
        what = f"{text!r} is no number of processes"
        raise JobFileError(what, where="--nproc-per-node", remedy="write a number, cpu, gpu or auto")
    return gpus if text == "gpu" or (text == "auto" and gpus) else cores


@dataclass(frozen=True)
class Std:
    """For each rank of a node which streams something is done with: 1 is stdout, 2 stderr, 3 both."""

    every: int = 0
    ranks: tuple[tuple[int, int], ...] = ()

    def of(self, local_rank: int) -> int:
        """What is said of one."""
        return dict(self.ranks).get(local_rank, 0 if self.ranks else self.every)


def std(text: str, flag: str) -> Std:
    """``--tee`` and ``--redirects``: ``3``, or ``0:1,1:2``. Raises `JobFileError`."""
    if text in ("0", "1", "2", "3"):
        return Std(int(text))
    found = re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text)
    if found is None:
        raise JobFileError(f"{text!r} says nothing of streams", where=flag, remedy="write 3, or 0:1,1:2")
    pairs = [part.split(":") for part in text.split(",")]
    return Std(ranks=tuple((int(rank), int(what)) for rank, what in pairs))


def job_name(target: str) -> str:
    """A job's name from what is run."""
    stem = Path(target).stem if "/" in target or target.endswith(".py") else target.rpartition(".")[2]
    return re.sub(r"[^a-z0-9-]+", "-", stem.lower()).strip("-")[:40] or "script"
