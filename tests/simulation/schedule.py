"""A schedule to play: the scenario of a seed, with the changes of a search."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import NamedTuple

__all__ = ["Draws", "Schedule"]


class Schedule(NamedTuple):
    """A schedule. As a text, `python -m tests.simulation` plays it again."""

    seed: int
    family: str = ""
    weather: bool = False
    """Storage and clocks have faults beside the family's own failures."""
    streams: tuple[tuple[int, int], ...] = ()
    """From this draw on, the world draws from the stream with this number."""
    strikes: int = 0
    """The number of the nemesis' stream; 0 is the seed's own."""
    without: tuple[str, ...] = ()
    """Parts of the scenario that are left out (`tests.simulation.reduced`)."""

    def __str__(self) -> str:
        words = [str(self.seed)]
        words += [self.family] if self.family else []
        words += ["weather"] if self.weather else []
        words += [f"from={draw}:{stream}" for draw, stream in self.streams]
        words += [f"strikes={self.strikes}"] if self.strikes else []
        return " ".join(words + [f"without={name}" for name in self.without])

    @classmethod
    def parsed(cls, words: Iterable[str]) -> Schedule:
        """Return the schedule of a text. Raises ValueError."""
        seed, *rest = " ".join(words).split()
        schedule = cls(int(seed))
        for word in rest:
            name, _, value = word.partition("=")
            if name == "from":
                draw, _, stream = value.partition(":")
                schedule = schedule._replace(streams=(*schedule.streams, (int(draw), int(stream))))
            elif name == "strikes":
                schedule = schedule._replace(strikes=int(value))
            elif name == "without":
                schedule = schedule._replace(without=(*schedule.without, value))
            elif word == "weather":
                schedule = schedule._replace(weather=True)
            else:
                schedule = schedule._replace(family=f"{schedule.family} {word}".strip())
        return schedule


class Draws(random.Random):
    """The draws of a world: those of its seed, from some on those of another stream, and the mean in quiet ranges."""

    def __init__(self, seed: int, streams: Sequence[tuple[int, int]] = (), quiet: Sequence[range] = ()) -> None:
        super().__init__(seed)
        self.count = 0
        self._streams = dict(streams)
        self._quiet = quiet

    def random(self) -> float:
        """A number from 0 to 1."""
        quiet, drawn = self._next(), super().random()
        return 0.5 if quiet else drawn

    def getrandbits(self, bits: int, /) -> int:
        """A number of `bits` bits. Choices are made of it."""
        quiet, drawn = self._next(), super().getrandbits(bits)
        return (1 << bits - 1) - 1 if quiet and bits else drawn

    def _next(self) -> bool:
        if self.count in self._streams:
            self.seed(f"{self._streams[self.count]} {self.count}")
        self.count += 1
        return any(self.count - 1 in each for each in self._quiet)
