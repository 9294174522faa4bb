"""The processes of an environment under test, as the kit's process sees them: start, ask, kill."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from rolemesh_agents import Reward, Start, Task, ToolCall
from rolemesh_testing.children import Child, PluginRaised
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
    Raised,
    Reply,
    Request,
    Restore,
    Save,
    Saved,
    SetUp,
    Together,
)
from rolemesh_testing.workloads.listed import Listed
from rolemesh_testing.workloads.ranks import Stage

__all__ = ["SERVE", "Life", "Subject", "told"]

R = TypeVar("R", bound=Reply)
SERVE = "rolemesh_testing.environments.life"


class Subject(msgspec.Struct, frozen=True):
    """The environment under test: its import path, its options as in a job file, the job's folder, and a sandbox."""

    target: str
    options: dict[str, Any]
    base: str
    sandbox: Listed | None = None


class Life:
    """One process with the environment. Its methods raise `PluginRaised`, `PluginDied` or `Hung`."""

    def __init__(self, stage: Stage, subject: Subject) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="rolemesh-conformance-"))
        self._child = Child(stage)
        try:
            setup = SetUp(subject.target, subject.options, subject.base, str(self._folder), subject.sandbox)
            self._ask(setup, Done, "its constructor")
        except BaseException:
            self.close()
            raise

    def look(self, split: str, numbers: Sequence[int], seed: int) -> Looked:
        """Return the size of a split and its tasks with these numbers, those below the size."""
        return self._ask(Look(split, tuple(numbers), seed), Looked, f"size() and task() of {split!r}")

    def begin(self, task: Task, seed: int, episode: int = 0) -> Start:
        """Begin an episode."""
        return self._ask(Begin(episode, task, seed), Began, f"reset() with task {task.number}").start

    def act(self, action: Action, episode: int = 0) -> Answer:
        """Take an action."""
        return _answers(self._ask(_act(action, episode), Acted, told(action)))[0]

    def act_together(self, actions: Mapping[int, Action]) -> dict[int, Answer]:
        """Take an action in each of several episodes, at the same time."""
        acts = Together(tuple(_act(action, episode) for episode, action in actions.items()))
        found = _answers(self._ask(acts, Acted, "actions in several episodes at the same time"))
        return dict(zip(actions, found, strict=True))

    def judge(self, episode: int = 0) -> Reward:
        """Return the reward."""
        return self._ask(Judge(episode), Judged, "reward()").reward

    def save(self, episode: int = 0) -> bytes | None:
        """Return a snapshot; None if the environment has none."""
        return self._ask(Save(episode), Saved, "snapshot()").state

    def restore(self, state: bytes, episode: int = 0) -> None:
        """Make the episode from a snapshot."""
        self._ask(Restore(episode, state), Done, "restore()")

    def close_episode(self, episode: int = 0, *, unused: bool = False) -> None:
        """Close an episode. With `unused`, make one first that is never reset."""
        self._ask(Close(episode, unused), Done, "close()")

    def end(self) -> Ended:
        """Close everything, and return what is left."""
        return self._ask(End(), Ended, "close()")

    def kill(self) -> list[str]:
        """See `Child.kill`."""
        return self._child.kill()

    def close(self) -> None:
        """End the process, what it has started, and its temporary files."""
        self._child.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, request: Request, kind: type[R], doing: str) -> R:
        self._child.send(msgspec.msgpack.encode(request), doing)
        reply = msgspec.msgpack.decode(self._child.receive(doing), type=Reply)
        if isinstance(reply, Raised):
            raise PluginRaised(f"{doing} raised {reply.error}\n{reply.trace}")
        assert isinstance(reply, kind), f"the process answered {reply} to {request}"
        return reply

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
