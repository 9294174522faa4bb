"""The processes of an engine with several (``tensor_parallel_size``), and their end. Imports vllm.

They are children of the rank and hold no state that is needed later. So they always end by SIGKILL: when the engine is
closed, one of them dies, or the rank does. Their shared memory has no name by then, or Python's resource tracker
removes it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import connection, resource_tracker
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, ClassVar

import torch
from vllm.v1.executor.multiproc_executor import MultiprocExecutor

import rolemesh_vllm.transfer  # noqa: F401 (a spawned worker knows the backend by this)
from rolemesh_vllm.engine_args import is_cpu_build
from rolemesh_vllm.invariant import make_batches_invariant

if is_cpu_build():
    from vllm.v1.worker.cpu_worker import CPUWorker as _PlatformWorker
else:
    from vllm.v1.worker.gpu_worker import Worker as _PlatformWorker

__all__ = ["RankExecutor", "RankWorker", "several_processes"]

PR_SET_PDEATHSIG = 1
DEATH_S = 0.2
"""Seconds after an error in which the death of a worker may show, because others may notice its consequences first."""
_TRACKER = """
import os, sys
if os.fork():
    os._exit(0)
os.setsid()
from multiprocessing.resource_tracker import main
main(int(sys.argv[1]))
"""


class RankWorker(_PlatformWorker):  # type: ignore[misc]
    """vLLM's worker for the platform, which dies with the rank."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        parent = multiprocessing.parent_process()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if parent is not None and os.getppid() != parent.pid:
            os._exit(1)
        # Whoever ends the rank's session waits for its children: there is nothing to put in order.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        _let_go_of_sockets()
        if is_cpu_build():
            make_batches_invariant()
        super().__init__(*args, **kwargs)

    def init_device(self) -> None:
        """As vLLM. On CPUs, remove the name of the memory for collectives, which all workers have mapped by then."""
        super().init_device()
        if is_cpu_build():
            for path in Path("/dev/shm").glob(f"{os.environ['VLLM_DIST_IDENT']}-*_{self.rank}"):
                path.unlink(missing_ok=True)


class RankExecutor(MultiprocExecutor):  # type: ignore[misc]
    """vLLM's executor. It kills its workers at once, and remembers which of them died by themselves."""

    start_method: ClassVar[str | None] = None
    _dead = ""

    def _init_executor(self) -> None:
        _start_tracker()
        if self.start_method is not None:
            os.environ["VLLM_WORKER_MULTIPROC_METHOD"] = self.start_method
        with self.deaths_named():
            super()._init_executor()

    @contextmanager
    def deaths_named(self) -> Iterator[None]:
        """Inside, errors caused by a worker's death become a `RuntimeError` that names the worker."""
        try:
            yield
        except Exception as error:
            if not getattr(self, "shutting_down", False):
                self._note_deaths([worker.proc for worker in getattr(self, "workers", None) or []], DEATH_S)
            if self._dead:
                raise RuntimeError(self._dead) from error
            raise

    def _ensure_worker_termination(self, worker_procs: list[BaseProcess]) -> None:
        """Kill the workers instead of requesting their end, because one whose peer is dead may wait in a collective
        forever."""
        self._note_deaths(worker_procs)
        for process in worker_procs:
            process.kill()
        for process in worker_procs:
            process.join()

    def _note_deaths(self, processes: list[BaseProcess], wait_s: float = 0.0) -> None:
        gone = connection.wait([process.sentinel for process in processes], wait_s)
        dying = [process for process in processes if process.sentinel in gone]
        for process in dying:
            process.join()  # what is still closing its files has no exit code yet
        dead = [
            # Worded as vLLM does, for whoever judges failures by their texts.
            f"Worker proc {process.name} (pid {process.pid}), one of the engine's {len(processes)}, died unexpectedly: "
            + _how(process.exitcode)
            for process in dying
        ]
        self._dead = self._dead or "; ".join(dead)


class ForkingExecutor(RankExecutor):
    """Forks workers on CPUs. vLLM would have each worker import everything again, which takes ten seconds."""

    start_method = "fork"


def several_processes() -> dict[str, Any]:
    """Return the engine arguments that select several `RankWorker`s. Call it before the number of torch's threads is
    set."""
    # A fork of a process in which OpenMP's threads have run hangs in the first loop that needs them.
    forks = is_cpu_build() and torch.get_num_threads() == 1
    return {
        "distributed_executor_backend": ForkingExecutor if forks else RankExecutor,
        "worker_cls": f"{RankWorker.__module__}.{RankWorker.__qualname__}",
    }


def _let_go_of_sockets() -> None:
    """Detach the connections that a fork inherited from the rank, so that they end when the rank closes them. The
    descriptors stay in use, because unused objects here may still close them."""
    nowhere = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                os.dup2(nowhere, int(name), inheritable=False)
    os.close(nowhere)


def _how(code: int | None) -> str:
    if code is None:
        return "this process has not seen how"
    if code >= 0:
        return f"exit code {code}; its last lines in this rank's log say why"
    name = signal.Signals(-code).name
    hint = " (memory ran out, or somebody sent it)" if -code == signal.SIGKILL else ""
    return f"killed by {name}{hint}"


def _start_tracker() -> None:
    """Start Python's resource tracker in a session of its own. It removes the shared memory of dead processes, so it
    must survive the kill of the rank's session and of the processes with the job's mark in their environment."""
    tracker = resource_tracker._resource_tracker
    if tracker._fd is not None:  # type: ignore[attr-defined]
        return
    read, write = os.pipe()
    try:
        subprocess.run(
            [sys.executable, "-I", "-S", "-c", _TRACKER, str(read)],
            pass_fds=[read],
            env={name: os.environ[name] for name in ("LD_LIBRARY_PATH",) if name in os.environ},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    finally:
        os.close(read)
    tracker._fd = write  # type: ignore[attr-defined]
