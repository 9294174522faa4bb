"""Removes what a dead agent or master leaves on its node: run as a script, by path, without the kernel.

``python -I -S janitor.py MARKER DIR...`` detaches itself and waits for end of file on its standard input, whose other
end only its owner holds. That comes when the owner closes it or dies, however it dies. Then every process whose
environment holds MARKER is killed and the folders are removed.
"""

import os
import shutil
import signal
import sys
import time


def marked(marker: bytes) -> list[int]:
    """Processes that were started with `marker` (``NAME=value``) in their environment."""
    found = []
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/environ", "rb") as f:
                    if marker in f.read().split(b"\0"):
                        found.append(int(name))
            except OSError:
                continue
    return found


def sweep(marker: str, folders: list[str]) -> None:
    """Kill what carries `marker` until nothing does (5 seconds at most), then remove `folders`."""
    deadline = time.monotonic() + 5.0
    while marker and (pids := marked(marker.encode())) and time.monotonic() < deadline:
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        time.sleep(0.01)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def main() -> None:
    marker, folders = sys.argv[1], sys.argv[2:]
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    while os.read(0, 4096):
        pass
    sweep(marker, folders)


if __name__ == "__main__":
    main()
