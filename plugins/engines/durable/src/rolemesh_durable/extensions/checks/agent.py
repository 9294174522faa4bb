"""The agent's part of checks: each check runs in a process of its own, one after the other, before ranks start.

``python -m rolemesh_durable.extensions.checks.agent FD`` is such a process. It reads an encoded `Order` from its
standard input, writes an encoded `Measured` to FD, and prints to ``checks-<agent>.log``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, cast

import msgspec

from rolemesh.api.import_ref import import_paths
from rolemesh.plugins.discovery import PluginRecord
from rolemesh.runs.jsonl import UNDECODABLE
from rolemesh_durable.checks import Check, CheckedNode
from rolemesh_durable.extensions.checks.messages import Measure, Measured, NodeMeasured
from rolemesh_durable.protocol.agent.part import AgentPart, AgentProcess
from rolemesh_durable.protocol.job import PluginUse
from rolemesh_durable.refusals import refused
from rolemesh_durable.resolved import load_exact

__all__ = ["NodeChecks"]

LAST_CHARS = 500
"""Number of characters of a dead process's output that are reported."""


class Order(msgspec.Struct, frozen=True):
    """Run this check here, by its name in the job. `base` is the job file's folder."""

    name: str
    check: PluginUse
    node: CheckedNode
    base: str


class NodeChecks(AgentPart):
    """Runs an agent's checks when the master asks for the first time, and reports the results when all have run."""

    def __init__(self, process: AgentProcess) -> None:
        super().__init__(process)
        config, job = process.config, process.config.job
        self._checks, self._base = job.checks, job.base
        self._node = CheckedNode(config.node, config.host, job.run_dir, str(process.folder), attempt=job.job_id)
        self._log = process.logs / f"checks-{config.agent}.log"
        self._environ = {**os.environ, **process.environ}
        self._begun = False
        self._found: NodeMeasured | None = None

    def messages(self) -> Mapping[type, Callable[[Any], None]]:
        """The master's order."""
        return {Measure: self._begin}

    def report(self) -> NodeMeasured | None:
        """The results."""
        return self._found

    def _begin(self, order: Measure) -> None:
        """Measure, in a thread of its own. A second order does nothing."""
        if not self._begun:
            self._begun = True
            threading.Thread(target=self._run, args=(order.together,), name="checks", daemon=True).start()

    def _run(self, together: tuple[str, ...]) -> None:
        node = msgspec.structs.replace(self._node, together=together)
        results = tuple(self._measured(Order(name, use, node, self._base)) for name, use in self._checks.items())
        self._found = NodeMeasured(results)

    def _measured(self, order: Order) -> Measured:
        """Return the result of one check. Any error is a failure of the check, because the node may be the cause."""
        name, timeout_s = order.name, float(order.check.options.get("timeout_s", 60.0))
        try:
            answer, why = self._ask(msgspec.json.encode(order), timeout_s)
        except OSError as error:
            return Measured(name, error=refused(error))
        try:
            return msgspec.json.decode(answer, type=Measured)
        except UNDECODABLE:
            return Measured(name, error=why)

    def _ask(self, order: bytes, timeout_s: float) -> tuple[bytes, str]:
        """Return the answer of the process, and how it ended."""
        read, write = os.pipe2(os.O_CLOEXEC)
        with open(read, "rb") as answers, self._log.open("ab") as log:
            begins = log.tell()
            try:
                process = subprocess.Popen(
                    [sys.executable, "-P", "-m", "rolemesh_durable.extensions.checks.agent", str(write)],
                    stdin=subprocess.PIPE, stdout=log, stderr=log, env=self._environ, pass_fds=[write],
                    start_new_session=True,
                )  # fmt: skip
            finally:
                os.close(write)
            try:
                process.communicate(order, timeout_s)
                how = f"its process ended with exit code {process.returncode}; {self._last(begins)}"
            except subprocess.TimeoutExpired:
                how = f"it took longer than timeout_s = {timeout_s:g} s"
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            os.set_blocking(read, False)  # what it has started may live, and hold the other end
            return answers.read() or b"", how

    def _last(self, begins: int) -> str:
        with self._log.open("rb") as log:
            log.seek(begins)
            said = log.read().decode(errors="replace").strip()
        return said[-LAST_CHARS:] or "it printed nothing"


def main() -> None:
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=Order)
    name = order.name
    try:
        import_paths(order.base)
        cls = load_exact(msgspec.convert(order.check.record, PluginRecord))
        options = cls.Options.model_validate(order.check.options, context={"base": order.base})
        values = cast("Check", cls(options)).measure(order.node)
        found = Measured(name, {str(key): float(value) for key, value in values.items()})
    except Exception as error:
        found = Measured(name, error=f"{type(error).__name__}: {error}")
    with open(int(sys.argv[1]), "wb") as answer:
        answer.write(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
