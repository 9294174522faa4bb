"""The tokens of a conversation as they are trained: sampled ones, and the environment's between them. Pure."""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from rolemesh_agents.actions import Message

__all__ = ["Transcript"]

Numbers: TypeAlias = Sequence[Any] | np.ndarray[Any, np.dtype[Any]]

_LIMITS = frozenset({"ignore_eos", "max_tokens", "seed", "stop", "stop_token_ids"})
"""Parameters that end a turn, or select one of its outcomes, and do not shape the distribution."""


class Transcript:
    """One prompt and its continuation. Tokens are only ever appended, so what was sampled stays what is trained.

    A thousand conversations may be open in one process. So a sampled token takes 8 bytes, and another one 4: masks and
    versions are kept as runs. Tokens are kept in parts that never grow, since arrays that grow leave holes in memory.
    """

    __slots__ = ("_completion", "_logprobs", "_prompt", "_runs", "_size", "messages", "name", "sampled", "sampling")

    def __init__(self, prompt: Sequence[int], messages: Sequence[Message], name: str = "") -> None:
        """`prompt`: the tokens before the model's first turn. `messages`: the same as chat messages."""
        self.name = name
        self.messages: list[Message] = list(messages)
        self.sampling: dict[str, Any] = {}
        """The parameters that shape the distribution of the sampled tokens, such as `temperature`."""
        self.sampled = 0
        """The number of sampled tokens."""
        self._prompt = _packed(prompt, np.int32)
        self._completion: list[bytes] = []
        """The tokens after the prompt, in parts of int32."""
        self._logprobs: list[bytes] = []
        """Those of the sampled tokens, in parts of float32."""
        self._runs = array("q")
        """For each run of equal tokens three numbers: their count, 1 for sampled ones, and their weight version."""
        self._size = len(prompt)

    def __len__(self) -> int:
        """Return the number of all tokens."""
        return self._size

    def ids(self) -> np.ndarray[Any, np.dtype[np.int32]]:
        """Return all tokens, from which the model continues."""
        return np.frombuffer(b"".join([self._prompt, *self._completion]), np.int32)

    def last(self) -> list[int]:
        """Return the tokens that were appended last."""
        return np.frombuffer(self._completion[-1], np.int32).tolist() if self._completion else []

    def add_context(self, ids: Sequence[int]) -> None:
        """Append tokens that the model did not sample."""
        if len(ids):
            self._completion.append(_packed(ids, np.int32))
            self._runs.extend((len(ids), 0, -1))
            self._size += len(ids)

    def add_sampled(self, ids: Numbers, logprobs: Numbers, versions: Numbers) -> None:
        """Append sampled tokens, each with its log-probability and the version of the weights that sampled it."""
        if not len(ids) == len(logprobs) == len(versions):
            raise ValueError(f"{len(ids)} tokens, {len(logprobs)} log-probabilities and {len(versions)} versions")
        self._completion.append(_packed(ids, np.int32))
        self._logprobs.append(_packed(logprobs, np.float32))
        self._size += len(ids)
        self.sampled += len(ids)
        made = np.asarray(versions, np.int64)
        begins = np.flatnonzero(np.diff(made, prepend=~made[:1]))
        counts = np.diff(begins, append=len(made))
        for count, version in zip(counts.tolist(), made[begins].tolist(), strict=True):
            self._runs.extend((count, 1, version))

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
        counts, sampled, versions = np.array(self._runs, np.int64).reshape(-1, 3).T
        mask = np.repeat(sampled.astype(np.uint8), counts)
        logprobs = np.zeros(len(mask), np.float32)
        logprobs[mask == 1] = np.frombuffer(b"".join(self._logprobs), np.float32)
        return {
            "prompt_ids": np.frombuffer(self._prompt, np.int32).copy(),
            "completion_ids": np.frombuffer(b"".join(self._completion), np.int32).copy(),
            "completion_mask": mask,
            "logprobs": logprobs,
            "weight_versions": np.repeat(versions, counts),
        }


def _packed(values: Numbers, kind: Any) -> bytes:
    return np.asarray(values, kind).tobytes()
