"""The process of a plugin under test: its logging and its temporary folder, and the loop that answers requests."""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import NoReturn

from rolemesh_testing.leftovers import adopt_orphans

__all__ = ["prepare_process", "serve_requests"]


def prepare_process(folder: str) -> None:
    """Log to stdout, and let temporary files go to `folder`, which the kit removes also after a kill.

    Processes that the plugin detaches stay below this one.
    """
    adopt_orphans()
    logging.basicConfig(level=logging.INFO, stream=sys.stdout, format="%(levelname)s %(name)s: %(message)s")
    os.environ["TMPDIR"] = tempfile.tempdir = folder


def serve_requests(connection: Connection, answer: Callable[[bytes], bytes]) -> NoReturn:
    """Send this process's id, then the `answer` to each request, and end the process when the connection closes.

    An exception of `answer` is a fault of the kit: it is printed, and the process ends with the exit code 70.
    """
    code = 0
    try:
        connection.send_bytes(str(os.getpid()).encode())
        while True:
            connection.send_bytes(answer(connection.recv_bytes()))
    except (EOFError, OSError):
        pass
    except BaseException:
        traceback.print_exc()
        code = 70
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
