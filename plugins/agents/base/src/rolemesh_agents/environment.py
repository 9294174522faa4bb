"""The API of an environment: tasks, and episodes in which a model works on one of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from rolemesh.api.plugin import Plugin
from rolemesh_agents.actions import Message, Tool, ToolCall
from rolemesh_agents.sandbox import Sandbox

__all__ = ["Environment", "Episode", "Observation", "Outcome", "Reward", "Start", "Task"]


class Task(msgspec.Struct, frozen=True):
    """One task of an environment: its number and split, and what `Environment.task` returned for them as `data`."""

    number: int
    data: Any
    split: Literal["train", "eval"] = "train"


class Start(msgspec.Struct, frozen=True):
    """The begin of an episode: the messages before the model's first turn, and the tools that it may call."""

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()


class Observation(msgspec.Struct, frozen=True):
    """The answer to one call of a tool. `done` ends the episode."""

    content: str
    done: bool = False


class Outcome(msgspec.Struct, frozen=True):
    """The answer to a turn without calls of tools: more messages, usually of the user. `done` ends the episode."""

    messages: Sequence[Message] = ()
    done: bool = True


class Reward(msgspec.Struct, frozen=True):
    """The reward of an episode, a finite number, and named parts of it for metrics.

    `success`: whether the task is solved; None if the environment cannot say.
    """

    value: float
    parts: Mapping[str, float] = {}
    success: bool | None = None


class Episode(ABC):
    """One attempt at one task. All methods may be ``def`` or ``async def``.

    The episode is deterministic: the same task, seed and actions have the same answers. rolemesh calls `reset` once,
    and then `hear`, `call` and `reply` in the order of the conversation. It calls no two methods of an episode at the
    same time.

    **Process.** A model's text may do anything to code that evaluates it. So each episode has a process of its own, a
    fork of the rank from `reset` on: one that hangs, dies or takes too much memory fails its conversation, and no other
    one. ``def`` methods run in the main thread of that process, and coroutines in an event loop there. No other episode
    sees what this one changes outside of itself, such as a counter of its environment. Connections, threads and
    devices that the environment has opened do not survive the fork: open them in `reset`, or see `own_process`.

    **Limits.** A coroutine that is late is cancelled. If a ``def`` method is late, the model gets told so, and the
    conversation fails if the method still runs at the limit of the next action. Then rolemesh kills the process.

    **Restoring.** rolemesh logs each answer before the model sees it. If the process of the episode dies, rolemesh
    makes a new episode. It calls `restore` with the last value of `snapshot`. If `snapshot` returns None, it calls
    `reset` and repeats the logged actions. rolemesh does not repeat the call of a tool that is not `repeatable`; the
    conversation then fails with this reason.

    **Errors.** An exception fails the conversation, because the model is not to blame for it. To tell the model of a
    mistake of its own, return it as the content of an `Observation`.
    """

    own_process: bool = True
    """False: the episode runs in the rank, in a thread of its own (its coroutines in the rank's event loop), because it
    shares live objects with others: a server, a connection, a GPU. It must then keep a model's text from harming the
    rank, for instance with `rolemesh_processes.judging`. A late ``def`` method cannot be ended there: it runs on."""

    writes: bool = False
    """True: the process of the episode may change all files of its user. Otherwise it changes only those below its
    temporary folder (`tempfile.gettempdir`) after `reset` or `restore`, once it gets the model's texts. It then writes
    at most 100 MB to each, and to the log of its rank. Files that are open, and threads and processes that run by then,
    may still change files. So may an episode with a sandbox: the model's code is in the sandbox."""

    sandbox: Sandbox | None = None
    """An open sandbox for this episode, if the role `environment` has the option `sandbox`; at `reset` its folder is
    empty, or as in the container's image. rolemesh closes it."""

    def image(self, task: Task) -> str:
        """Return the container image of the task's sandbox; "": the one of the sandbox's options."""
        return ""

    @abstractmethod
    def reset(self, task: Task, seed: int) -> Start:
        """Begin with `task`. All chance comes from `seed`."""

    def hear(self, content: str, calls: Sequence[ToolCall]) -> None:  # noqa: B027 (a hook for few)
        """Take note of a turn that calls tools, before `call` gets the first of its calls.

        `content`: the turn's text without the calls. `call` may then carry out all calls of the turn at the first one:
        rolemesh repeats the first call only if all tools of the turn are `repeatable`. A call that no turn of the model
        asked for, such as one of a program, comes without it.
        """

    def call(self, call: ToolCall) -> Observation:
        """Run one call of a tool. The name may be unknown, and the arguments may be wrong: tell the model."""
        return Observation(f"there is no tool {call.name!r}")

    def reply(self, content: str) -> Outcome:
        """Take a turn of the model that calls no tool. By default this ends the episode."""
        return Outcome()

    @abstractmethod
    def reward(self) -> Reward:
        """Judge the episode. rolemesh calls this once, when the episode is done or a limit has ended it."""

    def snapshot(self) -> bytes | None:
        """Return the whole state after the last action, for `restore`. None: restore by repeating the actions."""
        return None

    def restore(self, state: bytes) -> None:
        """Continue from a value of `snapshot`. Called instead of `reset`, in a new object."""
        raise NotImplementedError

    def close(self) -> None:  # noqa: B027 (a hook; most episodes hold nothing)
        """Release what the episode holds. Called once, also after errors."""


class Environment(Plugin, ABC):
    """Base of environments (entry-point group ``rolemesh.environments``): tasks, and episodes to work on them.

    Each rank that uses the environment has one object. Tasks are the same in all ranks.
    """

    @abstractmethod
    def size(self, split: Literal["train", "eval"]) -> int | None:
        """Return the number of tasks. None: there is a task for every number from 0 on."""

    @abstractmethod
    def task(self, split: Literal["train", "eval"], number: int, seed: int) -> Any:
        """Return the data of task `number`, below `size`: a JSON value. `Episode.reset` gets it as `Task.data`.

        `seed` is the job's: an environment that makes tasks up derives them from seed, split and number. No task is in
        both splits."""

    @abstractmethod
    def episode(self) -> Episode:
        """Return a new episode, before `reset`."""

    def close(self) -> None:
        """Release what the environment holds."""
