"""Extensions that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

from typing import Any

from rolemesh_durable.api.extensions import Extension, Rank, RankExtension

__all__ = ["BROKEN", "Sound"]


class Counts(RankExtension):
    """Records the number of steps."""

    value: Any = 1

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def step_done(self, step: int, held: bool) -> None:
        self.rank.record({"steps": self.value})


class Sound(Extension):
    """Counts steps."""

    def in_rank(self, rank: Rank) -> RankExtension | None:
        return Counts(rank)


class Misspelt(Extension):
    """Has a hook that the engine never calls."""

    def in_ranks(self, rank: Rank) -> RankExtension | None:
        return Counts(rank)


class Other(Extension):
    """Returns no part."""

    def in_rank(self, rank: Rank) -> Any:
        return "a part"


class CloseOnce(Counts):
    """Cannot be closed twice."""

    def close(self) -> None:
        del self.rank


class Closing(Extension):
    """Its part raises."""

    def in_rank(self, rank: Rank) -> RankExtension | None:
        return CloseOnce(rank)


class Bytes(Counts):
    """Records bytes."""

    value = b"one"


class Binary(Extension):
    """Records what JSON cannot hold."""

    def in_rank(self, rank: Rank) -> RankExtension | None:
        return Bytes(rank)


BROKEN: dict[Any, set[str]] = {
    Misspelt: {"test_it_has_a_hook"},
    Other: {"test_its_part_is_a_rank_extension"},
    Closing: {"test_its_part_lives_through_a_job"},
    Binary: {"test_what_it_records_is_json"},
}
