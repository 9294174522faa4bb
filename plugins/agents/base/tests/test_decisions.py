"""The decisions of conversations, without processes: tokens, logs of actions, and rows."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rolemesh_agents import Reward
from rolemesh_agents.conversations.action_log import ActionLog, digest
from rolemesh_agents.conversations.results import RAGGED, Held, group_rows, unrolled
from rolemesh_agents.conversations.transcript import Transcript

TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=6)


@given(st.lists(st.tuples(TOKENS, TOKENS), max_size=4), TOKENS)
def test_a_transcript_keeps_every_token_and_marks_the_sampled_ones(
    turns: list[tuple[list[int], list[int]]], prompt: list[int]
) -> None:
    transcript = Transcript(prompt, [])
    tokens, mask = list(prompt), []
    for version, (context, sampled) in enumerate(turns):
        transcript.add_context(context)
        transcript.add_sampled(sampled, [-0.25] * len(sampled), [version] * len(sampled))
        tokens += [*context, *sampled]
        mask += [0] * len(context) + [1] * len(sampled)
        assert transcript.ids().tolist() == tokens
    row = transcript.row()
    assert [*row["prompt_ids"], *row["completion_ids"]] == tokens
    assert row["completion_mask"].tolist() == mask
    assert row["logprobs"].tolist() == [-0.25 * each for each in mask]
    assert all((version == -1) == (not each) for version, each in zip(row["weight_versions"], mask, strict=True))
    assert (len(transcript), transcript.sampled) == (len(tokens), sum(mask))


@given(st.lists(st.lists(st.integers(-2, 2**62), max_size=5), max_size=4))
def test_each_sampled_token_has_the_version_that_sampled_it(turns: list[list[int]]) -> None:
    transcript, versions, mask = Transcript([1], []), [], []
    for turn in turns:
        transcript.add_context([5])
        transcript.add_sampled([7] * len(turn), [-0.5] * len(turn), turn)
        versions += [-1, *turn]
        mask += [0] + [1] * len(turn)
        assert transcript.last() == [7] * len(turn)
    row = transcript.row()
    assert row["weight_versions"].tolist() == versions
    assert row["completion_mask"].tolist() == mask, "a version of -1 makes no sampled token one of the environment"


def test_a_sampled_token_takes_eight_bytes_of_memory() -> None:
    """A thousand conversations are open at once."""
    ids, logprobs, versions = np.arange(300), np.linspace(-1, 0, 300), np.full(300, 3)
    tracemalloc.start()
    try:
        made = [Transcript([1], []) for _ in range(50)]
        for _ in range(20):
            for transcript in made:
                transcript.add_context([5] * 20)
                transcript.add_sampled(ids, logprobs, versions)
        taken = tracemalloc.get_traced_memory()[0] / len(made) / 20
    finally:
        tracemalloc.stop()
    assert taken < 300 * 8 + 20 * 4 + 250


def test_a_row_says_how_its_tokens_were_sampled() -> None:
    transcript = Transcript([1], [])
    transcript.sampled_with({"temperature": 0.7, "seed": 1, "max_tokens": 5, "stop_token_ids": [2]})
    transcript.sampled_with({"temperature": 0.7, "seed": 2, "max_tokens": 4, "stop_token_ids": [2]})
    assert transcript.sampling == {"temperature": 0.7}
    transcript.sampled_with({"temperature": 0.2, "seed": 3})
    assert transcript.sampling == {"temperature": 0.2, "differs_by_turn": True}


def test_a_turn_without_a_log_probability_for_each_token_is_refused() -> None:
    with pytest.raises(ValueError, match="2 tokens, 1 log-probabilities and 2 versions"):
        Transcript([1], []).add_sampled([1, 2], [0.0], [0, 0])


def answer(content: str, state: bytes | None = None, seconds: float = 0.0) -> dict[str, object]:
    return {"content": content, "done": False, "state": state, "seconds": seconds}


def test_an_episode_is_restored_from_its_last_state_and_the_actions_after_it() -> None:
    log = ActionLog()
    log.begun(None)
    log.answered("call", {"name": "a"}, 1.0, True, answer("1"))
    assert [each.given["name"] for each in log.plan().actions] == ["a"]
    assert log.plan().state is None
    log.answered("call", {"name": "b"}, 1.0, True, answer("2", b"state"))
    assert log.plan() == type(log.plan())(b"state", ())
    log.answered("call", {"name": "c"}, 1.0, False, answer("3"))
    assert log.plan().state == b"state"
    assert log.plan().forbidden is not None
    assert log.plan().forbidden.given["name"] == "c"
    log.answered("call", {"name": "d"}, 1.0, True, answer("4", b"later"))
    assert log.plan().forbidden is None


def test_a_late_action_may_have_another_answer_when_it_is_repeated() -> None:
    log = ActionLog()
    log.begun(None)
    log.answered("call", {"name": "look"}, 1.0, True, {"content": "the tool look did not answer", "late": True})
    log.answered("call", {"name": "look"}, 1.0, True, {"content": "a river"})
    assert [bool(action.expected) for action in log.plan().actions] == [False, True]


def test_the_digest_of_an_answer_depends_on_its_words_only() -> None:
    assert digest(answer("1", None, 0.5)) == digest(answer("1", b"x", 0.7))
    assert digest(answer("1")) != digest(answer("2"))


def talked(*tokens: int) -> Transcript:
    transcript = Transcript([7], [{"role": "user", "content": "?"}], str(tokens))
    transcript.add_sampled(tokens, [-1.0] * len(tokens), [3] * len(tokens))
    return transcript


def test_a_conversation_with_several_samples_is_one_row_that_unrolls_into_several() -> None:
    held = [
        Held([talked(1), talked(2, 3)], Reward(1.0), "finished", "", 2),
        Held([talked(4)], Reward(0.0), "truncated", "turns", 1),
    ]
    rows = group_rows(held, index=5, group=9, kind="group")
    assert rows.rows == 2
    assert [row.tolist() for row in rows["completion_ids"]] == [[2, 3], [4]]
    assert rows["ended"] == ["finished", "truncated"]
    samples = unrolled(rows)
    assert [row.tolist() for row in samples["completion_ids"]] == [[1], [2, 3], [4]]
    assert samples["advantage"].tolist() == [1, 1, -1]
    assert samples["group"].tolist() == [9, 9, 9]
    assert {samples[name].values.dtype for name in RAGGED} == {np.dtype(t) for t in ("i4", "u1", "f4", "i8")}
    assert unrolled(samples) == samples
    assert unrolled(rows[:0]).rows == 0
