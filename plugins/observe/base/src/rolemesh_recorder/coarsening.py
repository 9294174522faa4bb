"""Makes old parts of a record smaller: fewer stretches, longer accounts. No I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from rolemesh_recorder.lines import Account, Head, Life, Line, Stretch, encode

__all__ = ["coarsened"]


def coarsened(lines: Sequence[Line], nbytes: int) -> list[Line]:
    """Return the lines of one or several parts in at most `nbytes`, as far as heads and lives of processes allow.

    The longest stretches stay, in half of the room. Neighbouring accounts of a process are added up until they fit:
    their sums stay exact, and `Account.least` says from which duration on stretches have lines.
    """
    kept = _longest([line for line in lines if isinstance(line, Stretch)], nbytes // 2)
    least = min((each.d for each in kept), default=0)
    chosen = {id(each) for each in kept}
    result = [
        msgspec.structs.replace(line, least=max(line.least, least)) if isinstance(line, Account) else line
        for line in _one_head_each(lines)
        if not isinstance(line, Stretch) or id(line) in chosen
    ]
    while _size(result) > nbytes and (shorter := _paired(result)) is not None:
        result = shorter
    return [
        msgspec.structs.replace(line, coarse=line.coarse + 1) if isinstance(line, Head) else line for line in result
    ]


def _one_head_each(lines: Iterable[Line]) -> Iterator[Line]:
    """Yield the lines, but only the first head of each process: the first part is the coarsest."""
    last: Head | None = None
    for line in lines:
        if isinstance(line, Head):
            if last is not None and (line.generation, line.pid) == (last.generation, last.pid):
                continue
            last = line
        yield line


def _size(lines: Sequence[Line]) -> int:
    return sum(len(encode(line)) + 1 for line in lines)


def _longest(stretches: Sequence[Stretch], nbytes: int) -> list[Stretch]:
    kept, left = [], nbytes
    for each in sorted(stretches, key=lambda each: -each.d):
        left -= len(encode(each)) + 1
        if left < 0:
            break
        kept.append(each)
    return kept


def _paired(lines: Sequence[Line]) -> list[Line] | None:
    """Return the lines with every two neighbouring accounts of a process added up; None if there are none.

    A stretch comes before the account in which it ends, so an account moves to the place of the second one.
    """
    result: list[Line] = []
    first: Account | None = None
    at = -1
    paired = False
    for line in lines:
        if isinstance(line, Head | Life):
            first = None
        if not isinstance(line, Account):
            result.append(line)
        elif first is None:
            first, at = line, len(result)
            result.append(line)
        else:
            del result[at]
            result.append(_sum(first, line))
            first, paired = None, True
    return result if paired else None


def _sum(one: Account, two: Account) -> Account:
    spent = one.spent | {name: one.spent.get(name, 0) + us for name, us in two.spent.items()}
    least = max(one.least, two.least)
    sent = one.sent | {
        edge: (nbytes + one.sent.get(edge, (0, 0, 0))[0], under_way, left)
        for edge, (nbytes, under_way, left) in two.sent.items()
    }
    queued = one.queued | two.queued
    travelled = one.travelled | {
        edge: (nbytes + before[0], left + before[1])
        for edge, (nbytes, left) in two.travelled.items()
        for before in [one.travelled.get(edge, (0, 0))]
    }
    steps = one.steps + two.steps
    return Account(one.t, two.t + two.d - one.t, two.step, steps, spent, least, sent, queued, travelled)
