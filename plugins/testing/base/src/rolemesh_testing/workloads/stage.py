"""A clean process with a workload's preloads that forks its ranks: ``python -m rolemesh_testing.workloads.stage``.

It stands for the zygote of a real job, so a preload that does not survive a fork shows here. Each request comes with
the descriptor of the new process's connection and, for rank 0 of a group, of the socket on which the group meets. The
processes call ``serve`` of the module that the command line names.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from importlib import import_module
from multiprocessing.connection import Connection

import msgspec

from rolemesh_processes.beginning import die_with_parent
from rolemesh_processes.openmp import end_threads

__all__ = ["Started"]


class Started(msgspec.Struct, frozen=True):
    """The stage's first message, after the imports of its preloads: its running threads, and whether CUDA is
    initialised.
    """

    threads: tuple[str, ...]
    cuda: bool


def main() -> None:
    die_with_parent(int(sys.argv[2]))
    control = socket.socket(fileno=int(sys.argv[1]))
    for module in sys.argv[4:]:
        import_module(module)
    serve = import_module(sys.argv[3]).serve
    torch = sys.modules.get("torch")
    cuda = torch is not None and torch.cuda.is_initialized()
    threads = tuple(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
    end_threads()
    control.send(msgspec.msgpack.encode(Started(threads, cuda)))
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # ranks are reaped by the system
    while True:
        data, fds, _, _ = socket.recv_fds(control, 16, 2)
        if not data:
            os._exit(0)  # what the preloads do at exit is nothing that anybody waits for
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            parent = os.getppid()
            os.setsid()
            die_with_parent(parent)
            control.close()
            serve(Connection(fds[0]), fds[1] if len(fds) > 1 else None)
        for fd in fds:
            os.close(fd)


if __name__ == "__main__":
    main()
