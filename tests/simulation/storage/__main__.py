"""``python -m tests.simulation.storage SEED`` plays one schedule of the storage again; ``FIRST-LAST`` plays many."""

from __future__ import annotations

import sys

from tests.simulation.seeds import main
from tests.simulation.storage.run import run_seed

if __name__ == "__main__":
    sys.exit(main(run_seed, sys.argv[1:]))
