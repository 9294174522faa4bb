"""The messages between the kit and a process with an environment, as structs for MessagePack. No behaviour here."""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from rolemesh_agents import Observation, Outcome, Reward, Start, Task, ToolCall
from rolemesh_testing.raising import Raised
from rolemesh_testing.workloads.listed import Listed

__all__ = ["Act", "Action", "Answer", "Begin", "Close", "Done", "End", "Ended", "Judge", "Look", "Looked"]
__all__ += ["Reply", "Request", "Restore", "Save", "Saved", "SetUp", "Together"]

Action: TypeAlias = ToolCall | str
"""A call of a tool, or a turn of the model without one."""
Answer: TypeAlias = Observation | Outcome


class SetUp(msgspec.Struct, frozen=True, tag=True):
    """Make the environment. `folder` is for temporary files; `sandbox` is the plugin that each episode gets."""

    target: str
    options: dict[str, Any]
    base: str
    folder: str
    sandbox: Listed | None = None


class Look(msgspec.Struct, frozen=True, tag=True):
    """Return the size of `split`, and its tasks with these numbers."""

    split: str
    numbers: tuple[int, ...]
    seed: int


class Begin(msgspec.Struct, frozen=True, tag=True):
    """Make the episode `episode`, and reset it."""

    episode: int
    task: Task
    seed: int


class Act(msgspec.Struct, frozen=True, tag=True):
    """Take an action in the episode."""

    episode: int
    call: ToolCall | None
    reply: str = ""


class Judge(msgspec.Struct, frozen=True, tag=True):
    """Return the reward of the episode."""

    episode: int


class Save(msgspec.Struct, frozen=True, tag=True):
    """Take a snapshot of the episode."""

    episode: int


class Restore(msgspec.Struct, frozen=True, tag=True):
    """Make the episode, and restore it from a snapshot."""

    episode: int
    state: bytes


class Close(msgspec.Struct, frozen=True, tag=True):
    """Close the episode. With `unused`, make one first and do not reset it."""

    episode: int
    unused: bool = False


class Together(msgspec.Struct, frozen=True, tag=True):
    """Take actions in several episodes at the same time."""

    acts: tuple[Act, ...]


class End(msgspec.Struct, frozen=True, tag=True):
    """Close all episodes and the environment, and report what is left."""


class Done(msgspec.Struct, frozen=True, tag=True):
    """The request is served, and has no result."""


class Looked(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Look`. Each task is the JSON text of its number, data and split."""

    size: int | None
    tasks: tuple[str, ...]


class Began(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Begin`."""

    start: Start


class Acted(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Act` and `Together`: for each action an observation or an outcome."""

    observations: tuple[Observation | None, ...]
    outcomes: tuple[Outcome | None, ...]


class Judged(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Judge`."""

    reward: Reward


class Saved(msgspec.Struct, frozen=True, tag=True):
    """The answer to `Save`."""

    state: bytes | None


class Ended(msgspec.Struct, frozen=True, tag=True):
    """The answer to `End`: the threads, processes, open files and written files that are left.

    `threads` counts all threads of Python, also daemons. Open files are those that were not open before the first
    episode.
    """

    threads: tuple[str, ...]
    children: tuple[str, ...]
    open_files: tuple[str, ...]
    files: tuple[str, ...]


Request: TypeAlias = SetUp | Look | Begin | Act | Judge | Save | Restore | Close | Together | End
Reply: TypeAlias = Done | Raised | Looked | Began | Acted | Judged | Saved | Ended
