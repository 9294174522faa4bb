"""The errors of agents, and the signal that ends a conversation."""

from __future__ import annotations

from rolemesh.errors import RolemeshError

__all__ = ["AgentError", "BreachError", "ConversationFailedError", "EndReached", "SandboxLostError"]


class AgentError(RolemeshError):
    """An environment, a sandbox or a harness cannot do what a conversation needs."""

    exit_code = 1


class ConversationFailedError(AgentError):
    """A conversation cannot go on, and the model is not to blame: a sandbox is gone, an environment has a bug, an
    action may not be repeated.

    The workload `agent` retries the conversation with a fresh environment, and then drops its group. It never makes a
    reward of zero of it.
    """


class BreachError(ConversationFailedError):
    """A conversation cannot go on, because a plugin or the rollout broke its contract.

    If nothing but that fails all tasks of a group, the job ends at once: a restart would change nothing.
    """


class SandboxLostError(AgentError):
    """A sandbox is gone with its content, and nobody has closed it: a process was killed, or memory ran out.

    rolemesh then begins the episode again in a new sandbox and restores it, as after the death of its rank.
    """


class EndReached(Exception):
    """The conversation is over: the environment is done, or a limit is reached.

    Methods of `rolemesh_agents.Conversation` raise it. A harness lets it pass.
    """
