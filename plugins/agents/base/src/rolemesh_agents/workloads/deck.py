"""The tasks of an environment, checked, in the order in which a job deals them out."""

from __future__ import annotations

import operator
from hashlib import blake2b
from typing import Any, Literal
from warnings import warn

import msgspec
import numpy as np

from rolemesh_agents.contract import breach
from rolemesh_agents.environment import Environment, Task

__all__ = ["EMPTY", "LISTED", "Deck", "place"]

EMPTY = "look at its options: they choose no task, or the data is empty"

LISTED = 1_000_000
"""Largest number of tasks whose order is kept as a list. The order of more tasks is computed, one number at a time."""


class Deck:
    """The tasks of one environment. Methods raise a `breach` if the environment breaks its contract."""

    def __init__(self, environment: Environment, name: str, seed: int) -> None:
        """`name`: the environment's name in the job file. `seed`: the job's seed."""
        self._environment, self._name, self._seed = environment, name, seed

    def size(self, split: Literal["train", "eval"]) -> int | None:
        """Return the number of tasks; None: there is one for every number."""
        found = self._environment.size(split)
        if found is None:
            return None
        try:
            size = operator.index(found)
        except TypeError:
            size = -1
        if size < 0:
            what = f"the environment {self._name} has {found!r} as the size of the split {split}"
            raise breach(what, remedy="return a whole number from 0 on, or None, from Environment.size")
        return size

    def task(self, split: Literal["train", "eval"], number: int) -> dict[str, Any]:
        """Return a task as a JSON value."""
        found = self._environment.task(split, number, self._seed)
        where = f"the environment {self._name} returned for task {number} of the split {split}"
        if isinstance(found, Task):
            what = f"{where} a Task; return its data alone from Environment.task: return data"
            warn(what, FutureWarning, stacklevel=2)
            found = found.data
        try:
            plain: dict[str, Any] = msgspec.to_builtins(Task(number, found, split))
        except (TypeError, ValueError, OverflowError) as error:
            what = f"{where} data that is no JSON value: {error}"
            raise breach(what, remedy="return numbers, strings, lists and objects from Environment.task") from error
        return plain

    def any_task(self, seed: int) -> dict[str, Any]:
        """Return a task for training that `seed` chooses."""
        size = self.size("train")
        if size == 0:
            raise breach(f"the environment {self._name} has no tasks in the split train", remedy=EMPTY)
        return self.task("train", int(np.random.default_rng(seed).integers(2**31 if size is None else size)))


def place(at: int, size: int, key: bytes) -> int:
    """Return the number at place `at` of a permutation of `size` numbers that `key` (at most 64 bytes) chooses.

    A Feistel network with four rounds permutes the smallest power of four that holds `size` numbers. It runs again for
    each number that is too large (cycle walking), at most four times on average.
    """
    half = ((size - 1).bit_length() + 1) // 2
    mask = (1 << half) - 1
    while True:
        left, right = at >> half, at & mask
        for round_ in range(4):
            mixed = blake2b(b"%d:%d" % (round_, right), key=key, digest_size=8).digest()
            left, right = right, left ^ (int.from_bytes(mixed, "little") & mask)
        at = left << half | right
        if at < size:
            return at
