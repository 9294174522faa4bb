"""Which packages and plugins each group of `make install` has. Pure: texts and names in, lists out; stdlib only."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

GROUPS = ("kernel", "demo", "everything")
"""Each has what the ones before it have."""

KERNEL = (
    "engines/inline",
    "engines/runtime",
    "engines/dataplane",
    "engines/durable",
    "backends/local",
    "commands/base",
    "failover/base",
    "observe/base",
    "observe/console",
    "scalers/base",
    "schedulers/pack",
    "transports/delta",
    "workloads/function",
)
DEMO = (
    *KERNEL,
    "agents/base",
    "observe/trackers",
    "schedulers/collocation",
    "sources/base",
    "workloads/fsdp",
    "workloads/reasoning-gym",
    "workloads/rewards",
    "workloads/torch",
    "workloads/training",
    "workloads/vllm",
)

BUILDS = ("cpu", "cuda", "any")
"""cpu: torch's CPU build. cuda: its CUDA build, and vLLM for GPUs. any: whichever build of torch the index has, used on
the CPU."""


def canonical(name: str) -> str:
    """A distribution's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def name_of(line: str) -> str:
    """The name that a line ``name==version`` pins."""
    return canonical(re.split(r"[=;\s]", line, maxsplit=1)[0])


def sections(lock: str) -> Iterator[tuple[str, str]]:
    """(group, line) for each pinned line; the group is that of the last line ``#: GROUP`` above it."""
    group = GROUPS[0]
    for line in lock.splitlines():
        if mark := re.fullmatch(r"#: (\w+)", line.strip()):
            group = mark[1]
        elif re.match(r"[\w.-]+==", line):
            yield group, line.strip()


def upto(group: str) -> tuple[str, ...]:
    """The group and the ones before it. Raises KeyError for a group that does not exist."""
    if group not in GROUPS:
        raise KeyError(group)
    return GROUPS[: GROUPS.index(group) + 1]


def replaced(cuda: str) -> set[str]:
    """The names on the lines ``#: without NAME …`` of lock-cuda.txt: what the CUDA set leaves out."""
    return {canonical(n) for line in re.findall(r"^#: without (.*)$", cuda, flags=re.MULTILINE) for n in line.split()}


def lines(lock: str, cuda: str, group: str, build: str, cuda_torch: bool = False) -> list[str]:
    """What a group pins, in the order of the lock.

    `lock` and `cuda` are the texts of lock.txt and lock-cuda.txt. With the build `any`, `cuda_torch` says that the
    index has torch's CUDA build, which does not start without the libraries of the group `torch` in lock-cuda.txt.
    """
    wanted = upto(group)
    base = [line for of, line in sections(lock) if of in wanted]
    if "demo" not in wanted or build == "cpu" or (build == "any" and not cuda_torch):
        return base
    own = ("torch", *wanted) if build == "cuda" else ("torch",)
    more = [line for of, line in sections(cuda) if of in own]
    gone = {name_of(line) for line in more} | (replaced(cuda) if build == "cuda" else set())
    return [line for line in base if name_of(line) not in gone] + more


def plugins(present: Iterable[str], group: str) -> list[str]:
    """The folders below plugins/ that a group installs, of those that are `present` (``kind/name``)."""
    if "everything" in upto(group):
        return sorted(present)
    return sorted(set(present) & set(DEMO if group == "demo" else KERNEL))
