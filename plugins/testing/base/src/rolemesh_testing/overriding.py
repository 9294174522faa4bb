"""Replaces a standard test. Each replacement needs a reason, which every report prints."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

__all__ = ["check_overrides", "override", "overrides_of", "reason_of"]

F = TypeVar("F", bound=Callable[..., Any])


def override(reason: str) -> Callable[[F], F]:
    """Mark a test as the replacement of the standard test of its name. `reason` says why that one does not apply."""
    if not isinstance(reason, str) or not reason.strip():
        raise TypeError('override needs a reason: @override("why the standard test does not apply")')

    def mark(function: F) -> F:
        function.__rolemesh_override__ = reason.strip()  # type: ignore[attr-defined]
        return function

    return mark


def reason_of(function: Any) -> str | None:
    """Return the reason of a replacement; None for any other test."""
    return getattr(function, "__rolemesh_override__", None)


def overrides_of(cls: type[Any]) -> Iterator[tuple[str, str]]:
    """Return the standard tests that a class replaces, with the reasons."""
    for name in sorted(dir(cls)):
        if name.startswith("test_") and (reason := reason_of(getattr(cls, name, None))) is not None:
            yield name, reason


def check_overrides(cls: type[Any]) -> None:
    """Raise `TypeError` if a class replaces a standard test without a reason."""
    for name, value in vars(cls).items():
        standard = next((base for base in cls.__mro__[1:] if name in vars(base)), None)
        if name.startswith("test_") and standard is not None and reason_of(value) is None:
            raise TypeError(
                f"{cls.__name__}.{name} replaces the standard test of {standard.__name__} without a reason; "
                'mark it @override("why the standard test does not apply"), from rolemesh_testing'
            )
