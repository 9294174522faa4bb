"""Extensions that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

from typing import Any

import msgspec

from rolemesh_durable.api.extensions import AgentPart, AgentProcess, Extension, Rank, RankExtension

__all__ = ["BROKEN", "Sound"]


class Counts(RankExtension):
    """Records the number of steps."""

    value: Any = 1

    def __init__(self, rank: Rank) -> None:
        self.rank = rank

    def step_done(self, step: int, held: bool) -> None:
        self.rank.record({"steps": self.value})


class Looks(msgspec.Struct, frozen=True, tag="sound.looks"):
    """The number of looks of an agent at its ranks."""

    count: int


class CountsLooks(AgentPart):
    """Reports the number of looks."""

    count = 0

    def report(self) -> msgspec.Struct | None:
        self.count += 1
        return Looks(self.count)


class Sound(Extension):
    """Counts steps, and an agent's looks."""

    def in_rank(self, rank: Rank) -> RankExtension | None:
        return Counts(rank)

    def in_agent(self, process: AgentProcess) -> AgentPart | None:
        return CountsLooks(process)


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


class Untagged(msgspec.Struct, frozen=True):
    """Has no tag."""

    count: int = 0


class Nameless(AgentPart):
    """Reports a struct without a tag."""

    def report(self) -> msgspec.Struct | None:
        return Untagged()


class Unknown(Extension):
    """Its part in an agent reports what the master cannot read."""

    def in_agent(self, process: AgentProcess) -> AgentPart | None:
        return Nameless(process)


class Adopting(AgentPart):
    """Cannot start without ranks of an earlier incarnation."""

    def adopted(self, living: Any) -> None:
        living[0]


class Orphaned(Extension):
    """Its part in an agent raises."""

    def in_agent(self, process: AgentProcess) -> AgentPart | None:
        return Adopting(process)


BROKEN: dict[Any, set[str]] = {
    Misspelt: {"test_it_has_a_hook"},
    Other: {"test_its_part_is_a_rank_extension"},
    Closing: {"test_its_part_lives_through_a_job"},
    Binary: {"test_its_records_are_json"},
    Unknown: {"test_its_messages_have_a_tag"},
    Orphaned: {"test_its_part_in_an_agent_lives_until_the_job_is_over"},
}
