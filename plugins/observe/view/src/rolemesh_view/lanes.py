"""A lane of pieces as few enough rectangles for the columns of a screen. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from rolemesh_facts.pieces import Piece

__all__ = ["columns"]


def columns(pieces: Sequence[Piece], since: int, until: int, most: int) -> list[Piece]:
    """Return at most about `most` pieces. If there are more, each column of the screen gets the phase with most time.

    `pieces` are without overlap, by their begin. Neighbouring columns of one phase, operator and edge become one piece,
    whose step is -1.
    """
    inside = [piece for piece in pieces if piece.end > since and piece.t < until]
    if len(inside) <= most or until <= since:
        return inside
    width = (until - since) / most
    found: list[Piece] = []
    totals: dict[tuple[str, int, int], float] = {}
    current = 0

    def close() -> None:
        if not totals or sum(totals.values()) < width / 2:
            return
        phase, op, edge = max(totals, key=totals.__getitem__)
        begin, end = int(since + current * width), int(since + (current + 1) * width)
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
