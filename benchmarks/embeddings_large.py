"""A table of 1.07 GB on two servers: SIGKILL of one of them, and a third one that comes and goes."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.disturbed import RankKill, Resize, disturbed
from benchmarks.report import Report, ratios
from benchmarks.running import JOBS
from rolemesh_embeddings.hashing import ranks_of_buckets

FILLED, KEYS, ROW_BYTES = 16, 4_000_000, 64 * 4 + 8 + 4
WAIT_S = 600.0


def measure(quick: bool) -> Report:
    """Updates again within half a second; a third server in at most three times the memcpy of what moves."""
    report = Report("embeddings_large", "A server lost, and another number of servers, with a table of 1.07 GB", quick)
    rounds = 1 if quick else 5
    size = KEYS * ROW_BYTES
    moved = int(size * float(np.mean(ranks_of_buckets(2) != ranks_of_buckets(3))))
    kills: list[RankKill] = []
    grown: list[Resize] = []
    shrunk: list[Resize] = []
    copied: list[float] = []
    with disturbed(JOBS / "embeddings_large.yaml") as job:
        deadline = time.monotonic() + WAIT_S
        while (status := job.status()) is None or status.committed < FILLED:
            if time.monotonic() > deadline:
                raise TimeoutError(f"the table is not there after {WAIT_S:g} s")
            time.sleep(0.1)
        for _ in range(rounds):
            kills.append(job.kill_rank("ps", 0))
            copied.append(memcpy(moved))
            grown.append(job.resize("ps", 3))
            shrunk.append(job.resize("ps", 2))
        found = [path.stat() for path in Path(job.run.path).glob("embeddings/ps/*/*")]
        files = sum({each.st_ino: each.st_size for each in found}.values())
    report.row("SIGKILL of a server: until it updates again", "s", [kill.seconds for kill in kills])
    report.row("SIGKILL of a server: its set-up, part of it", "s", [kill.load_s for kill in kills])
    report.row("2 → 3 servers: until they run", "s", [each.seconds for each in grown])
    report.row("2 → 3 servers: all are held at one step, part of it", "s", [each.paused_s for each in grown])
    report.row("3 → 2 servers: until they run", "s", [each.seconds for each in shrunk])
    report.row("3 → 2 servers: all are held at one step, part of it", "s", [each.paused_s for each in shrunk])
    report.row(f"memcpy of what moves, {moved / 1e6:.0f} MB", "s", copied)
    report.row("files with rows at the end, of all numbers of servers", "MB", [files / 1e6])
    report.claim("2 → 3 servers: held / memcpy", ratios([each.paused_s for each in grown], copied), at_most=3)
    report.settings = {"rows": KEYS, "bytes of a row": ROW_BYTES, "rounds": rounds}
    return report


def memcpy(nbytes: int) -> float:
    """Seconds of one ``numpy.copyto`` between two warm buffers."""
    source, target = np.ones(nbytes, np.uint8), np.ones(nbytes, np.uint8)
    began = time.perf_counter()
    np.copyto(target, source)
    return time.perf_counter() - began
