"""``python -m tests.simulation SEED [FAMILY]``: play one schedule again, with everything that happens in it.

``python -m tests.simulation FIRST-LAST [FAMILY]`` plays many and prints those in which an invariant does not hold.
``python -m tests.simulation first`` finds the schedule that shows each mutation first (`tests.simulation.first`).
"""

from __future__ import annotations

import sys
import time
from collections import Counter

from tests.simulation.first import find_first
from tests.simulation.mutations import MUTATIONS
from tests.simulation.run import run_many, run_seed


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    if arguments == ["first"]:
        missed = find_first(MUTATIONS)
        print("\n".join(f"no schedule shows: {name}" for name in missed))
        return 1 if missed else 0
    family = arguments[1] if len(arguments) > 1 else ""
    first, dash, last = arguments[0].partition("-")
    if not dash:
        result = run_seed(int(first), family=family, traced=True)
        print("\n".join(result.trace))
        print(result.broken or f"all invariants hold: {result.events} events, {result.seconds:.1f} s, {result.family}")
        return 1 if result.broken else 0
    began, failed = time.monotonic(), 0
    totals: Counter[str] = Counter()
    for result in run_many(range(int(first), int(last)), family=family):
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
