"""The results of conversations as rows of a batch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from rolemesh.api.batch import Batch, Ragged
from rolemesh_agents.actions import Message
from rolemesh_agents.conversations.transcript import Transcript
from rolemesh_agents.environment import Reward
from rolemesh_rewards.advantages import AdvantageKind
from rolemesh_rewards.advantages import group as advantages

__all__ = ["RAGGED", "Failed", "Held", "failed_row", "group_rows", "unrolled"]

RAGGED = ("prompt_ids", "completion_ids", "completion_mask", "logprobs", "weight_versions")
"""The columns with one value per token."""


class Held(msgspec.Struct, frozen=True):
    """A conversation that ended in good order or at a limit. `ended`: "finished" or "truncated"."""

    transcripts: Sequence[Transcript]
    reward: Reward
    ended: str
    reason: str
    turns: int

    @property
    def sampled(self) -> int:
        """The number of sampled tokens in all samples."""
        return sum(each.sampled for each in self.transcripts)


class Failed(msgspec.Struct, frozen=True):
    """A conversation that failed in all its attempts. `breach`: the last one because a contract was broken."""

    reason: str
    attempts: int
    remedy: str | None = None
    breach: bool = False


def group_rows(held: Sequence[Held], index: int, group: int, kind: AdvantageKind) -> Batch:
    """Return one row for each conversation of a group.

    The columns of tokens and `messages` are those of the sample of the conversation that was used last. `others` has
    its other samples, as mappings; see `unrolled`.
    """
    rewards = [each.reward.value for each in held]
    columns = _columns([_sample(each.transcripts[-1]) for each in held])
    count = len(held)
    return Batch(
        {
            **columns,
            "reward": np.array(rewards, np.float32),
            "advantage": advantages(rewards, kind=kind),
            "group": np.full(count, group, np.int64),
            "index": np.full(count, index, np.int64),
            "turns": np.array([each.turns for each in held], np.int64),
            "ended": [each.ended for each in held],
            "others": [[_sample(other) for other in each.transcripts[:-1]] for each in held],
        }
    )


def failed_row(failed: Failed, index: int, group: int) -> Batch:
    """Return the row of a conversation that failed: no tokens, `ended` "failed", NaN as reward and as advantage."""
    nothing = Held([Transcript([], [])], Reward(float("nan")), "failed", failed.reason, 0)
    return group_rows([nothing], index, group, "none")


def unrolled(rows: Batch) -> Batch:
    """Return one row for each sample of each conversation: those in `others` first. They have the conversation's other
    columns."""
    source, samples = [], []
    for row in range(rows.rows):
        last = {name: rows[name][row] for name in (*RAGGED, "messages", "sampling")}
        for sample in [*rows["others"][row], last]:
            source.append(row)
            samples.append(sample)
    shared = {name: _taken(rows[name], source) for name in rows if name not in (*RAGGED, "messages", "sampling")}
    return Batch({**_columns(samples), **shared, "others": [[] for _ in source]}, rows=len(source))


def _sample(transcript: Transcript) -> dict[str, Any]:
    messages: list[Message] = transcript.messages
    return {**transcript.row(), "messages": messages, "sampling": transcript.sampling}


def _columns(samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    types: dict[str, Any] = {"prompt_ids": np.int32, "completion_ids": np.int32, "completion_mask": np.uint8}
    types |= {"logprobs": np.float32, "weight_versions": np.int64}
    ragged = {name: Ragged.from_rows([each[name] for each in samples], types[name]) for name in RAGGED}
    return {**ragged, **{name: [each[name] for each in samples] for name in ("messages", "sampling")}}


def _taken(column: Any, rows: Sequence[int]) -> Any:
    return column[np.array(rows, np.int64)] if isinstance(column, np.ndarray) else [column[row] for row in rows]
