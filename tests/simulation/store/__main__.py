"""``python -m tests.simulation.store SEED`` plays one schedule of masters again; ``FIRST-LAST`` plays many."""

from __future__ import annotations

import logging
import sys
import time

from tests.simulation.store.run import run_seed


def main(arguments: list[str]) -> int:
    logging.disable(logging.CRITICAL)
    first, dash, last = arguments[0].partition("-")
    if not dash:
        result = run_seed(int(first), traced=True)
        print("\n".join(result.trace))
        print(result.broken or "all invariants hold")
        return 1 if result.broken else 0
    began, failed = time.monotonic(), 0
    for seed in range(int(first), int(last)):
        if broken := run_seed(seed).broken:
            failed += 1
            print(f"{seed}: {broken.strip().splitlines()[-1][:300]}", flush=True)
    print(f"{int(last) - int(first)} schedules, {failed} broken, {time.monotonic() - began:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
