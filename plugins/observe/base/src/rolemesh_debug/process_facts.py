"""The memory, threads and open files of a process, from /proc."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

__all__ = ["ProcessFacts", "look", "parse_status"]

MB = 1_000_000


class ProcessFacts(msgspec.Struct, frozen=True):
    """Memory, threads and open files of a process. Sizes are in MB (10^6 bytes).

    - `rss`: the resident memory; `peak`: its maximum so far.
    - `private`, `files`, `shared`: the parts of `rss`: own memory, mapped files, and shared memory such as /dev/shm.
    - `pss`: resident memory, in which shared pages count in proportion; None if the kernel does not tell.
    - `open_files`: open files by kind: file, socket, pipe, shared memory, device, other; None if they cannot be read.
    """

    rss: float
    peak: float
    private: float
    files: float
    shared: float
    threads: int
    pss: float | None = None
    open_files: dict[str, int] | None = None


def look(pid: int, proc: Path = Path("/proc")) -> ProcessFacts | None:
    """Return the facts about a process; None if it has ended."""
    folder = proc / str(pid)
    try:
        facts = parse_status((folder / "status").read_text())
    except (OSError, ValueError):
        return None
    return msgspec.structs.replace(facts, pss=_pss(folder), open_files=_open_files(folder))


def parse_status(text: str) -> ProcessFacts:
    """Return the facts in ``/proc/PID/status``. A zombie has no memory: its sizes are 0. Raises `ValueError`."""
    found = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)

    def size(name: str) -> float:
        return round(int(found.get(name, "0").split()[0]) * 1024 / MB, 1)

    return ProcessFacts(
        size("VmRSS"), size("VmHWM"), size("RssAnon"), size("RssFile"), size("RssShmem"), int(found.get("Threads", "0"))
    )


def _pss(folder: Path) -> float | None:
    try:
        for line in (folder / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return round(int(line.split()[1]) * 1024 / MB, 1)
    except (OSError, ValueError, IndexError):
        pass
    return None


def _open_files(folder: Path) -> dict[str, int] | None:
    counts: Counter[str] = Counter()
    try:
        links = list((folder / "fd").iterdir())
    except OSError:
        return None
    for link in links:
        try:
            counts[_kind(str(link.readlink()))] += 1
        except OSError:  # it was closed meanwhile
            continue
    return dict(counts.most_common())


def _kind(target: str) -> str:
    if target.startswith(("/dev/shm/", "/memfd:")):
        return "shared memory"
    if target.startswith("/dev/"):
        return "device"
    if target.startswith("/"):
        return "file"
    name = target.partition(":")[0]
    return name if name in ("socket", "pipe") else "other"
