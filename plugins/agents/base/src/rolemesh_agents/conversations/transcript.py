"""The tokens of a conversation as they are trained: sampled ones, and the environment's between them. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rolemesh_agents.actions import Message

__all__ = ["Transcript"]


_LIMITS = frozenset({"ignore_eos", "max_tokens", "seed", "stop", "stop_token_ids"})
"""Parameters that end a turn, or select one of its outcomes, and do not shape the distribution."""


class Transcript:
    """One prompt and its continuation. Tokens are only ever appended, so what was sampled stays what is trained."""

    __slots__ = ("_ids", "_logprobs", "_mask", "_prompt", "_versions", "messages", "name", "sampling")

    def __init__(self, prompt: Sequence[int], messages: Sequence[Message], name: str = "") -> None:
        """`prompt`: the tokens before the model's first turn. `messages`: the same as chat messages."""
        self.name = name
        self.messages: list[Message] = list(messages)
        self.sampling: dict[str, Any] = {}
        """The parameters that shape the distribution of the sampled tokens, such as `temperature`."""
        self._prompt = array("i", prompt)
        self._ids, self._mask = array("i"), bytearray()
        self._logprobs, self._versions = array("f"), array("q")

    def __len__(self) -> int:
        """Return the number of all tokens."""
        return len(self._prompt) + len(self._ids)

    @property
    def sampled(self) -> int:
        """The number of sampled tokens."""
        return sum(self._mask)

    def ids(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return all tokens, from which the model continues."""
        return np.concatenate([np.frombuffer(each, np.int32) for each in (self._prompt, self._ids)])

    def add_context(self, ids: Sequence[int]) -> None:
        """Append tokens that the model did not sample."""
        count = len(ids)
        self._ids.extend(ids)
        self._mask.extend(bytes(count))
        self._logprobs.extend([0.0] * count)
        self._versions.extend([-1] * count)

    def add_sampled(self, ids: Sequence[int], logprobs: Sequence[float], versions: Sequence[int]) -> None:
        """Append sampled tokens, each with its log-probability and the version of the weights that sampled it."""
        if not len(ids) == len(logprobs) == len(versions):
            raise ValueError(f"{len(ids)} tokens, {len(logprobs)} log-probabilities and {len(versions)} versions")
        self._ids.extend(ids)
        self._mask.extend(b"\1" * len(ids))
        self._logprobs.extend(logprobs)
        self._versions.extend(versions)

    def sampled_with(self, params: Mapping[str, Any]) -> None:
        """Note the sampling parameters of a turn.

        If they differ between turns, `sampling` has `differs_by_turn`: no one distribution fits the row, and a policy
        loss refuses it.
        """
        found = {name: value for name, value in params.items() if name not in _LIMITS}
        if self.sampling and found != self.sampling:
            found["differs_by_turn"] = True
        self.sampling = found

    def row(self) -> dict[str, Any]:
        """Return the columns of this transcript, as arrays of one row."""
        return {
            "prompt_ids": np.array(self._prompt, np.int32),
            "completion_ids": np.array(self._ids, np.int32),
            "completion_mask": np.frombuffer(bytes(self._mask), np.uint8),
            "logprobs": np.array(self._logprobs, np.float32),
            "weight_versions": np.array(self._versions, np.int64),
        }
