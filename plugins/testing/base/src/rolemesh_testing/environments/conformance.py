"""Conformance of an environment: the kit plays episodes in processes, kills these, and compares the answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from random import Random
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from rolemesh.plugins.discovery import PluginRecord
from rolemesh_agents import Start, Task, ToolCall
from rolemesh_testing.children import stage_of
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.environments.drawing import drawn
from rolemesh_testing.environments.lives import SERVE, Life, Subject
from rolemesh_testing.environments.mistakes import mistaken_calls, mistaken_replies
from rolemesh_testing.environments.playing import Choose, Played, play, play_killed, play_together, repeatable, restored
from rolemesh_testing.environments.wire import Action, Answer
from rolemesh_testing.workloads.listed import listed
from rolemesh_testing.workloads.ranks import Stage

__all__ = ["EnvironmentConformance"]

ROLES = ("system", "developer", "user", "assistant", "tool")
AGAIN = 12
"""Episodes in one process that the tests for leaks compare with the first ones."""


class EnvironmentConformance(PluginConformance):
    """Subclass it with `plugin` and `options`, and with `act` for a model that does something useful.

    Each episode runs in a process of its own, like a rank of the role `environment`. A ``def`` method runs in another
    thread each time.
    """

    kind = "environments"
    seed: ClassVar[int] = 7
    """The job's seed."""
    sampled: ClassVar[int] = 20
    """Maximum number of tasks of a split that the tests look at. They play the first and the last of these."""
    turns: ClassVar[int] = 4
    """Number of actions of the default `act`."""
    preload: ClassVar[Sequence[str]] = ()
    """Modules to import before the kit forks the processes, such as a package that takes seconds."""
    sandbox: ClassVar[Mapping[str, Any] | None] = None
    """The sandbox that each episode gets, as in a job file: ``{"use": "guarded", "options": {...}}``."""

    def act(self, task: Task, start: Start, answers: Sequence[Answer], random: Random) -> Action | None:
        """Return the model's next action: a `ToolCall`, or the text of a turn without one. None: it takes no more.

        By default it calls repeatable tools at random with arguments that fit their schemas, and then replies.
        """
        tools = [tool for tool in start.tools if tool.repeatable]
        if len(answers) >= self.turns:
            return None
        if tools and len(answers) < self.turns - 1:
            tool = random.choice(tools)
            return ToolCall(tool.name, drawn(tool.parameters, random), f"call-{len(answers)}")
        return f"answer {len(answers)}"

    def effects(self, base: Path) -> int | None:
        """Return the number of effects outside of episodes so far, such as sent messages. None: there is nothing to
        count."""
        return None

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def subject(
        self, record: PluginRecord, base: Path, checked_options: BaseModel, request: pytest.FixtureRequest
    ) -> Subject:
        """The environment and its options."""
        used = {"sandboxes": [self.sandbox]} if self.sandbox is not None else {}
        boxes = needed(request, "its sandbox is not found", lambda: listed(used, base))
        return Subject(record.target, dict(self.options), str(base), boxes[0] if boxes else None)

    @pytest.fixture
    def stage(self, record: PluginRecord, loaded: Any, request: pytest.FixtureRequest) -> Stage:
        """The process from which the others are forked."""

        preload = (record.target.partition(":")[0], *self.preload)
        make = partial(stage_of, request, SERVE, preload, self.timeout_s)
        return needed(request, "its modules cannot be imported", make)

    @pytest.fixture
    def start(self, stage: Stage, subject: Subject, request: pytest.FixtureRequest) -> Iterator[Callable[[], Life]]:
        """``start()`` starts one more process with the environment."""
        lives: list[Life] = []

        def make() -> Life:
            lives.append(needed(request, "the environment cannot be made", lambda: Life(stage, subject)))
            return lives[-1]

        yield make
        for life in lives:
            life.close()

    @pytest.fixture
    def life(self, start: Callable[[], Life]) -> Life:
        """A process with the environment."""
        return start()

    @pytest.fixture
    def tasks(self, life: Life, request: pytest.FixtureRequest) -> Sequence[Task]:
        """The first sampled task of each split, and the last one of the training split."""

        def find() -> list[Task]:
            train, held = (self.look(life, split) for split in ("train", "eval"))
            assert train, "there is no task in the split train"
            return [train[0], *train[1:][-1:], *held[:1]]

        return needed(request, "no task is found", find)

    @pytest.fixture
    def choose(self) -> Choose:
        """`act`, with chance that depends on the task and the turn only."""

        def chosen(task: Task, start: Start, answers: Sequence[Answer]) -> Action | None:
            return self.act(task, start, answers, Random(f"{task.split} {task.number} {len(answers)}"))

        return chosen

    def look(self, life: Life, split: str, seed: int | None = None) -> list[Task]:
        """Return the sampled tasks of a split, as they travel: data is what JSON makes of it."""
        size = life.look(split, (), self.seed).size
        numbers = range(self.sampled) if size is None else range(0, size, max(1, size // self.sampled))
        found = life.look(split, tuple(numbers)[: self.sampled], self.seed if seed is None else seed)
        return [Task(*json.loads(text)) for text in found.tasks]

    # --------------------------------------------------------------------------------------------------------- tasks

    def test_it_has_tasks(self, life: Life) -> None:
        """`size` is a number, or None for a task of every number. There is at least one task to train on."""
        for split in ("train", "eval"):
            size = life.look(split, (), self.seed).size
            assert size is None or size >= 0, f"size({split!r}) is {size}"
            assert size != 0 or split == "eval", "there is no task to train on: size('train') is 0"

    def test_its_tasks_are_the_same_in_every_process(self, start: Callable[[], Life]) -> None:
        """The role with the tasks and the one with the environment have an object each. Tasks are JSON values."""
        one, other = start(), start()
        for split in ("eval", "train"):
            self.look(other, split)  # in another order: tasks do not depend on those that were made before
        for split in ("train", "eval"):
            found, again = self.look(one, split), self.look(other, split)
            assert found == again, f"the tasks of {split!r} differ between processes; derive them from seed and number"

    def test_no_task_is_in_both_splits(self, life: Life) -> None:
        """Held-out tasks must not be trained on. The test compares the sampled ones."""
        train, held = ({_json(task.data) for task in self.look(life, split)} for split in ("train", "eval"))
        if not held:
            pytest.skip("it has no held-out tasks")
        both = train & held
        assert not both, f"a task is in both splits: {min(both)[:300]}"

    # ------------------------------------------------------------------------------------------------------ episodes

    def test_its_begin_can_be_shown_to_a_model(self, life: Life, tasks: Sequence[Task]) -> None:
        """Chat templates take messages with a role and a text, and tools with a name, a description and a JSON
        schema."""
        for task in tasks:
            start = life.reset(task, self.seed)
            assert start.messages, "the begin has no message"
            for message in start.messages:
                assert message.get("role") in ROLES, f"{message} has no role of {', '.join(ROLES)}"
                assert isinstance(message.get("content"), (str, list)), f"{message} has no content"
            names = [tool.name for tool in start.tools]
            assert len({*names}) == len(names), f"two tools have one name: {', '.join(names)}"
            for tool in start.tools:
                assert tool.name.replace("-", "_").isidentifier(), f"{tool.name!r} is not a name of letters and digits"
                assert tool.description, f"the tool {tool.name} has no description"
                assert tool.parameters.get("type") == "object", f"the parameters of {tool.name} are no JSON object"
            life.close_episode()

    def test_the_same_actions_have_the_same_answers(
        self, start: Callable[[], Life], tasks: Sequence[Task], choose: Choose
    ) -> None:
        """This holds in another process, and after other episodes in the same one, in whatever order."""
        one, other = start(), start()
        first = []
        for task in tasks:
            first.append(play(one, task, self.seed, choose))
            one.close_episode()
        for life in (one, other):
            for task, played in reversed([*zip(tasks, first, strict=True)]):
                difference = play(life, task, self.seed, choose).differs(played)
                life.close_episode()
                assert not difference, f"the second time, {difference}"

    def test_a_killed_episode_continues_as_if_undisturbed(
        self, start: Callable[[], Life], life: Life, tasks: Sequence[Task], choose: Choose
    ) -> None:
        """SIGKILL comes between any two turns. Another process restores the snapshot, or repeats the actions."""
        kills = 0
        for task in tasks[:2]:
            undisturbed = play(life, task, self.seed, choose)
            killed, count = play_killed(start, task, self.seed, choose)
            difference = killed.differs(undisturbed)
            assert not difference, f"after kills between all turns, {difference}"
            kills += count
            life.close_episode()
        assert kills, "no episode can be restored after its begin"

    def test_an_action_that_is_not_repeatable_is_done_once(
        self, start: Callable[[], Life], life: Life, tasks: Sequence[Task], choose: Choose, base: Path
    ) -> None:
        """A restored episode has not repeated its effects. `effects` of the test class counts them."""
        if (before := self.effects(base)) is None:
            pytest.skip("the test class has no effects(), so nothing is known of what its tools do outside")
        undisturbed = play(life, tasks[0], self.seed, choose)
        calls = [action for action in undisturbed.actions if not repeatable(undisturbed, action)]
        assert calls, "act() calls no tool that is declared as not repeatable"
        between = self.effects(base)
        play_killed(start, tasks[0], self.seed, choose)
        after = self.effects(base)
        assert before is not None
        assert between is not None
        assert after is not None
        assert after - between == between - before, (
            f"an undisturbed episode had {between - before} effects, and one with kills {after - between}; "
            "restore() must not do again what a tool has done"
        )

    def test_a_snapshot_changes_nothing(self, life: Life, tasks: Sequence[Task], choose: Choose) -> None:
        """rolemesh takes a snapshot after every answer."""
        undisturbed = play(life, tasks[0], self.seed, choose)
        life.close_episode()
        difference = play(life, tasks[0], self.seed, choose, save=True).differs(undisturbed)
        assert not difference, f"with a snapshot before each action, {difference}"

    def test_a_snapshot_can_be_restored_twice(
        self, start: Callable[[], Life], life: Life, tasks: Sequence[Task], choose: Choose
    ) -> None:
        """The process may die again after it has restored the episode, and taken its next action."""
        undisturbed = play(life, tasks[0], self.seed, choose)
        life.close_episode()
        half = len(undisturbed.actions) // 2
        before = play_without_end(life, tasks[0], self.seed, undisturbed, half)
        if (state := life.save()) is None:
            pytest.skip("it has no snapshots")
        for _ in range(2):
            other = start()
            restored(other, tasks[0], self.seed, before, state)
            answers = [other.act(action) for action in undisturbed.actions[half:]]
            whole = Played(before.start, undisturbed.actions, (*before.answers, *answers), other.judge())
            difference = whole.differs(undisturbed)
            assert not difference, f"restored after {half} actions, {difference}"

    def test_its_reward_is_finite_wherever_the_episode_ends(
        self, life: Life, tasks: Sequence[Task], choose: Choose
    ) -> None:
        """A limit on turns, tokens or time may end an episode after any action, also before the first one."""
        whole = play(life, tasks[0], self.seed, choose)
        life.close_episode()
        for most in range(len(whole.actions)):
            play(life, tasks[0], self.seed, choose, most=most)
            life.close_episode()

    def test_episodes_at_the_same_time_are_independent(
        self, start: Callable[[], Life], life: Life, tasks: Sequence[Task], choose: Choose
    ) -> None:
        """A rank holds many episodes. Their methods run in several threads."""
        alone = []
        for task in tasks:
            alone.append(play(life, task, self.seed, choose))
            life.close_episode()
        together = play_together(start(), [*tasks, *tasks], self.seed, choose)
        for one, other in zip(together, [*alone, *alone], strict=True):
            difference = one.differs(other)
            assert not difference, f"beside other episodes, {difference}"

    def test_mistakes_of_the_model_are_answers(self, life: Life, tasks: Sequence[Task]) -> None:
        """An exception would fail the conversation, and the model would learn nothing of its mistake.

        Mistakes are unknown tools, missing and wrong arguments, and odd texts. Only tools that are `repeatable` are
        called.
        """
        start = life.reset(tasks[0], self.seed)
        mistakes: list[Action] = [*mistaken_calls(start.tools), *mistaken_replies()]
        for mistake in mistakes:
            if life.act(mistake).done:
                life.judge()
                life.close_episode()
                life.reset(tasks[0], self.seed)
        life.judge()

    def test_an_episode_closes_at_any_time(self, life: Life, tasks: Sequence[Task], choose: Choose) -> None:
        """Also before `reset`, after it, and without `reward`."""
        life.close_episode(unused=True)
        whole = play(life, tasks[0], self.seed, choose)
        life.close_episode()
        for most in range(len(whole.actions) + 1):
            play_without_end(life, tasks[0], self.seed, whole, most)
            life.close_episode()
        life.end()

    # --------------------------------------------------------------------------------------------------------- leaks

    def test_nothing_is_left_after_close(
        self, start: Callable[[], Life], tasks: Sequence[Task], choose: Choose
    ) -> None:
        """No process, thread, open file or temporary file outlives the environment, however many episodes it had."""
        few, many = start(), start()
        for life, count in ((few, 2), (many, AGAIN)):
            for _ in range(count):
                play(life, tasks[0], self.seed, choose)
                life.close_episode()
        one, other = few.end(), many.end()
        assert not other.children, f"after close(), the processes {', '.join(other.children)} run on"
        grown = [*other.threads]
        for thread in one.threads:  # a package may keep a pool, as long as it does not grow
            if thread in grown:
                grown.remove(thread)
        assert not grown, f"after {AGAIN} episodes there are the threads {', '.join(grown)}, not after two"
        opened = {*other.open_files} - {*one.open_files}
        assert not opened, f"after {AGAIN} episodes there are the open files {', '.join(sorted(opened))}, not after two"
        assert not other.files, f"it leaves the temporary files {', '.join(other.files)}; remove what you write"

    def test_no_process_survives_a_kill(self, life: Life, tasks: Sequence[Task], choose: Choose) -> None:
        """A killed rank has no chance to close its episodes. Processes that it has started must end by themselves.

        Use ``PR_SET_PDEATHSIG``, or a pipe whose end they notice.
        """
        play(life, tasks[0], self.seed, choose)
        left = life.kill()
        assert not left, f"after SIGKILL of its process, {', '.join(left)} runs on"


def play_without_end(life: Life, task: Task, seed: int, like: Played, most: int) -> Played:
    """Repeat the first `most` actions of an episode, and leave it open."""
    start = life.reset(task, seed)
    return Played(start, like.actions[:most], tuple(life.act(action) for action in like.actions[:most]))


def _json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
