"""The beginning of an agent: its folders, its janitor, and the zygotes of the ranks that it starts with.

This module imports little. So the zygotes of a new agent start early, and import what ranks need while the agent
imports the rest of itself.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rolemesh.runs.run import RESULT_FILE
from rolemesh_durable.agent.zygote_pool import ZygotePool
from rolemesh_durable.protocol.starts import AgentConfig
from rolemesh_processes.guard import AgentGuard

if TYPE_CHECKING:
    from rolemesh_durable.agent.agent import Agent

__all__ = ["AgentHome", "start_agent"]


class AgentHome:
    """The folders, janitor and zygotes of one agent. `rows` are the ranks that an earlier incarnation left."""

    def __init__(self, config: AgentConfig) -> None:
        self.config = config
        hold_s, over = config.job.hold_s, str(Path(config.job.run_dir, RESULT_FILE))
        self.guard = AgentGuard(config.job.job_id, config.agent, config.incarnation, hold_s, over)
        self.logs = Path(config.job.run_dir, "logs")
        self.logs.mkdir(parents=True, exist_ok=True)
        self.zygotes = ZygotePool(self.logs, self.guard.mark, self.guard.tmp, hold_s)
        environments = config.job.environments
        self.rows = self.zygotes.adopt(config.incarnation, lambda role: environments[role].zygote)
        if not self.rows:
            self.guard.sweep()  # nothing lives but what nobody can command any more
        for role in config.warm:
            self.zygotes.boot(*environments[role].zygote)


def start_agent(
    config: AgentConfig, send: Callable[[bytes], None], revive: Callable[[], bool] = lambda: False
) -> Agent:
    """Start the zygotes of an agent, then return the agent; `send` and `revive` as in `Agent`.

    The caller's thread must live as long as the agent: with the thread that started it, a zygote dies until it is
    ready.
    """
    home = AgentHome(config)
    from rolemesh_durable.agent.agent import Agent  # with most of the engine: this takes as long as a zygote's start

    return Agent(home, send, revive)
