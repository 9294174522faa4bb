"""The processes of an environment under test, as the kit's process sees them: start, ask, kill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import msgspec

from rolemesh_agents import Reward, Start, Task, ToolCall
from rolemesh_testing.children import Child
from rolemesh_testing.environments.wire import (
    Act,
    Acted,
    Action,
    Answer,
    Began,
    Begin,
    Close,
    Done,
    End,
    Ended,
    Judge,
    Judged,
    Look,
    Looked,
    Reply,
    Restore,
    Save,
    Saved,
    SetUp,
    Together,
)
from rolemesh_testing.workloads.listed import Listed
from rolemesh_testing.workloads.ranks import Stage

__all__ = ["SERVE", "Life", "Subject", "told"]

SERVE = "rolemesh_testing.environments.life"


class Subject(msgspec.Struct, frozen=True):
    """The environment under test: its import path, its options as in a job file, the job's folder, and a sandbox."""

    target: str
    options: dict[str, Any]
    base: str
    sandbox: Listed | None = None


class Life(Child):
    """One process with the environment. Its methods raise `PluginRaised`, `PluginDied` or `Hung`."""

    replies: ClassVar[Any] = Reply

    def __init__(self, stage: Stage, subject: Subject) -> None:
        super().__init__(stage)
        setup = SetUp(subject.target, subject.options, subject.base, str(self._folder), subject.sandbox)
        self.begin(setup, Done, "its constructor")

    def look(self, split: str, numbers: Sequence[int], seed: int) -> Looked:
        """Return the size of a split and its tasks with these numbers, those below the size."""
        return self.ask(Look(split, tuple(numbers), seed), Looked, f"size() and task() of {split!r}")

    def reset(self, task: Task, seed: int, episode: int = 0) -> Start:
        """Begin an episode."""
        return self.ask(Begin(episode, task, seed), Began, f"reset() with task {task.number}").start

    def act(self, action: Action, episode: int = 0) -> Answer:
        """Take an action."""
        return _answers(self.ask(_act(action, episode), Acted, told(action)))[0]

    def act_together(self, actions: Mapping[int, Action]) -> dict[int, Answer]:
        """Take an action in each of several episodes, at the same time."""
        acts = Together(tuple(_act(action, episode) for episode, action in actions.items()))
        found = _answers(self.ask(acts, Acted, "actions in several episodes at the same time"))
        return dict(zip(actions, found, strict=True))

    def judge(self, episode: int = 0) -> Reward:
        """Return the reward."""
        return self.ask(Judge(episode), Judged, "reward()").reward

    def save(self, episode: int = 0) -> bytes | None:
        """Return a snapshot; None if the environment has none."""
        return self.ask(Save(episode), Saved, "snapshot()").state

    def restore(self, state: bytes, episode: int = 0) -> None:
        """Make the episode from a snapshot."""
        self.ask(Restore(episode, state), Done, "restore()")

    def close_episode(self, episode: int = 0, *, unused: bool = False) -> None:
        """Close an episode. With `unused`, make one first that is never reset."""
        self.ask(Close(episode, unused), Done, "close()")

    def end(self) -> Ended:
        """Close everything, and return what is left."""
        return self.ask(End(), Ended, "close()")


def _act(action: Action, episode: int) -> Act:
    return Act(episode, action) if isinstance(action, ToolCall) else Act(episode, None, action)


def _answers(acted: Acted) -> list[Answer]:
    found: list[Answer] = []
    for observation, outcome in zip(acted.observations, acted.outcomes, strict=True):
        answer = observation if observation is not None else outcome
        assert answer is not None
        found.append(answer)
    return found


def told(action: Action) -> str:
    """Return an action as messages of the kit name it."""
    if isinstance(action, ToolCall):
        return f"call() of {action.name!r} with {str(dict(action.arguments))[:200]}"
    return f"reply() to {action[:200]!r}"
