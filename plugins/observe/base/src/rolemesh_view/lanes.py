"""A rank's lane as few enough rectangles for the columns of a screen. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from rolemesh_facts.pieces import Piece
from rolemesh_recorder.lines import Account

__all__ = ["columns", "joined", "summary"]


def summary(accounts: Iterable[Account], since: int, until: int) -> list[Piece]:
    """Return the accounts between two times as pieces: each account's phases one after the other, the longest first.

    Their shares are right, and their order within an account is not known. `op` and `step` are -1.
    """
    found = []
    for account in accounts:
        if account.t + account.d <= since or account.t >= until:
            continue
        at = account.t
        for name, us in sorted(account.spent.items(), key=lambda each: -each[1]):
            phase, _, number = name.partition(" ")
            end = min(at + us, account.t + account.d)
            if end > at:
                edge = int(number) if phase == "edge" and number.isdecimal() else -1
                found.append(Piece(at, end, "waiting" if phase == "edge" else phase, -1, edge, -1))
            at = end
    return found


def joined(accounts: Iterable[Account], since: int, until: int, most: int) -> list[Account]:
    """Return the accounts between two times, with those of each of `most` columns of the screen added up.

    A gap between two accounts stays, so the time in which no process ran stays empty.
    """
    width, found, spent = max(1, (until - since) // most), list[Account](), dict[str, int]()
    begin = end = -1
    for account in accounts:
        if account.t + account.d <= since or account.t >= until:
            continue
        if begin >= 0 and (account.t > end + width or account.t + account.d - begin > width):
            found.append(Account(begin, end - begin, -1, 0, spent))
            begin, spent = -1, {}
        begin, end = account.t if begin < 0 else begin, account.t + account.d
        for name, us in account.spent.items():
            spent[name] = spent.get(name, 0) + us
    return [*found, Account(begin, end - begin, -1, 0, spent)] if begin >= 0 else found


def columns(pieces: Sequence[Piece], since: int, until: int, most: int) -> list[Piece]:
    """Return at most about `most` pieces. If there are more, each column of the screen gets the phase with most time.

    `pieces` are without overlap, by their begin. Neighbouring columns of one phase, operator and edge become one piece,
    whose step is -1. A column with few pieces is shorter.
    """
    inside = [piece for piece in pieces if piece.end > since and piece.t < until]
    if len(inside) <= most or until <= since:
        return inside
    width = (until - since) / most
    found: list[Piece] = []
    totals: dict[tuple[str, int, int], float] = {}
    current = 0

    def close() -> None:
        covered = sum(totals.values())
        if covered < width / 50:
            return
        phase, op, edge = max(totals, key=totals.__getitem__)
        begin = int(since + current * width)
        end = int(since + (current + 1) * width) if covered >= width / 2 else int(begin + covered)
        last = found[-1] if found else None
        if last is not None and (last.phase, last.op, last.edge) == (phase, op, edge) and last.end >= begin - 1:
            found[-1] = last._replace(end=end)
        else:
            found.append(Piece(begin, end, phase, op, edge))

    for piece in inside:
        begin, end = max(piece.t, since), min(piece.end, until)
        while begin < end:
            column = min(most - 1, int((begin - since) / width))
            if column != current:
                close()
                totals.clear()
                current = column
            border = end if column == most - 1 else min(end, max(begin + 1, int(since + (column + 1) * width)))
            key = (piece.phase, piece.op, piece.edge)
            totals[key] = totals.get(key, 0) + border - begin
            begin = border
    close()
    return found
