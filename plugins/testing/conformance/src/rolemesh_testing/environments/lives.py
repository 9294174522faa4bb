"""The processes of an environment under test, as the kit's process sees them: start, ask, kill."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec
import psutil

from rolemesh_agents import Reward, Start, Task, ToolCall
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
from rolemesh_testing.hanging import Hung, Limit
from rolemesh_testing.workloads.listed import Listed
from rolemesh_testing.workloads.ranks import Stage

__all__ = ["GONE_S", "EnvironmentDied", "EnvironmentRaised", "Life", "Subject", "stage_for"]

R = TypeVar("R", bound=Reply)
SERVE = "rolemesh_testing.environments.life"
GONE_S = 5.0
"""Seconds in which the processes that an episode has started must end after the process of the episode was killed."""


class EnvironmentRaised(AssertionError):
    """The environment raised unexpectedly. The message contains its traceback."""


class EnvironmentDied(AssertionError):
    """The process of the environment ended before it answered."""


class Subject(msgspec.Struct, frozen=True):
    """The environment under test: its import path, its options as in a job file, the job's folder, and a sandbox."""

    target: str
    options: dict[str, Any]
    base: str
    sandbox: Listed | None = None


class _Preloaded(msgspec.Struct):
    preload: Sequence[str]
    env: Mapping[str, str]


def stage_for(preload: Sequence[str], timeout_s: float) -> Stage:
    """Start the process from which lives are forked. It imports `preload`, and has the variables of the workloads."""
    # As in the workloads `tasks` and `environment`: some packages iterate over sets of strings.
    return Stage(_Preloaded(("psutil", *preload), {"PYTHONHASHSEED": "0"}), None, timeout_s, SERVE)


class Life:
    """One process with the environment. Its methods raise `EnvironmentRaised`, `EnvironmentDied` or `Hung`."""

    def __init__(self, stage: Stage, subject: Subject) -> None:
        self._timeout_s = stage.timeout_s
        self._folder = Path(tempfile.mkdtemp(prefix="rolemesh-conformance-"))
        self._connection: Connection = stage.fork()
        self._process: psutil.Process | None = None
        try:
            self._process = psutil.Process(int(self._received("its start")))
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
        """Send SIGKILL to the process alone, and return its former descendants that run on after `GONE_S` seconds.

        The method then kills these, too.
        """
        if self._process is None:
            return []
        below: list[psutil.Process] = []
        with suppress(psutil.NoSuchProcess):
            below = self._process.children(recursive=True)
            self._process.kill()
        with suppress(psutil.Error):
            self._process.wait(10.0)
        self._process = None
        until = time.monotonic() + GONE_S
        while (alive := [each for each in below if _runs(each)]) and time.monotonic() < until:
            time.sleep(0.02)
        names = []
        for each in alive:
            with suppress(psutil.Error):
                names.append(" ".join(each.cmdline()) or each.name())
                each.kill()
        return names

    def close(self) -> None:
        """End the process, what it has started, and its temporary files."""
        self.kill()
        self._connection.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _ask(self, request: Request, kind: type[R], doing: str) -> R:
        try:
            self._connection.send_bytes(msgspec.msgpack.encode(request))
        except OSError:
            raise EnvironmentDied(f"the process had ended before {doing}") from None
        reply = msgspec.msgpack.decode(self._received(doing), type=Reply)
        if isinstance(reply, Raised):
            raise EnvironmentRaised(f"{doing} raised {reply.error}\n{reply.trace}")
        assert isinstance(reply, kind), f"the process answered {reply} to {request}"
        return reply

    def _received(self, doing: str) -> bytes:
        limit = Limit(self._process.pid if self._process is not None else 0, self._timeout_s)
        try:
            while (left := limit.left_s) > 0:
                if self._connection.poll(left):
                    return self._connection.recv_bytes()
        except (EOFError, OSError):
            raise EnvironmentDied(f"the process ended in {doing}; see its output") from None
        raise Hung(f"{doing} did not end within {self._timeout_s:g} s")

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


def _runs(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False
