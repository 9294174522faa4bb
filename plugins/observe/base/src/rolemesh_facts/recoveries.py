"""The story of each recovery, from the events of a run. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from rolemesh.api.observer import Event

__all__ = ["Story", "stories"]


class Story(NamedTuple):
    """One recovery, or a failure without one.

    - `began`: the time of the first symptom, in seconds since 1970: that of an earlier recovery if this one takes over
      before its ranks were ready.
    - `failures`: what failed, as the events say it.
    - `resume`: the restarted ranks, with the first step that each one runs again.
    - `trail`: what each level of the ladder proposed, and why it passed.
    - `ready_s`: seconds until the ranks were ready; `regained_s`: until they were where they had been. None: not yet.
    """

    number: int
    began: float
    failures: tuple[dict[str, Any], ...]
    level: str = ""
    reason: str = ""
    trail: tuple[str, ...] = ()
    restarted: tuple[str, ...] = ()
    resume: tuple[tuple[str, int], ...] = ()
    ready_s: float | None = None
    regained_s: float | None = None
    source: str = ""


class _Moment(NamedTuple):
    """The time of an event: in seconds since 1970, and on the monotonic clock of the boot `clock`; 0 if it has none."""

    wall: float
    at: float
    clock: str

    def since(self, earlier: _Moment) -> float:
        """Return the seconds from `earlier` on. A step of the wall clock does not count if both are of one boot."""
        one_clock = self.at and earlier.at and self.clock and self.clock == earlier.clock
        return max(0.0, self.at - earlier.at if one_clock else self.wall - earlier.wall)


def stories(events: Iterable[Event]) -> list[Story]:
    """Return the recoveries in the order in which they began. The function skips other and malformed events."""
    found: dict[int, Story] = {}
    moments: dict[int, _Moment] = {}
    failures: list[tuple[_Moment, dict[str, Any]]] = []
    last: tuple[str, ...] = ()
    left: _Moment | None = None
    clock = ""
    for event in events:
        data = event.data
        number = data.get("number")
        clock = str(data["clock"]) if event.kind in ("job_started", "master_recovered") and "clock" in data else clock
        now = _Moment(event.time, _number(data.get("at")), clock)
        if event.kind in ("failure", "hang") and isinstance(failure := data.get("failure", data), dict):
            silent_s = _number(data.get("silent_s"))
            began = now._replace(wall=now.wall - silent_s, at=now.at - silent_s if now.at else 0.0)
            failures.append((began, failure))
        elif event.kind == "recovery_planned" and isinstance(number, int):
            plan = data.get("plan")
            plan = plan if isinstance(plan, dict) else {}
            left = moments.setdefault(number, left or min((time for time, _ in failures), default=now))
            found[number] = Story(
                number,
                moments[number].wall,
                (*(found[number].failures if number in found else ()), *(failure for _, failure in failures)),
                str(plan.get("level", "")),
                str(plan.get("reason", "")),
                tuple(map(str, _list(data.get("trail")))),
                source=str(plan.get("source", "")),
            )
            failures = []
        elif event.kind == "recovery_launched" and number in found:
            ranks = [rank for rank in _list(data.get("ranks")) if isinstance(rank, dict)]
            names = [(f"{rank.get('role')}/{rank.get('rank')}", int(_number(rank.get("resume"))) + 1) for rank in ranks]
            story = found[number]
            source = story.source if any(step for _, step in names) else ""  # at step 0 there is no state yet
            restarted = tuple(name for name, _ in names)
            found[number] = story._replace(restarted=restarted, resume=tuple(names), source=source)
        elif event.kind == "recovered" and number in found:
            left = None
            found[number] = found[number]._replace(ready_s=now.since(moments[number]))
        elif event.kind == "regained" and number in found:
            found[number] = found[number]._replace(regained_s=now.since(moments[number]))
        elif event.kind == "ladder_exhausted":
            last = tuple(map(str, _list(data.get("trail"))))
    if failures:
        found[0] = Story(0, failures[0][0].wall, tuple(failure for _, failure in failures), trail=last)
    return list(found.values())


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) else 0.0
