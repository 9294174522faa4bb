"""reasoning-gym's verifiers in worker processes: no answer can end, delay or change the role that judges it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from rolemesh_processes.judging import Failed, Judges, own_code
from rolemesh_reasoning_gym.tasks import make_dataset, verified

__all__ = ["Answer", "Unjudged", "Verifiers"]

_NAMES = re.compile(
    r"[a-z] | [A-Z]+ | a?(?:sin|cos|tan) | (?:sin|cos|tan)h | [aA]bs | exp | log | ln | sqrt"
    r"| pi | beta | gamma | zeta | Symbol | Function | Integer | Float | factorial2?",
    re.VERBOSE,
)
"""Names that an answer may evaluate: single letters, constants and mathematical functions, and what sympy writes for
other words and for numbers. sympy evaluates a text that it gets as an argument, as other code."""
_SYMBOLS = "abcdefgh"
"""Symbols for which sympy makes code before the first answer: it makes other code for each number of symbols."""


class Answer(NamedTuple):
    """The answer to a question. `place`: the number of the task's settings. `entry`: reasoning-gym's own dict."""

    task: str
    place: int
    entry: Mapping[str, Any]
    text: str


class Unjudged(NamedTuple):
    """Why the verifier could not judge an answer. `wrong`: it can judge the right one, so the answer scores 0. If not,
    there is no score: the fault is the verifier's."""

    reason: str
    wrong: bool


class Verifiers:
    """Scores answers. It may be used by several threads at once."""

    def __init__(self, configs: Sequence[Mapping[str, Any]], task: str | None = None) -> None:
        """`configs`: the settings of tasks, by `Answer.place`. `task`: the task of all answers, if there is one."""
        self._configs = configs
        self._datasets: dict[tuple[str, int], Any] = {}
        self._task = task
        self._judges = Judges(self._judge, prepare=self._prepare, names=_NAMES)

    def start(self) -> None:
        """Start a worker, so that the first answer needs not wait for it."""
        self._judges.start()

    def scores(self, answers: Sequence[Answer], tell: Callable[[Unjudged], None]) -> list[float]:
        """Return the score of each answer, from 0 to 1. NaN: the verifier fails on the right answer, too.

        `tell` hears of each answer that was not judged.
        """
        found = self._judges.judge(answers)
        failed = [at for at, score in enumerate(found) if isinstance(score, Failed)]
        rights = [(*answers[at][:3], answers[at].entry.get("answer")) for at in failed]
        for at, right in zip(failed, self._judges.judge(rights) if failed else (), strict=True):
            wrong = not isinstance(right, Failed)
            tell(Unjudged(found[at].reason, wrong))
            found[at] = 0.0 if wrong else float("nan")
        return list(map(float, found))

    def close(self) -> None:
        """End the workers."""
        self._judges.close()

    def _judge(self, task: str, place: int, entry: Mapping[str, Any], text: str | None) -> float:
        """Score one answer, in a worker. None, where the entry has no text as its answer, is judged at once."""
        from sympy.core.random import seed

        if not isinstance(text, str):
            return 0.0
        seed(0)  # `sympy.simplify` draws numbers
        return verified(self._dataset(task, place), entry, text)

    def _dataset(self, task: str, place: int) -> Any:
        if (task, place) not in self._datasets:
            self._datasets[task, place] = _warmed(make_dataset(task, self._configs[place], seed=0, size=1))
        return self._datasets[task, place]

    def _prepare(self) -> None:
        from sympy import QQ, ring

        with own_code():
            for number in range(len(_SYMBOLS)):
                ring(list(_SYMBOLS[: number + 1]), QQ)
        for place in range(len(self._configs)) if self._task is not None else ():
            self._dataset(self._task, place)


def _warmed(dataset: Any) -> Any:
    """Return a dataset whose verifier has judged an answer of its own, and so has loaded what it needs."""
    with own_code(), suppress(Exception):
        own = dataset[0]
        dataset.score_answer(answer=own["answer"], entry=own)
    return dataset
