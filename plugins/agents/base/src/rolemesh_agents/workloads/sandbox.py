"""The workload `sandbox`: a role with sandboxes, for harnesses and operators that want one without an environment."""

from __future__ import annotations

import shutil
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from pydantic import BaseModel, Field

from rolemesh.api.service import service
from rolemesh.api.workload import RankContext, Workload
from rolemesh_agents.episodes.worker import Worker
from rolemesh_agents.sandbox import Limits, Sandbox
from rolemesh_agents.workloads.environment import EPISODES
from rolemesh_agents.workloads.listed import check_listed, listed_name
from rolemesh_agents.workloads.trial import try_sandbox

if TYPE_CHECKING:
    from rolemesh.job.prepared import CheckedJob

__all__ = ["SandboxOptions", "SandboxWorkload"]

OPEN_S = 120.0
GRACE_S = 30.0
"""Seconds on top of a command's limit until the sandbox counts as stuck."""


class SandboxOptions(BaseModel, extra="forbid"):
    """Options of the workload `sandbox`."""

    sandbox: str | None = Field(None, description="name of a sandbox under plugins.sandboxes; null: the only one")
    limits: Limits = Field(default=Limits(), description="limits of the commands")


class _Open:
    """One open sandbox: its folder, and the thread in which all its methods run."""

    def __init__(self, sandbox: Sandbox, folder: Path, step: int) -> None:
        self.sandbox, self.folder, self.step = sandbox, folder, step
        self.worker = Worker()

    def close(self) -> None:
        self.sandbox.close()
        shutil.rmtree(self.folder, ignore_errors=True)
        self.worker.close()


class SandboxWorkload(Workload):
    """Runs commands for other roles. Each session has a sandbox of its own, which its first call opens.

    The content of a sandbox is lost with its rank: the caller gets a `SessionLostError`.
    """

    Options = SandboxOptions
    options: SandboxOptions
    deterministic = True

    @classmethod
    def check_flow(cls, options: SandboxOptions, role: str, job: CheckedJob) -> None:
        """See `Workload.check_flow`: the job file must list the sandbox."""
        check_listed(job, "sandboxes", options.sandbox, "sandbox")

    def setup(self, ctx: RankContext) -> None:
        """See `Workload.setup`."""
        self._ctx = ctx
        self._open: dict[str, _Open] = {}
        self._name = listed_name(ctx.plugins, "sandboxes", self.options.sandbox)
        try_sandbox(ctx, self._name, self.options.limits)

    @service(concurrency=EPISODES, recorded=True)
    async def run(self, command: str | list[str], stdin: str = "", seconds: float | None = None) -> dict[str, Any]:
        """Run a command; see `Sandbox.run`. Returns the fields of a `Result`."""
        found = await self._opened()
        limit = (seconds or self.options.limits.seconds) + GRACE_S
        result = await found.worker.run(limit, lambda: found.sandbox.run(command, stdin=stdin, seconds=seconds))
        return dict(msgspec.to_builtins(result))

    @service(concurrency=EPISODES, recorded=True)
    async def cell(self, code: str, seconds: float | None = None) -> dict[str, Any]:
        """Run Python code; see `Sandbox.cell`. Returns the fields of a `Result`."""
        found = await self._opened()
        limit = (seconds or self.options.limits.seconds) + GRACE_S
        result = await found.worker.run(limit, lambda: found.sandbox.cell(code, seconds=seconds))
        return dict(msgspec.to_builtins(result))

    @service(concurrency=EPISODES)
    async def close(self) -> None:
        """Close the sandbox of this session, if there is one."""
        found = self._open.pop(self._session, None)
        if found is not None:
            await found.worker.run(OPEN_S, found.close)

    def committed(self, step: int) -> None:
        """See `Workload.committed`. Close the sandboxes that no caller can come back to."""
        for session in [session for session, each in self._open.items() if each.step <= step]:
            threading.Thread(target=self._open.pop(session).close, daemon=True).start()

    def teardown(self) -> None:
        """See `Workload.teardown`. Close everything."""
        for each in self._open.values():
            each.close()
        self._open.clear()

    @property
    def _session(self) -> str:
        by = self._ctx.called_by
        return by.session if by is not None else ""

    async def _opened(self) -> _Open:
        found = self._open.get(self._session)
        if found is None:
            ctx, by = self._ctx, self._ctx.called_by
            folder = Path(tempfile.mkdtemp(prefix="sandbox-", dir=ctx.tmp_dir))
            sandbox: Sandbox = ctx.plugins["sandboxes", self._name]()
            found = self._open[self._session] = _Open(sandbox, folder, by.step if by is not None else 0)
            await found.worker.run(OPEN_S, sandbox.open, folder, self.options.limits)
        return found
