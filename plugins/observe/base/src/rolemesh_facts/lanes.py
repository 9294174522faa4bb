"""A rank's lane: its pieces, with what its accounts say of the time between them, few enough for a picture. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rolemesh_facts.palette import phase_of
from rolemesh_facts.pieces import Piece, flat, stretches
from rolemesh_recorder.lines import Account, FlowFile, Head, Line

__all__ = ["columns", "joined", "lane"]

ENGINE = "engine"
FULL, EMPTY = 0.95, 0.02
"""Shares of a column from which it counts as full, and below which it counts as empty."""


def lane(lines: Sequence[Line], flow: FlowFile | None, role: str, since: int, until: int) -> list[Piece]:
    """Return the pieces of a rank of `role` that overlap `since` to `until`, without overlap, by their begin.

    A stretch has no line before it ends, and short ones have none at all. The accounts count both, and fill the gaps
    between the other pieces: so in a gap that stays no process of the rank ran, or a kill took its last account.
    Filled pieces have the right lengths within each account, or within the next ones: an account may have a phase only
    when that has ended. Their `op` and `step` are -1.
    """
    generation, accounts = 0, list[tuple[Account, int]]()
    for line in lines:
        if isinstance(line, Head):
            generation = line.generation
        elif isinstance(line, Account) and line.t + line.d > since and line.t < until:
            accounts.append((line, generation))
    begin = min((account.t for account, _ in accounts), default=since)
    end = max((account.t + account.d for account, _ in accounts), default=until)
    pieces = flat(stretches(lines, min(begin, since), max(end, until)))
    found, at, rest, process = list(pieces), 0, dict[str, int](), -1
    for account, generation in accounts:
        if generation != process:
            rest, process = {}, generation
        while at < len(pieces) and pieces[at].end <= account.t:
            at += 1
        for place, finish, name in _between(pieces, at, account, rest):
            phase, edge = phase_of(flow, role, name), name.removeprefix("edge ")
            last = found[-1] if len(found) > len(pieces) else None
            piece = Piece(place, finish, phase, -1, int(edge) if edge.isdecimal() else -1, -1, generation)
            if last is not None and last.end == place and last[2:] == piece[2:]:
                found[-1] = last._replace(end=finish)
            else:
                found.append(piece)
    return sorted(piece for piece in found if piece.end > since and piece.t < until)


def _between(pieces: Sequence[Piece], at: int, account: Account, rest: dict[str, int]) -> list[tuple[int, int, str]]:
    """Return begin, end and name of what an account has beyond `pieces`, of which `at` is the first that may overlap.

    The name with the most time takes the longest gap. `rest` has what former accounts of the process had by name beyond
    what is drawn, in µs, less than 0 if more is drawn; this adds the account's own.
    """
    left = {name: account.spent.get(name, 0) + rest.get(name, 0) for name in account.spent.keys() | rest.keys()}
    gaps = list[tuple[int, int]]()
    begin, end = account.t, account.t + account.d
    for number in range(at, len(pieces)):
        piece = pieces[number]
        if piece.t >= end:
            break
        if piece.t > begin:
            gaps.append((begin, piece.t))
        name = _name(piece)
        left[name] = left.get(name, 0) - (min(piece.end, end) - max(piece.t, account.t))
        begin = max(begin, piece.end)
    if begin < end:
        gaps.append((begin, end))
    amounts = sorted((us, name) for name, us in left.items() if us > 0)
    found = []
    for begin, end in sorted(gaps, key=lambda gap: gap[0] - gap[1]):
        while begin < end:
            us, name = amounts.pop() if amounts else (end - begin, ENGINE)
            found.append((begin, min(end, begin + us), name))
            if us > end - begin:
                amounts.append((us - (end - begin), name))
            begin += us
    rest.clear()
    rest |= {name: us for name, us in left.items() if us < 0} | {name: us for us, name in amounts}
    return sorted(found)


def _name(piece: Piece) -> str:
    """Return the name under which an account counts a piece."""
    if piece.phase in ("waiting", "blocked"):
        return f"edge {piece.edge}" if piece.edge >= 0 else "memory"
    return piece.phase


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
    """Return at most about `most` pieces, one for each column of the screen, if there are more.

    `pieces` are without overlap, by their begin. Of the phases in a column it gets the one that lacks most of its time
    so far. So each phase, operator and edge has its share of the lane, to one column. Neighbouring columns of one
    phase, operator and edge become one piece, whose step is -1. A column with few pieces is shorter.
    """
    inside = [piece for piece in pieces if piece.end > since and piece.t < until]
    if len(inside) <= most or until <= since:
        return inside
    width = (until - since) / most
    found: list[Piece] = []
    lacks: dict[tuple[str, int, int], float] = {}
    totals: dict[tuple[str, int, int], float] = {}
    current = 0

    def close(totals: Mapping[tuple[str, int, int], float]) -> None:
        for key, us in totals.items():
            lacks[key] = lacks.get(key, 0.0) + us
        covered = sum(totals.values())
        if covered < width * EMPTY:
            return
        chosen = phase, op, edge = max(totals, key=lacks.__getitem__)
        lacks[chosen] -= covered
        begin = int(since + current * width)
        end = int(since + (current + 1) * width) if covered >= width * FULL else int(begin + covered)
        last = found[-1] if found else None
        if last is not None and (last.phase, last.op, last.edge) == chosen and last.end >= begin - 1:
            found[-1] = last._replace(end=end)
        else:
            found.append(Piece(begin, end, phase, op, edge))

    for piece in inside:
        begin, end = max(piece.t, since), min(piece.end, until)
        while begin < end:
            column = min(most - 1, int((begin - since) / width))
            if column != current:
                close(totals)
                totals.clear()
                current = column
            border = end if column == most - 1 else min(end, max(begin + 1, int(since + (column + 1) * width)))
            key = (piece.phase, piece.op, piece.edge)
            totals[key] = totals.get(key, 0) + border - begin
            begin = border
    close(totals)
    return found
