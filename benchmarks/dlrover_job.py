"""One DLRover job (dlrover 0.6.1, unified API) of simple workers, for `submit`. Runs in DLRover's own Python.

``python dlrover_job.py ADDRESS WORKERS`` prints ``{"seconds": …}``: from submit() to the last worker's entry.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path


def work() -> None:
    """The worker's code: leave the time in the folder that the environment names."""
    Path(os.environ["BENCH_TIMES"], f"{os.getpid()}.ns").write_text(str(time.monotonic_ns()))


def main(address: str, workers: int) -> float:
    """Submit, wait for the end, and read what the workers have left."""
    import ray
    from dlrover.python.unified.api.builder import DLJobBuilder

    with tempfile.TemporaryDirectory(prefix="rolemesh-bench-") as folder:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        began = time.monotonic_ns()
        job = (
            DLJobBuilder()
            .node_num(1)
            .device_per_node(1)
            .device_type("CPU")
            .config({})
            .global_env({"BENCH_TIMES": folder, "PYTHONPATH": os.environ["PYTHONPATH"]})
            .workload("work", "dlrover_job.work")
            .total(workers)
            .resource(cpu=0.1)
            .end()
            .build()
        )
        code = job.submit(f"bench-{os.getpid()}", master_cpu=1, master_memory=128)
        entered = [int(path.read_text()) for path in Path(folder).glob("*.ns")]
        if code or len(entered) != workers:
            sys.exit(f"exit code {code}, {len(entered)} of {workers} workers entered")
        return (max(entered) - began) * 1e-9


if __name__ == "__main__":
    print(json.dumps({"seconds": main(sys.argv[1], int(sys.argv[2]))}), flush=True)
    os._exit(0)
