"""Conformance of a harness: the kit lets it hold scripted conversations, kills it between calls, and compares these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import ClassVar

import pytest
from pydantic import BaseModel

from rolemesh.plugins.discovery import PluginRecord
from rolemesh_testing.children import stage_of
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.harnesses.lives import SERVE, HarnessLife, HarnessSubject
from rolemesh_testing.harnesses.scripts import ODD, SCRIPTS, Script
from rolemesh_testing.harnesses.wire import Order, Talked
from rolemesh_testing.workloads.ranks import Stage

__all__ = ["HarnessConformance"]

AGAIN = 12
"""Conversations at the same time, and in one process, that the tests compare with single ones."""
ENDS = ("returned", "over")


class HarnessConformance(PluginConformance):
    """Subclass it with `plugin` and `options`. `scripts` are the conversations that the harness holds.

    The model and the environment follow scripts. The harness runs in a process of its own, like a rank of the role
    `agent`.
    """

    kind = "harnesses"
    scripts: ClassVar[Sequence[Script]] = SCRIPTS
    odd_scripts: ClassVar[Sequence[Script]] = ODD
    """Conversations in which the model takes turns that no model should take."""
    kills: ClassVar[int] = 6
    """Maximum number of calls of a conversation before which the kit kills the process."""

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def subject(self, record: PluginRecord, base: Path, checked_options: BaseModel) -> HarnessSubject:
        """The harness and its options."""
        return HarnessSubject(record.target, dict(self.options), str(base))

    @pytest.fixture
    def stage(self, record: PluginRecord, loaded: object, request: pytest.FixtureRequest) -> Stage:
        """The process from which the others are forked."""
        make = partial(stage_of, request, SERVE, (record.target.partition(":")[0],), self.timeout_s)
        return needed(request, "its modules cannot be imported", make)

    @pytest.fixture
    def start(
        self, stage: Stage, subject: HarnessSubject, request: pytest.FixtureRequest
    ) -> Iterator[Callable[[], HarnessLife]]:
        """``start()`` starts one more process with the harness."""
        lives: list[HarnessLife] = []

        def make() -> HarnessLife:
            lives.append(needed(request, "the harness cannot be set up", lambda: HarnessLife(stage, subject)))
            return lives[-1]

        yield make
        for life in lives:
            life.close()

    @pytest.fixture
    def life(self, start: Callable[[], HarnessLife]) -> HarnessLife:
        """A process with the harness."""
        return start()

    # ------------------------------------------------------------------------------------------------- conversations

    def test_it_holds_conversations_to_their_end(self, life: HarnessLife) -> None:
        """`run` returns or lets `EndReached` pass. Before that the model has had a turn."""
        for script in self.scripts:
            talked = _sound(script, life.hold(Order(script))[0])
            assert talked.samples, f"{script.name}: run() ends before the model's first turn"

    def test_turns_that_no_model_should_take_are_no_errors(self, life: HarnessLife) -> None:
        """An empty turn, an unknown tool or an unreadable call is the model's mistake. An exception would fail the
        conversation.
        """
        for script in self.odd_scripts:
            _sound(script, life.hold(Order(script))[0])

    def test_the_same_answers_have_the_same_calls(self, start: Callable[[], HarnessLife]) -> None:
        """A restarted rank runs the harness again, and recognizes its calls by their order and arguments."""
        one, other = start(), start()
        for script in (*self.scripts, *self.odd_scripts):
            first = one.hold(Order(script))[0].calls
            for life in (one, other):
                _same(script, "the second time", life.hold(Order(script))[0].calls, first)

    def test_a_killed_conversation_makes_the_same_calls_again(self, start: Callable[[], HarnessLife]) -> None:
        """SIGKILL comes between any two calls. Each next process begins from the beginning."""
        for script in self.scripts:
            calls = start().hold(Order(script))[0].calls
            for at in range(min(len(calls), self.kills)):
                made, _ = start().kill_at(Order(script), at)
                _same(script, f"killed before call {at}", made, calls[: len(made)])
            _same(script, "after kills", start().hold(Order(script))[0].calls, calls)

    def test_the_end_of_a_conversation_passes(self, life: HarnessLife) -> None:
        """A limit may end the conversation at any call, which raises `EndReached`. The harness makes no call after
        it.
        """
        for script in self.scripts:
            for at in range(len(life.hold(Order(script))[0].calls)):
                talked = _sound(script, life.hold(Order(script, over_at=at))[0])
                later = [call for call in talked.calls[at + 1 :] if not call.startswith('["judge"')]
                assert not later, f"{script.name}: after the end at call {at}, it makes the calls {later}"

    def test_a_failure_passes(self, life: HarnessLife) -> None:
        """`ConversationFailedError` means that rolemesh retries the conversation. A harness that hides it turns the
        failure into a reward.
        """
        for script in self.scripts:
            for at in range(len(life.hold(Order(script))[0].calls)):
                talked = life.hold(Order(script, fails_at=at))[0]
                how = f"{talked.ended} {talked.error}"
                assert talked.ended == "failed", f"{script.name}: a failure at call {at}, and run() has {how}"

    def test_the_tokens_of_the_model_stay_as_they_are(self, life: HarnessLife) -> None:
        """A harness neither writes into `Turn.ids` nor appends a turn of the model again."""
        for script in (*self.scripts, *self.odd_scripts):
            wrong = life.hold(Order(script))[0].wrong
            assert not wrong, f"{script.name}: {'; '.join(wrong)}"

    def test_conversations_at_the_same_time_are_independent(
        self, start: Callable[[], HarnessLife], life: HarnessLife
    ) -> None:
        """A rank holds many conversations with one harness."""
        scripts = [self.scripts[n % len(self.scripts)] for n in range(max(AGAIN, 2 * len(self.scripts)))]
        orders = [Order(script, number, seed=number) for number, script in enumerate(scripts)]
        alone = [life.hold(order)[0].calls for order in orders]
        together = start().hold(*orders)
        for script, one, other in zip(scripts, together, alone, strict=True):
            _same(script, "beside other conversations", _sound(script, one).calls, other)

    # --------------------------------------------------------------------------------------------------------- leaks

    def test_a_cancelled_conversation_ends(self, life: HarnessLife) -> None:
        """rolemesh cancels the conversations of a group that has failed. Their programs and tasks end with them."""
        script = self.scripts[-1]
        for at in range(len(life.hold(Order(script))[0].calls)):
            talked = life.hold(Order(script, cancelled_at=at))[0]
            assert talked.ended in (*ENDS, "cancelled"), f"{script.name}, cancelled: {talked.ended} {talked.error}"
        self._nothing_left(life)

    def test_nothing_is_left_after_close(self, life: HarnessLife) -> None:
        """No process, thread, task or temporary file outlives the harness."""
        for script in self.scripts:
            life.hold(*(Order(script, number) for number in range(3)))
        self._nothing_left(life)

    def _nothing_left(self, life: HarnessLife) -> None:
        left = life.end()
        assert not left.children, f"after close(), the processes {', '.join(left.children)} run on"
        assert not left.threads, f"after close(), {', '.join(left.threads)} runs on"
        assert not left.files, f"it leaves the temporary files {', '.join(left.files)}; remove what you write"

    def test_no_process_survives_a_kill(self, start: Callable[[], HarnessLife], life: HarnessLife) -> None:
        """A killed rank has no chance to close its conversations. Processes that it has started must end by
        themselves.

        Use ``PR_SET_PDEATHSIG``, or a pipe whose end they notice.
        """
        script = self.scripts[-1]
        calls = life.hold(Order(script))[0].calls
        _, left = start().kill_at(Order(script), min(1, len(calls) - 1))
        assert not left, f"after SIGKILL of its process, {', '.join(left)} runs on"


def _sound(script: Script, talked: Talked) -> Talked:
    """Return `talked`. Raises `AssertionError` if the conversation has not ended in good order."""
    assert talked.ended in ENDS, f"{script.name}: run() {talked.ended} {talked.error}"
    other = [text for text in talked.wrong if "tokens" not in text]
    assert not other, f"{script.name}: {'; '.join(other)}"
    return talked


def _same(script: Script, when: str, calls: Sequence[str], expected: Sequence[str]) -> None:
    for at, (one, other) in enumerate(zip(calls, expected, strict=False)):
        assert one == other, f"{script.name}, {when}: call {at} is {one[:300]}, and was {other[:300]}"
    assert len(calls) == len(expected), f"{script.name}, {when}: it makes {len(calls)} calls, and made {len(expected)}"
