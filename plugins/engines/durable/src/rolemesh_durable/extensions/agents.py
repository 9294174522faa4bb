"""The extensions' parts of an agent's process, in the order in which it calls their hooks."""

from __future__ import annotations

from rolemesh_durable.extensions.checks.agent import NodeChecks
from rolemesh_durable.extensions.hangs.agent import StackTaker
from rolemesh_durable.extensions.rehearsal.agent import AgentInjector
from rolemesh_durable.extensions.replicas.agent import NodeCopies
from rolemesh_durable.extensions.signals.agent import Signaller
from rolemesh_durable.extensions.turns.agent import TurnPages
from rolemesh_durable.protocol.agent.part import AgentPart

__all__ = ["AGENT_PARTS"]

AGENT_PARTS: tuple[type[AgentPart], ...] = (TurnPages, NodeChecks, StackTaker, AgentInjector, NodeCopies, Signaller)
