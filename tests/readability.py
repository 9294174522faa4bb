"""Measures how easily the documents read: ``python -m tests.readability [DOCUMENT...]`` prints a table.

A document is easy to read if its median sentence has at most 20 words and its Flesch reading ease is at least 50.
The formula is 206.835 - 1.015 x words per sentence - 84.6 x syllables per word (Flesch 1948). textstat counts syllables
at hyphenation points, so it finds some too few; compare the figures with each other only.
Headings, tables and code blocks do not count; a code span counts as one word.
"""

from __future__ import annotations

import statistics
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

from tests.prose import ROOT, documents, sentences

__all__ = ["LEAST_EASE", "MOST_WORDS", "Reading", "measure"]

MOST_WORDS = 20
"""Upper limit of the median number of words per sentence."""
LONG = 30
"""A sentence with more words counts as long in the report."""
LEAST_EASE = 50.0
"""Lower limit of the Flesch reading ease; 100 is very easy, 0 very difficult."""


class Reading(NamedTuple):
    """Figures of one document.

    `median` and `longest` are words per sentence. `long` is the number of sentences above `LONG` words. `ease` is the
    Flesch reading ease.
    """

    sentences: int
    median: float
    longest: int
    long: int
    ease: float

    @property
    def easy(self) -> bool:
        """Whether both limits hold."""
        return self.median <= MOST_WORDS and self.ease >= LEAST_EASE


def measure(text: str) -> Reading:
    """Measure a Markdown document that has at least one sentence."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # textstat imports pkg_resources
        import textstat

    found = [each.rstrip(" .:;!?") for each in sentences(text)]
    lengths = [len(each.split()) for each in found]
    words = sum(lengths)
    syllables = textstat.syllable_count(" ".join(found))
    ease = 206.835 - 1.015 * words / len(found) - 84.6 * syllables / words
    long = sum(length > LONG for length in lengths)
    return Reading(len(found), statistics.median(lengths), max(lengths), long, round(ease, 1))


def main(arguments: list[str]) -> int:
    """Print the table; 1 if a document is not easy to read."""
    failed = 0
    for path in [Path(each).resolve() for each in arguments] or documents():
        reading = measure(path.read_text())
        failed += not reading.easy
        print(
            f"{'✔' if reading.easy else '✘'} {path.relative_to(ROOT) if path.is_relative_to(ROOT) else path}: "
            f"median {reading.median:g} words, longest {reading.longest}, Flesch {reading.ease:.1f}, "
            f"{reading.long} of {reading.sentences} sentences above {LONG} words"
        )
    print(f"{failed} not easy: a median above {MOST_WORDS} words, or a Flesch reading ease below {LEAST_EASE:g}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
