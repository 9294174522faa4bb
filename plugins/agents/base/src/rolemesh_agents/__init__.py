"""Agents: what an environment, a sandbox and a harness are. Light, so that the driver may import it.

A job file lists plugins of the three kinds under ``plugins.environments``, ``plugins.sandboxes`` and
``plugins.harnesses``. The workloads `agent`, `environment` and `sandbox` of this distribution run them.
"""

from rolemesh.kinds import Kind
from rolemesh_agents.actions import Message, Tool, ToolCall
from rolemesh_agents.environment import Environment, Episode, Observation, Outcome, Reward, Start, Task
from rolemesh_agents.errors import AgentError, ConversationFailedError, EndReached, SandboxLostError
from rolemesh_agents.harness import Conversation, Harness, Turn
from rolemesh_agents.sandbox import Limits, Result, Sandbox
from rolemesh_agents.tools import ToolEpisode, tool

__all__ = ["ENVIRONMENTS", "HARNESSES", "SANDBOXES", "AgentError", "Conversation", "ConversationFailedError"]
__all__ += ["EndReached", "Environment", "Episode", "Harness", "Limits", "Message", "Observation", "Outcome", "Result"]
__all__ += ["Reward", "Sandbox", "SandboxLostError", "Start", "Task", "Tool", "ToolCall", "ToolEpisode", "Turn", "tool"]

ENVIRONMENTS = Kind(
    "environments",
    "environment",
    "rolemesh_agents:Environment",
    ("rank",),
    conformance="rolemesh_testing:EnvironmentConformance",
)
HARNESSES = Kind(
    "harnesses", "harness", "rolemesh_agents:Harness", ("rank",), conformance="rolemesh_testing:HarnessConformance"
)
SANDBOXES = Kind(
    "sandboxes",
    "sandbox",
    "rolemesh_agents.sandbox:Sandbox",
    ("rank",),
    conformance="rolemesh_testing:SandboxConformance",
)
