"""For backends: the objects that start a job's master and agents, watch them, and clean up after them.

A backend implements `rolemesh_durable.backends.Backend`. It gives each process a `MasterConfig` or an `AgentConfig`,
and runs `Master` or the agent of `start_agent` there. `Restarts` says when a master that has died starts again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rolemesh_durable.api import importer, names

if TYPE_CHECKING:
    from rolemesh_durable.agent.agent import Agent as Agent
    from rolemesh_durable.agent.home import start_agent as start_agent
    from rolemesh_durable.carried import taken_up as taken_up
    from rolemesh_durable.hosting.giving_up import give_up as give_up
    from rolemesh_durable.hosting.restarts import Restarts as Restarts
    from rolemesh_durable.hosting.start import await_master as await_master
    from rolemesh_durable.malformed import UNREADABLE as UNREADABLE
    from rolemesh_durable.malformed import Dropped as Dropped
    from rolemesh_durable.master.master import Master as Master
    from rolemesh_durable.protocol.launcher import AgentPlace as AgentPlace
    from rolemesh_durable.protocol.launcher import AgentStart as AgentStart
    from rolemesh_durable.protocol.launcher import Lost as Lost
    from rolemesh_durable.protocol.launcher import Received as Received
    from rolemesh_durable.protocol.master_config import MasterConfig as MasterConfig
    from rolemesh_durable.protocol.master_config import agent_start as agent_start
    from rolemesh_durable.protocol.starts import AgentConfig as AgentConfig

_HOMES = {
    "agent.agent": "Agent",
    "agent.home": "start_agent",
    "carried": "taken_up",
    "hosting.giving_up": "give_up",
    "hosting.restarts": "Restarts",
    "hosting.start": "await_master",
    "malformed": "UNREADABLE Dropped",
    "master.master": "Master",
    "protocol.master_config": "MasterConfig agent_start",
    "protocol.launcher": "AgentPlace AgentStart Lost Received",
    "protocol.starts": "AgentConfig",
}
__all__ = names(_HOMES)
__getattr__ = importer(__name__, _HOMES)
