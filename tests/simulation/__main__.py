"""``python -m tests.simulation SEED [FAMILY]``: play one schedule again, with everything that happens in it.

``python -m tests.simulation FIRST-LAST [FAMILY]`` plays many and prints those in which an invariant does not hold.
``python -m tests.simulation --hours N [--first SEED] [--corpus FOLDER] [FAMILY …]`` searches: it plays most of the
families that find most, plays again what has shown something new with other draws, and prints what breaks as a story.
``python -m tests.simulation story SCHEDULE`` makes a schedule that breaks as small as it can, and prints its story.
``python -m tests.simulation first`` finds the schedule that shows each mutation first (`tests.simulation.first`).
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from pathlib import Path


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help"):
        print(__doc__)
        return 0 if arguments else 2
    if arguments[0].startswith("-"):
        return _search(arguments)
    if arguments == ["first"]:
        from tests.simulation.first import find_first
        from tests.simulation.mutations import MUTATIONS

        missed = find_first(MUTATIONS)
        print("\n".join(f"no schedule shows: {name}" for name in missed))
        return 1 if missed else 0
    first, dash, last = arguments[0].partition("-")
    if dash:
        return _play_many(range(int(first), int(last)), " ".join(arguments[1:]))
    from tests.simulation.run import run_seed
    from tests.simulation.schedule import Schedule

    if arguments[0] == "story":
        from tests.simulation.search.shrink import shrunk
        from tests.simulation.search.story import story

        print(story(shrunk(Schedule.parsed(arguments[1:]), told=lambda line: print(line, file=sys.stderr))))
        return 0
    result = run_seed(Schedule.parsed(arguments), traced=True)
    print("\n".join(result.trace))
    print(result.broken or f"all invariants hold: {result.events} events, {result.seconds:.1f} s, {result.family}")
    return 1 if result.broken else 0


def _search(arguments: list[str]) -> int:
    """Search. Nothing of the engine is imported here before its modules count their blocks."""
    from tests.simulation.search.loop import search

    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--hours", type=float, required=True)
    parser.add_argument("--first", type=int, default=int(time.time()) * 1000, help="the first seed (a new one)")
    parser.add_argument("--corpus", type=Path, default=Path(".cache/simulation"), help="folder of earlier searches")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 2)
    parser.add_argument("families", nargs="*", help="only these, and not all")
    given = parser.parse_args(arguments)
    from tests.simulation.scenario import FAMILIES
    from tests.simulation.search.player import DISKS

    families = given.families or (*FAMILIES, *DISKS)
    broken = search(families, given.corpus, seconds=3600 * given.hours, first=given.first, processes=given.processes)
    return 1 if broken else 0


def _play_many(seeds: range, family: str) -> int:
    from tests.simulation.run import run_many

    began, failed = time.monotonic(), 0
    totals: Counter[str] = Counter()
    for result in run_many(seeds, family=family):
        totals["schedules"] += 1
        totals["events"] += result.events
        totals["faults"] += result.faults
        totals["recoveries"] += result.recoveries
        totals.update(f"at level {level}" for level in result.levels)
        if result.broken:
            failed += 1
            print(f"{result.seed} {result.family}: {result.broken.strip().splitlines()[-1][:300]}", flush=True)
    print(f"{dict(totals)}, {failed} broken, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
