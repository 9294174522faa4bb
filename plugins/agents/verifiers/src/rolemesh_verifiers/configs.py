"""The configuration of an environment of verifiers: which agent the model plays, and what the others are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from rolemesh.errors import OptionsError
from rolemesh_verifiers.options import VerifiersOptions

__all__ = ["configured", "import_verifiers"]

CHAT_LOOP = "rolemesh_verifiers"
"""The id of our harness: the package that exports it."""
PLAIN = ("null", CHAT_LOOP)
NO_LIMIT = 1e9
"""Seconds of the model's run for verifiers, whose clock also counts the time in which rolemesh restores a rank."""


def import_verifiers() -> Any:
    """Return the module `verifiers.v1`. Raises `OptionsError` if it is not installed."""
    try:
        import verifiers.v1
    except ImportError as error:
        remedy = "give the roles `tasks` and `environment` the package: runtime_env: {pip: [verifiers==0.4.0, …]}"
        raise OptionsError(f"verifiers cannot be imported: {error}", where="taskset", remedy=remedy) from error
    return verifiers.v1


def configured(options: VerifiersOptions, split: Literal["train", "eval"]) -> tuple[Any, str]:
    """Return verifiers' `EnvConfig` for a split, and the name of the agent that the model plays.

    Agents get the harness `rolemesh_verifiers` on this machine, unless `config` or the environment names another one.
    Raises `OptionsError` for settings that verifiers refuses, and if it is not clear which agent the model plays.
    """
    import_verifiers()
    from verifiers.v1.configs.agent import agent_config_fields
    from verifiers.v1.utils.loaders import resolve_env_config

    own = options.held_out if split == "eval" and options.held_out is not None else {}
    taskset = {**options.config.get("taskset", {}), **own, "id": options.taskset}
    try:
        config = resolve_env_config({**options.config, "taskset": taskset})
    except (ImportError, ValueError, TypeError, AttributeError) as error:
        remedy = (
            "install the taskset's package in the role, and look at its settings: rolemesh passes them on unchanged"
        )
        raise OptionsError(
            f"verifiers cannot load {options.taskset!r}: {error}", where="config", remedy=remedy
        ) from error
    agents = agent_config_fields(config)
    name = _played(agents, options.agent)
    given = {each: options.config.get(each, {}) for each in agents}
    update = {each: _agent(agent, given[each], each == name) for each, agent in agents.items()}
    return config.model_copy(update=update), name


def _played(agents: Mapping[str, Any], chosen: str | None) -> str:
    free = [name for name, agent in agents.items() if agent.client is None]
    if chosen is not None and chosen not in agents:
        raise OptionsError(
            f"the environment has no agent {chosen!r}", where="agent", remedy=f"it has {', '.join(agents)}"
        )
    others = [name for name in free if name != chosen]
    if (chosen is None and len(free) == 1) or (chosen is not None and not others):
        return chosen or free[0]
    remedy = "the model plays one: give each of the others a model and a client in config, as verifiers describes it"
    raise OptionsError(f"the agents without a client are: {', '.join(free) or 'none'}", where="agent", remedy=remedy)


def _agent(agent: Any, given: Mapping[str, Any], played: bool) -> Any:
    from verifiers.v1.runtimes import PrimeConfig, SubprocessConfig
    from verifiers.v1.utils.loaders import harness_config_type

    update: dict[str, Any] = {}
    if agent.harness is None or agent.harness.id in PLAIN:
        kept = {} if agent.harness is None else agent.harness.model_dump(exclude_unset=True)
        update["harness"] = harness_config_type(CHAT_LOOP).model_validate({**kept, "id": CHAT_LOOP})
    if "runtime" not in given and agent.runtime == PrimeConfig():
        update["runtime"] = SubprocessConfig()
    if played and agent.timeout.rollout is None:
        update["timeout"] = agent.timeout.model_copy(update={"rollout": NO_LIMIT})
    return agent.model_copy(update=update)
