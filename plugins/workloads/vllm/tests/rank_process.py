"""A workload in a process of its own, as the kernel has it, for tests: calls come over a socket, one at a time.

Run as ``rank_process.py SOCKET``; `Rank` in `conftest.py` is the other end.
"""

from __future__ import annotations

import os
import sys
from multiprocessing.connection import Client

import rolemesh_vllm
from rolemesh.api.workload import RankContext


def main() -> None:
    with Client(sys.argv[1]) as connection:
        name, options, seed = connection.recv()
        cls = getattr(rolemesh_vllm, name)
        workload = cls(cls.Options(**options))
        workload.setup(RankContext(seed=seed))
        connection.send((None, sorted(os.sched_getaffinity(0))))
        while True:
            try:
                method, args, step = connection.recv()
            except EOFError:
                break
            workload.ctx.step = step
            workload.ctx.port.sums.clear()
            try:
                connection.send((None, (getattr(workload, method)(*args), dict(workload.ctx.port.sums))))
            except Exception as error:
                connection.send((error, None))
        workload.teardown()


if __name__ == "__main__":
    main()
