"""Decisions at the end of a conversation: is it finished, truncated or failed, and what is its reward? Pure."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Literal, TypeAlias

import msgspec

from rolemesh_agents import Reward
from rolemesh_gateway.exits import meaning
from rolemesh_gateway.programs import ProgramResult

__all__ = ["Failed", "RewardFrom", "Verdict", "explained", "verdict"]

RewardFrom: TypeAlias = Literal["environment", "exit", "stdout", "call"]
SHOWN = 500
"""Number of characters of stderr in the reason of a failure."""
FATAL = {
    "processes": "the program had more processes than its limit",
    "memory_mb": "the program took more memory than its limit",
    "disk_mb": "the folder of the program became larger than its limit",
    "guard": "the guard of the program was killed",
    "sandbox": "the sandbox of the program failed",
}
"""Ends of a program that fail its conversation, and how the reason begins."""
WRONG = (1,)
"""Exit statuses that mean a reward of 0."""


class Failed(msgspec.Struct, frozen=True):
    """The conversation has failed for a reason that is not the model's."""

    reason: str


class Verdict(msgspec.Struct, frozen=True):
    """The conversation is finished, or truncated for a reason. `reward`: None leaves it to the environment."""

    reward: Reward | None
    truncated: str = ""


def verdict(
    result: ProgramResult,
    source: RewardFrom,
    judged: Reward | None,
    over: bool,
    if_truncated: float | None,
    wrong: Collection[int] = WRONG,
) -> Verdict | Failed:
    """Judge a conversation whose program has ended.

    `judged`: the reward that the program has set. `over`: whether a limit of the conversation, or the environment,
    ended it before the program did. `if_truncated`: the reward of a truncated conversation that has none. `wrong`: the
    exit statuses that mean a reward of 0.
    """
    if result.ended in FATAL:
        return Failed(_crash(result))
    limit = "the program ran longer than its limit in seconds" if result.ended == "seconds" else ""
    stopped = bool(limit) or (over and result.ended == "asked")
    if source == "environment":
        return Failed(_crash(result)) if _crashed(result) and not over and not stopped else Verdict(None, limit)
    reward = judged if source == "call" else None if stopped else _judged(result, source, over, wrong)
    if reward is None and (stopped or over):
        if if_truncated is None:
            return Failed(f"the conversation was truncated before the program set its reward. {_tail(result)}")
        reward = Reward(if_truncated)
    if reward is None:
        missing = {"call": "set no reward", "stdout": "printed no number in its last line", "exit": "did not judge"}[
            source
        ]
        return Failed(f"the program {missing}: {_crash(result)}")
    return Verdict(reward, limit)


def explained(found: Verdict | Failed, result: ProgramResult, turns: int, missed: str) -> str:
    """Return the reason of a failure. `turns`: those of the model. `missed`: why the last request has no answer."""
    last = f"its last request for a turn has no answer: {missed}" if missed else ""
    if isinstance(found, Failed):
        return f"{found.reason} ({last})" if last else found.reason
    until = found.truncated or "the program ended"
    return f"{until}, without a turn of the model: {last or 'it sent no request for one'}. {_tail(result)}"


def _judged(result: ProgramResult, source: RewardFrom, over: bool, wrong: Collection[int]) -> Reward | None:
    """The reward that the exit status or the output gives. After an error of the gateway, only success counts."""
    if over and result.code != 0:
        return None
    return _printed(result) if source == "stdout" else _exited(result, wrong)


def _exited(result: ProgramResult, wrong: Collection[int]) -> Reward | None:
    """1 or 0 by the exit status; None if it says nothing of the model's work."""
    found = meaning(result.code, result.errors, wrong)
    return None if found == "failed" else Reward(float(found == "right"), success=found == "right")


def _printed(result: ProgramResult) -> Reward | None:
    if result.code != 0:
        return None
    lines = result.output.strip().splitlines()
    try:
        value = float(lines[-1]) if lines else math.nan
    except ValueError:
        return None
    return Reward(value) if math.isfinite(value) else None


def _crashed(result: ProgramResult) -> bool:
    return result.code != 0


def _crash(result: ProgramResult) -> str:
    if told := FATAL.get(result.ended):
        return told if result.ended == "guard" else f"{told}. {_tail(result)}"
    if result.code is None:
        return f"the harness ended the program. {_tail(result)}"
    how = f"signal {-result.code}" if result.code < 0 else f"exit status {result.code}"
    return f"the program ended with {how}. {_tail(result)}"


def _tail(result: ProgramResult) -> str:
    text = _shown(result.errors) or _shown(result.output)
    return f"Its last output: {text[-SHOWN:]}" if text else "It printed nothing."


def _shown(text: str) -> str:
    """Return a program's output without the characters that a terminal would obey."""
    return "".join(each for each in text if each.isprintable() or each in "\n\t").strip()
