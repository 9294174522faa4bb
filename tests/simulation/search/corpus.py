"""The memory of a search: schedules that showed something new, the worth of each family, and schedules that broke."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.simulation.schedule import Schedule
from tests.simulation.search.player import DISKS, Played

__all__ = ["Corpus"]

FRESH = 0.4
"""The share of schedules with a seed that nobody has played."""
BROKEN = 100
"""A schedule that breaks counts as much as this number of new features."""
KEPT = 0.98
"""Factor of a family's findings and time with each of its schedules: earlier ones count less."""
MOST = 50
"""Maximum number of features that a schedule counts for: the first ones show what every schedule does."""


class Corpus:
    """The schedules of a search, in the files `corpus.txt` and `broken.txt` of `folder`."""

    def __init__(self, families: Sequence[str], folder: Path, first: int, rng: random.Random) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file, self._broken = folder / "corpus.txt", folder / "broken.txt"
        self._rng, self._next = rng, first
        self.families = tuple(families)
        self.known: set[tuple[str, int, int]] = set()
        self.broken: dict[str, Schedule] = {}
        """Invariant and family → the first schedule that broke it there."""
        self.played: Counter[str] = Counter()
        self._entries: dict[str, list[tuple[Schedule, int]]] = {family: [] for family in families}
        self._found = dict.fromkeys(families, 0.0)
        self._seconds = dict.fromkeys(families, 0.0)
        lines = self._file.read_text().splitlines() if self._file.exists() else []
        self._unseen = list(families) * 2
        self._waiting = [each for each in map(_schedule, lines) if each.family in self.families]

    def next(self) -> Schedule:
        """Return what to play: first what an earlier search has kept, then of the families that find most."""
        if self._waiting:
            return self._waiting.pop(0)
        if self._unseen:
            return Schedule(self._next, self._unseen.pop())
        worth = [(0.2 + self._found[each]) / (0.5 + self._seconds[each]) for each in self.families]
        family = self._rng.choices(self.families, worth)[0]
        entries = self._entries[family]
        if not entries or family in DISKS or self._rng.random() < FRESH:
            self._next += 1
            return Schedule(self._next, family, weather=family not in DISKS and self._rng.random() < 0.5)
        # The newest ones have shown what is rare.
        schedule, draws = entries[int(len(entries) * self._rng.random() ** 0.5)]
        number = self._rng.randrange(1, 1 << 30)
        if self._rng.random() < 0.3:
            return schedule._replace(strikes=number)
        if self._rng.random() < 0.1:
            return schedule._replace(weather=not schedule.weather)
        # The later, the more of what it has shown comes again.
        at = int(draws * self._rng.random() ** 0.5)
        return schedule._replace(streams=(*(each for each in schedule.streams if each[0] < at), (at, number)))

    def add(self, played: Played) -> bool:
        """Take a result; return whether it has broken an invariant that no schedule of its family had."""
        schedule, family = played.schedule, played.schedule.family
        new = played.new - self.known
        self.known |= new
        self.played[family] += 1
        self._seconds[family] = self._seconds[family] * KEPT + played.seconds
        self._found[family] = self._found[family] * KEPT + min(len(new), MOST)
        if played.broken:
            what = f"{family}: {played.broken.partition(':')[0]}"
            if what in self.broken:
                return False
            self.broken[what] = schedule
            self._found[family] += BROKEN
            with self._broken.open("a") as file:
                file.write(f"{schedule}  # {played.broken.strip().splitlines()[-1][:200]}\n")
            return True
        if new:
            self._entries[family].append((schedule, played.draws))
            with self._file.open("a") as file:
                file.write(f"{schedule}\n")
        return False


def _schedule(line: str) -> Schedule:
    return Schedule.parsed([line.partition("#")[0]])
