"""A rank of a pool: vLLM's own OpenAI server as a child process, which starts and ends with the rank."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.middleware.trustedhost import TrustedHostMiddleware

from rolemesh import Batch, RankContext, Split, operator

PR_SET_PDEATHSIG = 1
ROLES = {"prefill": "kv_producer", "decode": "kv_consumer"}


class Server:
    """`vllm serve` with the NixlConnector."""

    def __init__(self, ctx: RankContext, model: str, half: str, args: list[str], start_s: float = 300) -> None:
        """`half`: prefill or decode; `args`: arguments of ``vllm serve``; `start_s`: time limit of its start in
        seconds.
        """
        with socket.socket() as http, socket.socket() as side_channel:
            for reserved in (http, side_channel):
                # vLLM's sockets reuse addresses too, so they may listen on what these only hold.
                reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                reserved.bind(("127.0.0.1", 0))
            port = http.getsockname()[1]
            self.url = f"http://127.0.0.1:{port}"
            transfer = {"kv_connector": "NixlConnector", "kv_role": ROLES[half], "kv_load_failure_policy": "recompute"}
            command = [sys.executable, "-m", "vllm.entrypoints.launchers.api_server.entry"]
            command += [
                "--model",
                str((ctx.base / model).resolve()),
                "--host",
                "127.0.0.1",
                "--port",
                str(port),
                "--kv-transfer-config",
                json.dumps(transfer),
                "--middleware=servers.Loopback",
                *args,
            ]
            env = os.environ | {
                "PYTHONPATH": os.pathsep.join(filter(None, (str(Path(__file__).parent), os.environ.get("PYTHONPATH")))),
                "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1",
                "VLLM_NIXL_SIDE_CHANNEL_PORT": str(side_channel.getsockname()[1]),
            }
            self.process = subprocess.Popen(command, env=env, preexec_fn=_die_with_parent)
            self._wait(start_s)
        _free_cores(self.process.pid)

    @operator(returns=Split())
    def address(self) -> Batch:
        """Return one row with the server's address. Raises `RuntimeError` if the server has ended; the rank's restart
        starts it again.
        """
        if (code := self.process.poll()) is not None:
            raise RuntimeError(f"vLLM's server has ended with exit code {code}; its last words are in this rank's log")
        return Batch({"url": [self.url]})

    def teardown(self) -> None:
        self.process.send_signal(signal.SIGINT)
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.process.wait()

    def _wait(self, start_s: float) -> None:
        deadline = time.monotonic() + start_s
        while time.monotonic() < deadline:
            if (code := self.process.poll()) is not None:
                raise RuntimeError(f"vLLM's server did not start, exit code {code}; see this rank's log")
            with suppress(urllib.error.URLError, ConnectionError), urllib.request.urlopen(self.url + "/health"):
                return
            time.sleep(0.2)
        self.process.kill()
        raise RuntimeError(f"vLLM's server was not up within {start_s:g} s; see this rank's log")


class Loopback(TrustedHostMiddleware):
    """Refuses requests by other names than the router's. vLLM makes it without arguments."""

    def __init__(self, app: Any) -> None:
        super().__init__(app, ["127.0.0.1"])


def _die_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _free_cores(pid: int) -> None:
    """Undo a setting of NixlConnector on CPUs: it binds each engine's process to one core, the same one for every
    engine.
    """
    cores = os.sched_getaffinity(0)
    family = [pid]
    for one in family:
        for task in Path(f"/proc/{one}/task").iterdir():
            family += map(int, (task / "children").read_text().split())
            os.sched_setaffinity(int(task.name), cores)
