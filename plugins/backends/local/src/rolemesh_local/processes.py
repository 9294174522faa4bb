"""The processes that the supervisor forks: a master, an agent.

This module imports all of both, so that a new process imports nothing.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from rolemesh.errors import PluginError
from rolemesh_durable.api.hosting import Agent, AgentConfig, Master, MasterConfig, start_agent
from rolemesh_durable.stores import JournalDamagedError
from rolemesh_local.launcher import LocalLauncher, agent_identity, agents_address
from rolemesh_local.messages import Link, Refuse, SupervisorStart, ToMaster
from rolemesh_local.question import master_comes
from rolemesh_local.relay import Relay
from rolemesh_processes.beginning import entitle
from rolemesh_processes.ending import disown_finalizers, end_program, flush_files

__all__ = ["run_agent", "run_master"]


def run_master(start: SupervisorStart, link: Link[ToMaster], folder: Path, attempt: int) -> int:
    """Control the job until it has ended, then end as an interpreter does, because observers may have exit handlers.

    The journal says whether there was a master before.
    """
    disown_finalizers()
    bundle = msgspec.msgpack.decode(start.bundle, type=MasterConfig)
    entitle(bundle.job.name, "master")
    launcher = LocalLauncher(bundle.job.job_id, start.nodes, folder, link)
    try:
        Master(bundle, launcher, folder).run()
    except (JournalDamagedError, PluginError) as error:
        link.send(Refuse(str(error)))
        raise
    end_program()
    flush_files()
    return 0


def run_agent(config: bytes, folder: Path) -> int:
    """Run an agent until the job is over on this node."""
    decoded = msgspec.msgpack.decode(config, type=AgentConfig)
    entitle(decoded.job.name, decoded.agent)
    relay = Relay(agents_address(folder), agent_identity(decoded.agent, decoded.incarnation))
    agent: Agent = start_agent(decoded, relay.send, lambda: master_comes(folder))
    relay.start(agent.deliver)
    agent.run()
    relay.stop()
    return 0
