"""``python -m tests.fuzz [--minutes N | --same] [TARGET …]``: gives every target changed inputs, in turns.

An input for which a target raises an undeclared error goes, as small as possible, to ``tests/fuzz/corpus``: `make
test` gives it to the target again. Hypothesis keeps its own findings in ``.hypothesis``.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time

from hypothesis import settings
from tests.fuzz.targets import TARGETS
from tests.fuzz.test_decoders import fuzz, keep

ROUND = 200
"""Number of inputs of a target in each turn."""


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--same", action="store_true", help="one turn, with the same inputs in each run: for CI")
    parser.add_argument("targets", nargs="*", help="parts of the targets' names")
    given = parser.parse_args(arguments)
    same = {"derandomize": True, "database": None} if given.same else {}
    settings.register_profile("fuzz", deadline=None, print_blob=False, **same)
    settings.load_profile("fuzz")
    logging.disable(logging.CRITICAL)
    left = [each for each in TARGETS if not given.targets or any(part in each.name for part in given.targets)]
    until, rounds, failed = time.monotonic() + (0 if given.same else 60 * given.minutes), 0, 0
    while left and (time.monotonic() < until or not rounds):
        for target in list(left):
            if rounds and time.monotonic() > until:
                break
            try:
                fuzz(target, ROUND)
            except AssertionError as error:
                why, data = error.args
                print(f"{why}\n  {data[:300]!r}\n  {keep(target, data)}", flush=True)
                left.remove(target)
                failed += 1
        rounds += 1
    print(f"{len(TARGETS)} targets, {rounds} turns of {ROUND} inputs, {failed} with undeclared errors")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
