"""A DLRover job (dlrover 0.6.1, unified API) of two roles of two workers each, one of which is killed; for `failover`.

``python dlrover_kills.py ADDRESS simple|elastic|master`` runs in DLRover's own Python. For the first two a worker of
the role `one` (which is of that kind; the other is simple) gets SIGKILL, for the last the master of simple roles.
Prints ``{"seconds": …, "restarted": …, "stage": …}``: from SIGKILL to the first step of that worker's successor (null:
none within a minute), how many of the four workers then have another process (or none), and what the master says.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

PAUSE_S = 0.01
LIMIT_S = 60.0
WATCH_S = 10.0
"""How long after a master's death the workers are watched."""


def work() -> None:
    """A worker's code: steps of `PAUSE_S`, whose number is left in a file named after role, rank and pid."""
    from dlrover.python.unified.api.runtime.worker import current_worker

    me = current_worker().actor_info
    folder = Path(os.environ["BENCH_STEPS"])
    fd = os.open(folder / f"{me.role}-{me.rank}-{os.getpid()}", os.O_CREAT | os.O_WRONLY)
    step = 0
    while not (folder / "stop").exists():
        time.sleep(PAUSE_S)
        step += 1
        os.pwrite(fd, step.to_bytes(8, "little"), 0)


def main(address: str, kind: str) -> dict[str, Any]:
    """Submit, kill, watch, end."""
    import ray
    from dlrover.python.unified.api.builder import DLJobBuilder
    from dlrover.python.unified.controller.api import PrimeMasterApi

    with tempfile.TemporaryDirectory(prefix="rolemesh-bench-") as folder:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
        build = DLJobBuilder().node_num(1).device_per_node(1).device_type("CPU").config({})
        build.global_env({"BENCH_STEPS": folder, "PYTHONPATH": os.environ["PYTHONPATH"]})
        build.no_setup_process_group().skip_node_check()
        if kind == "elastic":
            build.role("one").train("dlrover_kills.work").nnodes(1).nproc_per_node(2).resource(cpu=0.1).end()
        else:
            build.workload("one", "dlrover_kills.work").total(2).resource(cpu=0.1).end()
        build.workload("two", "dlrover_kills.work").total(2).resource(cpu=0.1).end()
        build.build().submit(f"bench-{os.getpid()}", blocking=False, master_cpu=1, master_memory=128)
        before = _until(lambda: len(pids := stepping(Path(folder))) == 4 and pids)
        if not before:
            sys.exit(f"4 workers did not step: {sorted(os.listdir(folder))}")
        os.kill(_master_pid() if kind == "master" else before["one-1"], signal.SIGKILL)
        killed = time.monotonic()
        if kind == "master":
            time.sleep(WATCH_S)
            seconds = None
        else:
            back = _until(lambda: stepping(Path(folder)).get("one-1", before["one-1"]) != before["one-1"])
            seconds = time.monotonic() - killed if back else None
            _until(lambda: len(stepping(Path(folder))) == 4)
        after = stepping(Path(folder))
        try:
            stage = str(PrimeMasterApi.get_status().stage)
        except Exception as error:
            stage = f"no answer ({type(error).__name__})"
        Path(folder, "stop").touch()
        return {
            "seconds": seconds,
            "restarted": sum(after.get(who) != pid for who, pid in before.items()),
            "stage": stage,
        }


def stepping(folder: Path) -> dict[str, int]:
    """The living workers that have finished a step: ``<role>-<rank>`` → pid."""
    found = {}
    for path in folder.glob("*-*-*"):
        who, _, pid = path.name.rpartition("-")
        if path.read_bytes() and Path(f"/proc/{pid}").exists():
            found[who] = int(pid)
    return found


def _until(condition: Any) -> Any:
    deadline = time.monotonic() + LIMIT_S
    while not (value := condition()) and time.monotonic() < deadline:
        time.sleep(0.002)
    return value


def _master_pid() -> int:
    from dlrover.python.unified.controller.api import MASTER_ACTOR_NAME
    from ray._private import state

    (found,) = [actor for actor in state.actors().values() if actor["Name"] == MASTER_ACTOR_NAME]
    return int(found["Pid"])


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1], sys.argv[2])), flush=True)
    os._exit(0)
