"""Plays episodes: undisturbed, with a kill between any two turns, and several at the same time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import msgspec

from rolemesh_agents import Reward, Start, Task, ToolCall
from rolemesh_testing.environments.lives import Life, told
from rolemesh_testing.environments.wire import Action, Answer

__all__ = ["Choose", "Played", "play", "play_killed", "play_together", "repeatable", "restored"]

Choose: TypeAlias = Callable[[Task, Start, Sequence[Answer]], Action | None]
"""Returns the model's next action, or None if it takes no more. The same arguments have the same result."""


class Played(msgspec.Struct, frozen=True):
    """A whole episode. Two episodes that are equal were equal in all their parts."""

    start: Start
    actions: tuple[Action, ...] = ()
    answers: tuple[Answer, ...] = ()
    reward: Reward | None = None

    def differs(self, other: Played) -> str:
        """Return the first difference from `other`, as a sentence; "" if there is none."""
        if _bytes(self.start) != _bytes(other.start):
            return f"the begin is {self.start}, and was {other.start}"
        for action, mine, its in zip(self.actions, self.answers, other.answers, strict=False):
            if _bytes(mine) != _bytes(its):
                return f"{told(action)} has the answer {mine}, and had {its}"
        if len(self.answers) != len(other.answers):
            return f"the episode has {len(self.answers)} actions, and had {len(other.answers)}"
        return "" if _bytes(self.reward) == _bytes(other.reward) else f"it is {self.reward}, and was {other.reward}"


def play(
    life: Life, task: Task, seed: int, choose: Choose, episode: int = 0, *, most: int = 99, save: bool = False
) -> Played:
    """Play an episode to its end, or to `most` actions. With `save`, take a snapshot after each answer."""
    played = Played(life.reset(task, seed, episode))
    while len(played.actions) < most and (action := next_action(played, task, choose)) is not None:
        if save:
            life.save(episode)
        played = played_on(played, action, life.act(action, episode))
    return msgspec.structs.replace(played, reward=life.judge(episode))


def next_action(played: Played, task: Task, choose: Choose) -> Action | None:
    """Return the next action of an episode; None if it has ended."""
    if played.answers and played.answers[-1].done:
        return None
    return choose(task, played.start, played.answers)


def played_on(played: Played, action: Action, answer: Answer) -> Played:
    """Return the episode with one more action."""
    return Played(played.start, (*played.actions, action), (*played.answers, answer))


def repeatable(played: Played, action: Action) -> bool:
    """True if rolemesh may repeat an action. The call of a tool that does not exist has no effect."""
    tools = {tool.name: tool for tool in played.start.tools}
    return not isinstance(action, ToolCall) or action.name not in tools or tools[action.name].repeatable


def restored(life: Life, task: Task, seed: int, played: Played, state: bytes | None) -> None:
    """Bring an episode to its state after the logged actions, as rolemesh does in a new process.

    Raises `AssertionError` if the repeated actions have other answers.
    """
    if state is not None:
        life.restore(state)
        return
    again = Played(life.reset(task, seed))
    for action in played.actions:
        again = played_on(again, action, life.act(action))
    difference = again.differs(played)
    assert not difference, f"repeated in another process, {difference}"


def play_killed(start: Callable[[], Life], task: Task, seed: int, choose: Choose) -> tuple[Played, int]:
    """Play an episode, and kill its process after the begin and after each answer, before the next action.

    No kill comes after the call of a tool that is not repeatable, if the episode has no snapshot: the conversation
    could not go on. Returns the episode and the number of kills.
    """
    kills, life = 0, start()
    try:
        played = Played(life.reset(task, seed))
        while True:
            state = life.save()
            if state is not None or all(repeatable(played, action) for action in played.actions):
                life.close()
                kills, life = kills + 1, start()
                restored(life, task, seed, played, state)
            if (action := next_action(played, task, choose)) is None:
                return msgspec.structs.replace(played, reward=life.judge()), kills
            played = played_on(played, action, life.act(action))
    finally:
        life.close()


def play_together(life: Life, tasks: Sequence[Task], seed: int, choose: Choose) -> list[Played]:
    """Play an episode for each task in one process, all at the same time."""
    played = {n: Played(life.reset(task, seed, n)) for n, task in enumerate(tasks)}
    while True:
        chosen = {n: next_action(one, tasks[n], choose) for n, one in played.items()}
        actions = {n: action for n, action in chosen.items() if action is not None}
        if not actions:
            return [msgspec.structs.replace(one, reward=life.judge(n)) for n, one in played.items()]
        for n, answer in life.act_together(actions).items():
            played[n] = played_on(played[n], actions[n], answer)


def _bytes(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")
