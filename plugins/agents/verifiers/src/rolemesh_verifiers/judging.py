"""The reward of an episode that verifiers has judged. A failure is an error, never a reward. Pure."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from types import FrameType
from typing import Any

from rolemesh_agents import AgentError, Reward

__all__ = ["culprit", "hook_failed", "judged", "judged_state", "told"]

LIBRARIES = sys.stdlib_module_names | {"anyio", "httpx", "openai", "verifiers"}
"""Packages whose functions are no hooks of an environment."""

OUT_OF_TIME = ("timeout_reached", "timeout")
"""Stop conditions of environments whose own clock has ended a rollout."""


def judged(episode: Any, trace: Any, success: float | None) -> Reward:
    """Return the reward of `trace`, which is the model's in a judged `episode` of verifiers.

    Parts are the weighted rewards and the metrics. Raises `AgentError` if anything in the episode has failed, if its
    judgement is incomplete, and if the task has no reward at all.
    """
    if not episode.ok:
        errors = [*episode.errors, *(error for each in episode.traces for error in each.errors)]
        what = "; ".join(f"{error.type}: {error.message}" for error in errors[:1]) or "the episode has failed"
        raise AgentError(f"verifiers: {what}", remedy="see the log of this rank")
    if trace is None:
        raise AgentError("the environment has let the model play no part", remedy="look at the option `agent`")
    if trace.is_timeout:
        raise AgentError(
            f"verifiers: {trace.stop_condition}", remedy="raise the agent's timeout in config, or the task's own"
        )
    missing = [name for name, reward in trace.rewards.items() if reward is None]
    if missing:
        raise AgentError(f"verifiers has not computed the reward {missing[0]}", remedy="see the log of this rank")
    if not trace.rewards:
        remedy = "name a function in config: taskset: {task: {rewards: {name: {fn: module:function}}}}"
        raise AgentError("the task has no reward", remedy=remedy)
    parts = {name: float(value) for name, value in trace.metrics.items() if value is not None}
    parts |= {name: float(reward.value) for name, reward in trace.rewards.items()}
    value = float(trace.reward)
    return Reward(value, parts, success=None if success is None else value >= success)


def judged_state(state: Mapping[str, Any], failed: Sequence[AgentError], success: float | None) -> Reward:
    """Return the reward of a judged state of an environment with `load_environment()`.

    `failed`: what has failed unnoticed by verifiers. Parts are the values of all functions. Raises `AgentError` if the
    rollout or a reward function has failed.
    """
    error = state.get("error")
    if error is not None:
        known = isinstance(error, BaseException)
        raise hook_failed(error) if known else AgentError(f"verifiers: {error}", remedy="see the log of this rank")
    if state.get("timed_out") or state.get("stop_condition") in OUT_OF_TIME:
        remedy = "its clock also counts the model's time: raise its limit in `arguments`"
        raise AgentError("verifiers: the environment's own time limit has ended the rollout", remedy=remedy)
    if failed:
        raise failed[0]
    if state.get("reward") is None:
        raise AgentError("verifiers has not computed a reward", remedy="see the log of this rank")
    parts = {name: float(value) for name, value in (state.get("metrics") or {}).items()}
    value = float(state["reward"])
    return Reward(value, parts, success=None if success is None else value >= success)


def told(error: Any) -> str:
    """Return an error with its causes, in one line."""
    if not isinstance(error, BaseException):
        return str(error)
    said, seen = [], error
    while seen is not None and len(said) < 4:
        while isinstance(seen, BaseExceptionGroup):
            seen = seen.exceptions[0]
        said.append(f"{type(seen).__name__}: {seen}".removesuffix(": "))
        seen = seen.__cause__  # type: ignore[assignment]
    return ", because of ".join(said)


def hook_failed(error: BaseException) -> AgentError:
    """Return the failure of an episode in which a function of the environment has raised `error`."""
    hook, place = culprit(error)
    if hook is None:
        return AgentError(f"verifiers: {told(error)}{place}", remedy="see the log of this rank")
    what = f"the environment's {hook} has raised {told(error)}{place}"
    return AgentError(what, remedy="mend it; its traceback is in the log of this rank")


def culprit(error: BaseException) -> tuple[str | None, str]:
    """Return which function of an environment has raised `error`, and in which line.

    The function is the one that verifiers has called. None: the error is verifiers' own, or that of its client.
    """
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [at for at, (frame, _) in enumerate(frames) if _package(frame) == "rolemesh_verifiers"]
    frames = frames[own[-1] + 1 if own else 0 :]
    if not frames:
        return None, ""
    last, line = frames[-1]
    place = f" ({last.f_code.co_filename}:{line})"
    others = [frame for frame, _ in frames if _package(frame) not in LIBRARIES]
    return (others[0].f_code.co_qualname if others else None), place


def _package(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", "")).partition(".")[0]
