"""Who sends what to whom: from the partitions and world sizes at both ends of an edge to a static `Route`.

Nothing here touches values; `rolemesh.graph.values` applies the selections and combinations. Signatures and their
boxing follow OneFlow's SBP (arXiv:2110.15032, section 3.1), extended to M producers and N consumers.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal, TypeAlias

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

    What a rank sends and takes is worked out when it is asked for, so that a rank of many knows of its peers alone.
    `meet` says which ranks those are: of equal number; the consumer's, modulo `producers`; those whose shares of the
    value overlap; or all. Parts may be empty, and are sent all the same.
    """

    kind: str
    producers: int
    consumers: int
    meet: Literal["equal", "modulo", "overlap", "all"]
    cut: Literal["whole", "part", "block", "overlap"]
    axis: int
    combine: Combine

    def sources(self, consumer: int) -> range:
        """The producer ranks from which this one takes exactly one part each, in the order that `combine` wants."""
        m, n = self.producers, self.consumers
        match self.meet:
            case "equal":
                return range(consumer, consumer + 1)
            case "modulo":
                return range(consumer % m, consumer % m + 1)
            case "overlap":
                return range(consumer * m // n, -(-(consumer + 1) * m // n))
            case "all":
                return range(m)

    def targets(self, producer: int) -> range:
        """The consumer ranks that take something from this one."""
        m, n = self.producers, self.consumers
        match self.meet:
            case "equal":
                return range(producer, producer + 1)
            case "modulo":
                return range(producer, n, m)
            case "overlap":
                return range(producer * n // m, -(-(producer + 1) * n // m))
            case "all":
                return range(n)

    def sends(self, producer: int) -> tuple[Send, ...]:
        """What this producer rank sends."""
        grouped: dict[Selection, list[int]] = {}
        for consumer in self.targets(producer):
            grouped.setdefault(self._selection(producer, consumer), []).append(consumer)
        return tuple(Send(selection, tuple(consumers)) for selection, consumers in grouped.items())

    def sends_to(self, producer: int, consumer: int) -> Selection | None:
        """What `producer` sends to `consumer`, or None."""
        return self._selection(producer, consumer) if consumer in self.targets(producer) else None

    @property
    def whole(self) -> bool:
        """Every payload is its producer's whole value, so chunks can be passed on one by one in order."""
        match self.cut:
            case "part":
                return self.consumers == 1
            case "overlap":
                return self.producers % self.consumers == 0
            case cut:
                return cut == "whole"

    def _selection(self, producer: int, consumer: int) -> Selection:
        m, n = self.producers, self.consumers
        match self.cut:
            case "whole":
                return Whole()
            case "part":  # of a value that the producer has whole along the axis
                return _fractions(self.axis, Fraction(consumer, n), Fraction(consumer + 1, n))
            case "block":
                return Block(self.axis, consumer, n)
            case "overlap":  # producers cover [p/m, (p+1)/m) of the unit interval, consumers [c/n, (c+1)/n)
                lo = max(Fraction(producer, m), Fraction(consumer, n))
                hi = min(Fraction(producer + 1, m), Fraction(consumer + 1, n))
                return _fractions(self.axis, lo * m - producer, hi * m - producer)


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
    match src, dst:
        case Split(axis=a), Split(axis=b) if a == b and m == n:
            return _route("identity", m, n, "equal", "whole", a, Take())
        case Split(axis=a), Split(axis=b) if a == b:
            return _route("repartition", m, n, "overlap", "overlap", a, Concat(a))
        case Split(axis=a), Split(axis=b):
            return _route("all-to-all", m, n, "all", "part", b, Concat(a))
        case Split(axis=a), Broadcast():
            return _route("all-gather", m, n, "all", "whole", a, Concat(a))
        case Broadcast(), Split(axis=b):
            return _route("scatter", m, n, "modulo", "part", b, Take())
        case Broadcast(), Broadcast():
            return _route("identity" if m == n else "broadcast", m, n, "modulo", "whole", 0, Take())
        case Partial(op=op), Broadcast():
            return _route("reduce", m, n, "all", "whole", 0, Reduce(op))
        case Partial(op=op), Split(axis=b):
            return _route("reduce-scatter", m, n, "all", "part", b, Reduce(op))
        case Partial(), Partial():
            return _route("identity", m, n, "equal", "whole", 0, Take())
        case Sharded(), Broadcast():
            return _route("assemble", m, n, "all", "whole", 0, Assemble())
        case Sharded(), Sharded(dim=d):
            return _route("reshard", m, n, "all", "block", d, Reshard(d, n))
        case Broadcast(), Sharded(dim=d):
            return _route("shard", m, n, "modulo", "block", d, Reshard(d, n))
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


def _route(kind: str, m: int, n: int, meet: Any, cut: Any, axis: int, combine: Combine) -> Route:
    if m == 1 and isinstance(combine, Concat):
        combine = Take()
    if m == n == 1 and isinstance(combine, Take):
        kind = "identity"
    return Route(kind, m, n, meet, cut, axis, combine)


def _fractions(axis: int, lo: Fraction, hi: Fraction) -> Selection:
    if lo == 0 and hi == 1:
        return Whole()
    return Part(axis, lo.numerator, lo.denominator, hi.numerator, hi.denominator)


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
