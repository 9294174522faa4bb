"""`rolemesh view`: serve the pages until Ctrl-C."""

from __future__ import annotations

import gc
import html
import logging
import socket
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import typer
import uvicorn

from rolemesh.cli.arguments import RunsDir
from rolemesh.cli.output import print_text
from rolemesh.errors import RolemeshError
from rolemesh.runs.run import runs_folder
from rolemesh_facts.finding import readable_run
from rolemesh_view.guard import Access
from rolemesh_view.live import Live
from rolemesh_view.server import application, compile_templates, templates
from rolemesh_view.viewed import Runs

__all__ = ["command"]

COLLECT = 100_000, 20, 100
"""Thresholds of the garbage collector. Records become many small tuples without cycles: with the default thresholds,
the collector took half of the time of an answer."""

MOST_TOLD = 100
"""Maximum number of warnings about damaged lines."""
SWITCH_S = 0.001
"""Seconds after which the thread that reads records lets an answer go on. With Python's 5 ms, each file that an answer
reads cost it 5 ms while records of 10,000 ranks were read."""
GRACE_S = 2
"""Seconds that answers have to end when the viewer ends."""
SILENT_S = 60
"""Seconds without a sign of life after which the system closes a connection: that of a laptop that sleeps, for one."""

Job = Annotated[
    str, typer.Argument(metavar="[JOB|FOLDER]", help="A job's name, or a run's folder.", show_default="all jobs")
]


def command(
    job: Job = "",
    port: Annotated[int, typer.Option("--port", min=0, max=65535, help="The port; 0: any that is free.")] = 0,
    host: Annotated[str, typer.Option("--host", help="The address to listen on.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option("--allow-host", metavar="NAME", help="A host name by which a proxy leads here; repeatable."),
    ] = None,
    per_gpu_hour: Annotated[
        float, typer.Option("--gpu-hour-price", help="Price in any currency; 0: none.", metavar="PRICE")
    ] = 0.0,
    open_: Annotated[bool, typer.Option("--open/--no-open", help="Open the browser.")] = True,
    runs_dir: RunsDir = None,
) -> None:
    """Serve web pages about a job, or about all jobs of the runs folder, until Ctrl-C.

    The pages show running jobs, jobs that were killed, and folders that were copied from elsewhere. They ask a job's
    master only what its ranks do and which resizes it would refuse, and fetch nothing from other machines. The server
    refuses requests without the token of the printed address, and host names that are not its own. Each address opens
    one browser; then a new one is printed.

    Exit code: 0 after Ctrl-C, 2 if there is no such job or the address cannot be used.

    Examples:

      rolemesh view grpo

      rolemesh view copied/run --port 8080 --no-open

      rolemesh view --port 8080 --allow-host jobs.example.org
    """
    folder = runs_folder(runs_dir)
    chosen = readable_run(job, folder) if job else None
    listening = _listen(host, port)
    bound = listening.getsockname()[1]
    shown = f"[{host}]" if ":" in host else host
    path = f"/run/{quote(_name(chosen), safe='')}/overview" if chosen else "/"
    access, address = Access(), f"http://{shown}:{bound}{path}"
    _print_address(access, address)
    print_text("Ctrl-C ends the viewer, not the job")
    leading = _open_browser(access, address) if open_ else None
    live, hosts, runs = Live(), [host, socket.gethostname(), *(allow_host or ())], Runs(folder, chosen)
    threading.Thread(target=compile_templates, daemon=True, name="templates").start()
    if chosen:
        threading.Thread(target=_begin, args=(runs,), daemon=True, name="begin").start()
    templates().globals["price_per_gpu_hour"] = per_gpu_hour
    app = application(runs, access, cookie=f"rolemesh-view-{bound}", hosts=hosts, live=live)
    gc.set_threshold(*COLLECT)
    logging.getLogger("rolemesh.runs.jsonl").addFilter(_Once())
    sys.setswitchinterval(SWITCH_S)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=GRACE_S
    )
    try:
        _Server(config, live).run(sockets=[listening])
    finally:
        if leading is not None:
            leading.unlink(missing_ok=True)


def _print_address(access: Access, address: str) -> None:
    """Print an address that opens one browser, and another one when that is done."""
    print_text(f"{address}?token={access.link(lambda: _print_address(access, address))}")


def _open_browser(access: Access, address: str) -> Path:
    """Open the browser with a private file that leads to `address`, and return the file.

    All users of the machine can read the arguments of a browser in the list of processes, so no token may stand there.
    """
    handle, name = tempfile.mkstemp(prefix="rolemesh-view-", suffix=".html")  # of mode 0600
    path = Path(name)
    target = html.escape(f"{address}?token={access.link(lambda: path.unlink(missing_ok=True))}")
    with open(handle, "w", encoding="utf-8") as file:
        file.write(
            f'<!doctype html><meta http-equiv="refresh" content="0;url={target}"><a href="{target}">rolemesh view</a>'
        )
    webbrowser.open(path.as_uri())
    return path


def _begin(runs: Runs) -> None:
    """Begin to read the chosen run, which is the first one."""
    runs.all()[0].begin()


class _Once(logging.Filter):
    """Lets each message pass once: the pages of a job with a damaged line read it again and again."""

    def __init__(self) -> None:
        super().__init__()
        self._told: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        told = record.getMessage()
        if told in self._told or len(self._told) == MOST_TOLD:
            return False
        self._told.add(told)
        return True


class _Server(uvicorn.Server):
    """Ends the streams of pages first when it has to end, because it waits for all answers."""

    def __init__(self, config: uvicorn.Config, live: Live) -> None:
        super().__init__(config)
        self._live = live

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._live.close()
        await super().shutdown(sockets)


def _name(path: Path) -> str:
    return path.resolve().name


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens. Raises `RolemeshError` if the address cannot be used."""
    try:
        found = socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise RolemeshError(
            f"the viewer cannot listen on {host}:{port}: {error.strerror or error}",
            remedy="choose another port: `rolemesh view --port 0` takes any that is free",
        ) from error
    found.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # connections inherit these
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, SILENT_S // 2)
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, SILENT_S * 1000)
    return found
