"""Who sends what to whom: from the partitions and world sizes at both ends of an edge to a static `Route`.

Nothing here touches values; `rolemesh.graph.values` applies the selections and combinations. Signatures and their
boxing follow OneFlow's SBP (arXiv:2110.15032, section 3.1), extended to M producers and N consumers.
"""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Literal, TypeAlias

import msgspec

from rolemesh.api.partition import Balanced, Broadcast, Partial, Partition, Sharded, Split

__all__ = [
    "Assemble",
    "Block",
    "Combine",
    "Concat",
    "Part",
    "Reduce",
    "Reshard",
    "Route",
    "RouteError",
    "Selection",
    "Send",
    "Take",
    "Whole",
    "chunk_bounds",
    "describe",
    "route",
]


class Whole(msgspec.Struct, frozen=True, tag=True):
    """The producer rank's whole value."""


class Part(msgspec.Struct, frozen=True, tag=True):
    """A fraction of the producer rank's extent along `axis`: [floor(n * lo), floor(n * hi)), with exact fractions."""

    axis: int
    lo_num: int
    lo_den: int
    hi_num: int
    hi_den: int

    def bounds(self, extent: int) -> tuple[int, int]:
        """Start and stop for a value with `extent` rows along `axis`."""
        return extent * self.lo_num // self.lo_den, extent * self.hi_num // self.hi_den


class Block(msgspec.Struct, frozen=True, tag=True):
    """What of the producer rank's tensors lies in block `index` of ``torch.chunk(tensor, count, dim)``."""

    dim: int
    index: int
    count: int


Selection: TypeAlias = Whole | Part | Block


class Take(msgspec.Struct, frozen=True, tag=True):
    """There is one part, and it is the value."""


class Concat(msgspec.Struct, frozen=True, tag=True):
    """The parts one after the other along `axis`."""

    axis: int


class Reduce(msgspec.Struct, frozen=True, tag=True):
    """The parts' element-wise sum or mean, added in the order of the producers' ranks."""

    op: Literal["sum", "mean"]


class Assemble(msgspec.Struct, frozen=True, tag=True):
    """The full tensors as a plain ``dict[str, array]``, from `Shards` that cover them."""


class Reshard(msgspec.Struct, frozen=True, tag=True):
    """`Shards` with one block of ``torch.chunk(tensor, count, dim)``, from the pieces of it."""

    dim: int
    count: int


Combine: TypeAlias = Take | Concat | Reduce | Assemble | Reshard


class Send(msgspec.Struct, frozen=True):
    """One payload, encoded once, that goes to each of `consumers` (ranks of the consuming role, ascending)."""

    selection: Selection
    consumers: tuple[int, ...]


class Route(msgspec.Struct, frozen=True):
    """The messages of one value of an edge, the same on every step.

    `sends[m]` is what producer rank m sends, `sources[n]` the producer ranks from which consumer rank n takes exactly
    one part each, in the order in which `combine` wants them. Parts may be empty, and are sent all the same.
    """

    kind: str
    sends: tuple[tuple[Send, ...], ...]
    sources: tuple[tuple[int, ...], ...]
    combine: Combine

    @property
    def whole(self) -> bool:
        """Every payload is its producer's whole value, so chunks can be passed on one by one in order."""
        return all(isinstance(send.selection, Whole) for sends in self.sends for send in sends)

    def sends_to(self, producer: int, consumer: int) -> Selection | None:
        """What `producer` sends to `consumer`, or None."""
        for send in self.sends[producer]:
            if consumer in send.consumers:
                return send.selection
        return None


class RouteError(ValueError):
    """Two partitions that do not fit. `why` is the cause, `remedy` what the author of the operators can do."""

    def __init__(self, src: Partition, m: int, dst: Partition, n: int, why: str, remedy: str) -> None:
        super().__init__(
            f"{describe(src)} over {_ranks(m)} cannot feed {describe(dst)} over {_ranks(n)}: {why}; {remedy}"
        )
        self.pair = f"{describe(src)} over {_ranks(m)} cannot feed {describe(dst)} over {_ranks(n)}"
        self.why = why
        self.remedy = remedy


def route(src: Partition, m: int, dst: Partition, n: int) -> Route:
    """The route from `m` ranks that hold a value as `src` to `n` ranks that want it as `dst`.

    Raises `RouteError` (a `ValueError`) for a pair that does not fit.
    """
    if m < 1 or n < 1:
        raise ValueError(f"world sizes must be at least 1, not {m} and {n}")
    _check(src, m, dst, n)
    one_each = {(rank % m, rank) for rank in range(n)}
    match src, dst:
        case Split(axis=a), Split(axis=b) if a == b and m == n:
            return _build("identity", m, n, {(r, r): Whole() for r in range(n)}, Take())
        case Split(axis=a), Split(axis=b) if a == b:
            return _build("repartition", m, n, _overlaps(m, n, a), Concat(a))
        case Split(axis=a), Split(axis=b):
            return _build("all-to-all", m, n, _full(m, n, lambda rank: _part(b, rank, n)), Concat(a))
        case Split(axis=a), Broadcast():
            return _build("all-gather", m, n, _full(m, n, lambda rank: Whole()), Concat(a))
        case Broadcast(), Split(axis=b):
            return _build("scatter", m, n, {(p, c): _part(b, c, n) for p, c in one_each}, Take())
        case Broadcast(), Broadcast():
            kind = "identity" if m == n else "broadcast"
            return _build(kind, m, n, {pair: Whole() for pair in one_each}, Take())
        case Partial(op=op), Broadcast():
            return _build("reduce", m, n, _full(m, n, lambda rank: Whole()), Reduce(op))
        case Partial(op=op), Split(axis=b):
            return _build("reduce-scatter", m, n, _full(m, n, lambda rank: _part(b, rank, n)), Reduce(op))
        case Partial(), Partial():
            return _build("identity", m, n, {(r, r): Whole() for r in range(n)}, Take())
        case Sharded(), Broadcast():
            return _build("assemble", m, n, _full(m, n, lambda rank: Whole()), Assemble())
        case Sharded(), Sharded(dim=d):
            return _build("reshard", m, n, _full(m, n, lambda rank: Block(d, rank, n)), Reshard(d, n))
        case Broadcast(), Sharded(dim=d):
            return _build("shard", m, n, {(p, c): Block(d, c, n) for p, c in one_each}, Reshard(d, n))
    raise AssertionError(f"{src} → {dst} was let through")


def chunk_bounds(extent: int, index: int, count: int) -> tuple[int, int]:
    """Start and stop of chunk `index` of ``torch.chunk(tensor, count)`` with `extent` rows; empty past the end."""
    size = -(-extent // count)
    return min(index * size, extent), min((index + 1) * size, extent)


def describe(partition: Partition) -> str:
    """``Split(1)``, ``Partial('sum')``: a partition as it is written."""
    match partition:
        case Split(axis=axis):
            return f"Split({axis or ''})"
        case Partial(op=op):
            return f"Partial('{op}')"
        case Sharded(dim=dim):
            return f"Sharded({dim or ''})"
        case _:
            return f"{type(partition).__name__}()"


def _check(src: Partition, m: int, dst: Partition, n: int) -> None:
    """Raise `RouteError` for the pairs that have no route."""

    def refuse(why: str, remedy: str) -> None:
        raise RouteError(src, m, dst, n, why, remedy)

    for side in (src, dst):
        if isinstance(side, Balanced):
            refuse("Balanced is reserved for a later version", "use Split()")
        if (isinstance(side, Split) and side.axis < 0) or (isinstance(side, Sharded) and side.dim < 0):
            refuse("negative axes depend on the value's dimensions", "count axes from 0")
    match src, dst:
        case Partial(op=a), Partial(op=b) if a != b:
            refuse(f"a {a} is not a {b}", f"declare Partial('{a}') on both sides, or take it as Broadcast()")
        case Partial(), Partial() if m != n:
            refuse("addends can only be handed on rank by rank", "use equal world sizes, or take it as Broadcast()")
        case (Split() | Broadcast() | Sharded(), Partial()):
            refuse("what is whole has no addends", "take it as Broadcast() or Split()")
        case Split(), Sharded():
            refuse("rows are not named tensors", "take it as Split(), or return Shards and declare returns=Sharded()")
        case Sharded(), Split():
            refuse("named tensors have no rows to split", "take it as Sharded() or Broadcast()")
        case Partial(), Sharded():
            refuse("addends of named tensors are not sharded here", "take it as Broadcast(), or reduce in the producer")


def _build(kind: str, m: int, n: int, pairs: dict[tuple[int, int], Selection], combine: Combine) -> Route:
    """Group what each producer sends by equal selections, and list each consumer's producers in rank order."""
    sends: list[tuple[Send, ...]] = []
    for producer in range(m):
        grouped: dict[Selection, list[int]] = {}
        for (p, consumer), selection in sorted(pairs.items(), key=lambda item: item[0]):
            if p == producer:
                grouped.setdefault(selection, []).append(consumer)
        sends.append(tuple(Send(selection, tuple(consumers)) for selection, consumers in grouped.items()))
    sources = tuple(tuple(p for p in range(m) if (p, consumer) in pairs) for consumer in range(n))
    if m == 1 and isinstance(combine, Concat):
        combine = Take()
    if m == n == 1 and isinstance(combine, Take) and all(isinstance(s, Whole) for s in pairs.values()):
        kind = "identity"
    return Route(kind, tuple(sends), sources, combine)


def _full(m: int, n: int, selection: Callable[[int], Selection]) -> dict[tuple[int, int], Selection]:
    return {(producer, consumer): selection(consumer) for producer in range(m) for consumer in range(n)}


def _part(axis: int, index: int, count: int) -> Selection:
    """Slice `index` of `count` of a value that the producer has whole along `axis`."""
    return Whole() if count == 1 else _fractions(axis, Fraction(index, count), Fraction(index + 1, count))


def _overlaps(m: int, n: int, axis: int) -> dict[tuple[int, int], Selection]:
    """Producers cover [p/m, (p+1)/m) of the unit interval, consumers [c/n, (c+1)/n): send where they meet."""
    pairs: dict[tuple[int, int], Selection] = {}
    for p in range(m):
        for c in range(p * n // m, -(-(p + 1) * n // m)):
            lo = max(Fraction(p, m), Fraction(c, n))
            hi = min(Fraction(p + 1, m), Fraction(c + 1, n))
            pairs[p, c] = _fractions(axis, lo * m - p, hi * m - p)
    return pairs


def _fractions(axis: int, lo: Fraction, hi: Fraction) -> Selection:
    if lo == 0 and hi == 1:
        return Whole()
    return Part(axis, lo.numerator, lo.denominator, hi.numerator, hi.denominator)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
