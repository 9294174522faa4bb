"""Parse the command line of ``rolemesh launch``. Pure."""

from __future__ import annotations

import ast
import re
import signal
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path

from rolemesh.errors import JobFileError
from rolemesh_launch.program import How

__all__ = [
    "BYTES",
    "OWN_VARIABLES",
    "RESTARTS",
    "Asked",
    "Std",
    "free_name",
    "ignored",
    "imported",
    "job_name",
    "keeps_state",
    "node_range",
]
__all__ += ["plain", "processes", "script_file", "signal_numbers", "std", "without_effect"]

RESTARTS = 3
"""Default of ``--max-restarts`` for a script that keeps its state with `track`; for others 0, as torchrun's."""

IGNORED = {
    "one command starts all nodes, and processes meet through rolemesh": (
        "rdzv-backend", "rdzv-endpoint", "rdzv-conf", "node-rank", "master-addr", "master-port", "local-addr",
    ),
    "deaths are seen at once": ("monitor-interval",),
    "processes are forked from one that has imported torch": ("start-method",),
    "what happens is in the job's events": ("event-log-handler",),
}  # fmt: skip
"""Reason → flags of torchrun that have no effect for this reason."""
REFUSED = {
    "duplicate-stdout-filters": "filter what rolemesh logs prints",
    "duplicate-stderr-filters": "filter what rolemesh logs prints",
    "logs-specs": "leave it out; logs are in the run's folder",
    "numa-binding": "leave it out, and bind the processes in the script",
    "virtual-local-rank": "leave it out; the script finds its device by LOCAL_RANK",
}
"""Flag of torchrun without an equivalent → the remedy."""


OWN_VARIABLES = (
    "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "TOKENIZERS_PARALLELISM",
    "PYTORCH_NVML_BASED_CUDA_CHECK", "PYTHONUNBUFFERED", "SPT_NOENV", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR",
)  # fmt: skip
"""Variables that rolemesh's processes set for themselves. The script gets the values from the user's environment."""


BYTES = {f"byte_{number:02x}": chr(0xDC00 + number) for number in range(128, 256)}
"""Macros of bytes in arguments that are not UTF-8, which a job file cannot express → how Python shows such a byte."""


def plain(argument: str) -> str:
    """Return the argument with the macro ``${byte_ff}`` for a byte that is not UTF-8."""
    return re.sub("[\udc80-\udcff]", lambda found: f"${{byte_{ord(found[0]) - 0xDC00:02x}}}", argument)


@dataclass(frozen=True)
class Asked:
    """A script, and how to run it.

    - `nodes`: minimum and maximum number of nodes.
    - `early`: variables that the script sets before it imports torch.
    - `stdin`: folder in which the command gives its standard input.
    - `open_files`: the command's soft limit of open files.
    - `preload`: torch is imported before the script begins; without it the script imports torch itself.
    """

    target: str
    how: How = "path"
    arguments: tuple[str, ...] = ()
    nodes: tuple[int, int] = (1, 1)
    per_node: int = 1
    gpus: float = 0.0
    max_restarts: int = 0
    keeps_state: bool = False
    run_id: str = "none"
    role_name: str = "default"
    hang_after_s: float | None = None
    threads: bool = False
    environment: Mapping[str, str | None] = field(default_factory=dict)
    early: Mapping[str, str] = field(default_factory=dict)
    preload: bool = True
    grace_s: float = 30.0
    stdin: str = ""
    open_files: int | None = None
    name: str = "script"
    overrides: tuple[str, ...] = field(default=())


def ignored(given: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each flag that has no effect. Raises `JobFileError` for flags that cannot be followed."""
    for flag in given:
        if flag in REFUSED:
            raise JobFileError("there is no such thing here", where=f"--{flag}", remedy=REFUSED[flag])
    if given.get("node-rank", "0") != "0":
        what = f"this is the command of node {given['node-rank']}, and one command starts all nodes"
        raise JobFileError(what, where="--node-rank", remedy="run it once, without --node-rank")
    for why, flags in IGNORED.items():
        if found := [f"--{flag}" for flag in flags if flag in given]:
            yield f"{', '.join(found)} changes nothing: {why}"


def without_effect(given: Mapping[str, str], *, ray: bool) -> Iterator[str]:
    """Yield a sentence for each flag of this command that has no effect because of another flag.

    `given` has the given flags with their values; `ray` says whether the job runs on Ray.
    """
    if "nodes" in given and ray:
        yield "--nodes changes nothing: it emulates nodes on this machine, and the job runs on Ray"
    if "log-dir" in given and given.get("runs-dir", given["log-dir"]) != given["log-dir"]:
        yield "--runs-dir (or ROLEMESH_RUNS) changes nothing: --log-dir names the runs folder"
    if "standalone" in given and given.get("nnodes", "1") != "1":
        yield "--nnodes changes nothing: --standalone means one node"
    if "run-path" in given:
        yield "--run-path changes nothing: SCRIPT runs in a process that is up"
        if "no-python" in given:
            yield "--no-python changes nothing: --run-path means a script for Python"
    if "detach" in given and (found := _named(given, "tee", "redirects", "local-ranks-filter")):
        yield f"{found} changes nothing: with --detach nothing is printed; rolemesh logs prints it"
    if "print-job" in given and (found := _named(given, "backend", "address", "nodes", "resume", "detach")):
        yield f"{found} changes nothing: no key of a job file says so; give it to rolemesh run"


def _named(given: Mapping[str, str], *flags: str) -> str:
    return ", ".join(f"--{flag}" for flag in flags if flag in given)


def node_range(text: str) -> tuple[int, int]:
    """Parse ``--nnodes``: ``2``, or ``1:4``. Raises `JobFileError`."""
    least, colon, most = text.partition(":")
    most = most if colon else least
    if not least.isdigit() or not most.isdigit() or not 1 <= int(least) <= int(most):
        raise JobFileError(f"{text!r} is no number of nodes", where="--nnodes", remedy="write 2, or 1:4")
    return int(least), int(most)


def processes(text: str, cores: int, gpus: int) -> int:
    """Parse ``--nproc-per-node``: a number, ``cpu``, ``gpu``, or ``auto``, which means GPUs if there are any. Raises
    `JobFileError`."""
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
    """The selected output streams of each rank of a node: 1 is stdout, 2 stderr, 3 both."""

    every: int = 0
    ranks: tuple[tuple[int, int], ...] = ()

    def of(self, local_rank: int) -> int:
        """Return the selection for one rank."""
        return dict(self.ranks).get(local_rank, 0 if self.ranks else self.every)


def std(text: str, flag: str) -> Std:
    """Parse ``--tee`` and ``--redirects``: ``3``, or ``0:1,1:2``. Raises `JobFileError`."""
    if text in ("0", "1", "2", "3"):
        return Std(int(text))
    found = re.fullmatch(r"\d+:[0-3](,\d+:[0-3])*", text)
    if found is None:
        raise JobFileError(f"{text!r} names no streams", where=flag, remedy="write 3, or 0:1,1:2")
    pairs = [part.split(":") for part in text.split(",")]
    return Std(ranks=tuple((int(rank), int(what)) for rank, what in pairs))


def signal_numbers(text: str) -> list[int]:
    """Parse ``--signals-to-handle``: ``SIGTERM,SIGUSR1``. Raises `JobFileError`."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        if name not in signal.Signals.__members__ or name in ("SIGKILL", "SIGSTOP"):
            remedy = "write names, such as SIGTERM,SIGUSR1"
            raise JobFileError(f"{name!r} is no signal to handle", where="--signals-to-handle", remedy=remedy)
    return [signal.Signals[name] for name in names]


def imported(source: bytes) -> set[str]:
    """Return the full names of the modules that a Python file imports; none if it is not Python."""
    try:
        nodes = list(ast.walk(ast.parse(source)))
    except (SyntaxError, ValueError):
        return set()
    found = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return found | {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}


def script_file(target: str, how: How) -> Path:
    """Return the file of a script, or of a module in the working directory. It may not exist."""
    if how != "module":
        return Path(target)
    path = Path(*target.split("."))
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def keeps_state(script: Path, folder: Path) -> bool:
    """Return whether `script`, or a module that it imports from beside it or from `folder`, uses `track`."""
    seen: set[Path] = set()
    left = [script]
    while left:
        path = left.pop()
        if path in seen or not path.is_file():
            continue
        seen.add(path)
        names = imported(path.read_bytes())
        if any(name.partition(".")[0] == "rolemesh_launch" for name in names):
            return True
        for base in (script.parent, folder):
            inner = [base.joinpath(*name.split(".")) for name in names]
            left += [file for at in inner for file in (at.with_suffix(".py"), at / "__init__.py")]
    return False


def free_name(name: str, taken: Callable[[str], bool]) -> str:
    """Return `name`, or the first of ``name-2``, ``name-3``, … that is not `taken`."""
    names = (name if number == 1 else f"{name}-{number}" for number in count(1))
    return next(each for each in names if not taken(each))


def job_name(target: str) -> str:
    """Return a job name for the script or module."""
    stem = Path(target).stem if "/" in target or target.endswith(".py") else target.rpartition(".")[2]
    return re.sub(r"[^a-z0-9-]+", "-", stem.lower()).strip("-")[:40] or "script"
