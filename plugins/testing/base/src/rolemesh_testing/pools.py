"""Draws inputs for plugins: the same in every run. For a wrong answer it searches the simplest input."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from random import Random
from typing import Any, Generic, TypeVar

import msgspec

__all__ = ["Pool", "pooled"]

T = TypeVar("T")


class Pool(Generic[T]):
    """`size` values that ``draw(random)`` makes. Each iteration makes new objects."""

    def __init__(self, kind: type[T], draw: Callable[[Random], T], size: int) -> None:
        """`kind` is a msgspec struct, which survives MessagePack."""
        self._kind, self._draw, self._size = kind, draw, size
        self._drawn = [msgspec.msgpack.encode(draw(Random(seed))) for seed in range(size)]

    def __iter__(self) -> Iterator[T]:
        for data in self._drawn:
            yield msgspec.msgpack.decode(data, type=self._kind)

    def check(self, check: Callable[[T], None], *, simplify: bool = True) -> None:
        """Call `check` with each value, and raise its exception. With `simplify`, raise it for the simplest value
        found.
        """
        for value in self:
            try:
                check(value)
            except Exception:
                if simplify:
                    self._search(check)
                raise

    def _search(self, check: Callable[[T], None]) -> None:
        """Search a value with hypothesis for which `check` raises, with the fewest and smallest choices; raise its
        exception.
        """
        from hypothesis import HealthCheck, Phase, given, settings
        from hypothesis import strategies as st

        limits = settings(
            max_examples=10 * self._size,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )

        @limits
        @given(st.randoms(use_true_random=False))
        def checked(random: Random) -> None:
            check(self._draw(random))

        checked()


_POOLS: dict[Hashable, Pool[Any]] = {}


def pooled(kind: type[T], draw: Callable[[Random], T], size: int, *key: Hashable) -> Pool[T]:
    """Return the pool for `draw`, which depends on `key` only. A process makes it once."""
    whole: Hashable = (kind.__qualname__, size, *key)
    if whole not in _POOLS:
        _POOLS[whole] = Pool(kind, draw, size)
    return _POOLS[whole]
