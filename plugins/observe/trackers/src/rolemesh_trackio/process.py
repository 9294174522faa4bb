"""Start the process that runs Trackio, and ask it."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import msgspec

from rolemesh_trackio.orders import Order

__all__ = ["Child"]


class Child:
    """The process. Its output is in the file `log`, and `folder` is Trackio's. With `has_server`, the order names a
    server, which Trackio would otherwise ignore beside the variable of a Space.

    It ends by itself when this process does. Raises OSError if it cannot be started.
    """

    def __init__(self, log: Path, folder: Path, has_server: bool = False) -> None:
        log.parent.mkdir(exist_ok=True)
        variables = {**os.environ, "TRACKIO_DIR": str(folder)}
        if has_server:
            variables.pop("TRACKIO_SPACE_ID", None)
        self._log = log
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "rolemesh_trackio.child"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=output,
                env=variables,
                start_new_session=True,
            )

    def ask(self, order: Order, limit_s: float) -> None:
        """Send an order, and wait for its answer. Raises OSError for an error, and after `limit_s` seconds."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(msgspec.json.encode(order) + b"\n")
        process.stdin.flush()
        ready, _, _ = select.select([process.stdout], [], [], limit_s)
        answer = process.stdout.readline() if ready else b""
        if not answer:
            raise OSError(f"Trackio has ended or does not answer; see {self._log}")
        if error := msgspec.json.decode(answer, type=str):
            raise OSError(f"Trackio: {error}")

    def close(self, limit_s: float) -> None:
        """Wait until the process has ended, and kill it after `limit_s` seconds."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                try:
                    pipe.close()
                except OSError:  # the process has ended before it read everything
                    continue
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
