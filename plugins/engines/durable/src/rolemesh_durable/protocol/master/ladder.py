"""The failover ladder: from failures to one recovery plan, or to the reasons why there is none. Pure.

Repeated recoveries without progress are delayed exponentially, whichever level makes them: a disturbance may pass, and
must not use up every budget in a second. The first recovery after progress is immediate. A delay counts from the moment
at which the ranks were ready again, so ranks that have lived longer than that do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from rolemesh.api.failover import GiveUp
from rolemesh.api.failures import Attempt, Failure, JobView, Pass, RecoveryPlan, Scope, Verdict, describe
from rolemesh.api.rank_ref import RankRef
from rolemesh.errors import RolemeshError
from rolemesh_durable.protocol.master.primary import weight

__all__ = ["Diagnose", "Ladder", "LadderLevel", "Proposal", "Refuse", "Tried", "backoff", "delay_of", "diagnosed"]
__all__ += ["escalated", "in_vain", "propose"]

Diagnose: TypeAlias = Callable[[Failure, JobView], Verdict | None]
"""The hook `diagnose` of one plugin."""
Refuse: TypeAlias = Callable[[Mapping[str, int]], str]
"""Returns why the job cannot have these world sizes on any cluster; "" if it may."""

FIRST_DELAY_S = 0.5
"""Minimum seconds between the end of the first recovery and the second attempt; twice as many for each further one."""
MAX_DELAY_S = 30.0
SOON_S = 1.0
"""Ranks that fail again within this many seconds after a recovery made no progress, whatever steps they finished."""

_SCOPES: tuple[Scope, ...] = ("process", "node", "job")


class LadderLevel(msgspec.Struct, frozen=True):
    """A level of the job's ladder: its name in the job file, its budget, and its hook `recover`."""

    name: str
    scope: Scope
    max_attempts: int
    window_s: float
    recover: Callable[[Failure, JobView], RecoveryPlan | Pass | GiveUp | None]


Ladder: TypeAlias = Sequence[LadderLevel]
Asked: TypeAlias = RecoveryPlan | GiveUp | str
"""The answer of a level; a text is the reason to ask the next level."""


class Tried(msgspec.Struct, frozen=True):
    """A plan's answer to one failure.

    `level` is the level that answers it; "" if the answer to another failure covers it. `moves`: the level wants new
    places for the ranks.
    """

    level: str = ""
    moves: bool = False


class Proposal(msgspec.Struct, frozen=True):
    """The ladder's answer to failures: `plan`, or None if no level has a plan.

    - `trail`: each level's reason.
    - `verdicts`: one for each cause that a diagnoser knows.
    - `attempt`: the number of recoveries in a row without progress, this one included.
    - `tried`: one entry per failure.
    - `ended_by`: the level that ends the job; "" if none does.
    """

    plan: RecoveryPlan | None
    trail: tuple[str, ...]
    verdicts: tuple[Verdict, ...]
    attempt: int = 1
    tried: tuple[Tried, ...] = ()
    ended_by: str = ""


def escalated(
    found: Sequence[Failure], tried: Sequence[Tried], view: JobView, ladder: Ladder, no_place: bool
) -> list[int]:
    """Return the level from which each failure escalates after a plan failed. `tried` holds the plan's answers.

    With `no_place`, only failures whose own level wanted a place for their ranks go on to the next level. Otherwise the
    others would leave nodes without a fault, or exhaust the ladder.
    """
    names = [level.name for level in ladder]
    to_blame = [
        not no_place or (at.moves and view.lost_with(each) != ()) for each, at in zip(found, tried, strict=False)
    ]
    return [
        names.index(at.level) + (to_blame[index] or not any(to_blame)) if at.level in names else 0
        for index, at in enumerate(tried)
    ]


def backoff(attempt: int) -> float:
    """Return the minimum seconds between attempt number `attempt` (from 1) in a row and the one before."""
    return min(MAX_DELAY_S, FIRST_DELAY_S * 2.0 ** min(attempt - 2, 16)) if attempt > 1 else 0.0


def delay_of(vain: Sequence[Attempt], now: float) -> float:
    """Return the seconds to wait before the next attempt after those in `vain`, newest first.

    The time for which the ranks have lived since counts. It counts as none if the newest attempt did not succeed.
    """
    lived = now - vain[0].ended_at if vain and vain[0].outcome == "recovered" else 0.0
    return max(0.0, backoff(len(vain) + 1) - max(0.0, lived))


def in_vain(lost: Collection[RankRef], view: JobView) -> list[Attempt]:
    """Return the latest recoveries of these ranks after which they made no progress, newest first.

    They made progress if one of them finished a step that none of them had before, and no failure came within `SOON_S`
    of the recovery.
    """
    found: list[Attempt] = []
    attempts = [attempt for attempt in view.attempts if any(key in lost for key in attempt.restart)]
    until, reached = view.now, {r.ref: r.finished for r in view.ranks} if attempts else {}
    for attempt in reversed(attempts):
        before = {key: step for role, rank, step in attempt.reached if (key := RankRef(role, rank)) in lost}
        further = any(reached.get(key, -1) > step for key, step in before.items())
        if further and attempt.outcome == "recovered" and until >= attempt.ended_at + SOON_S:
            break
        found.append(attempt)
        until, reached = attempt.at, reached | before
    return found


def diagnosed(failure: Failure, view: JobView, diagnosers: Sequence[Diagnose]) -> Verdict | None:
    """Return the first verdict. A diagnoser that raises is skipped."""
    for diagnose in diagnosers:
        try:
            verdict = diagnose(failure, view)
        except RolemeshError:
            continue
        if verdict is not None:
            return verdict
    return None


def propose(
    found: Sequence[Failure],
    view: JobView,
    ladder: Ladder,
    diagnosers: Sequence[Diagnose],
    floors: Sequence[int] = (),
    refuse: Refuse = lambda sizes: "",
) -> Proposal:
    """Return one plan for all of `found`, or the reasons why there is none.

    Each failure escalates for itself, from its verdict's level, and not below its level in `floors`, which a failed
    plan leaves. The plans are merged. If one failure has no plan, there is none. A plan is skipped if `refuse` objects
    to its world sizes, or if it gives a rank more than the job file allows.
    """
    plans: list[RecoveryPlan] = []
    attempts = 0
    trail: list[str] = []
    verdicts: list[Verdict] = []
    tried = [Tried()] * len(found)
    for index in _causes(found, view):
        failure, floor = found[index], floors[index] if index < len(floors) else 0
        if (verdict := diagnosed(failure, view, diagnosers)) is not None:
            verdicts.append(verdict)
        else:
            verdict = Verdict("unknown", "no diagnoser knows it")
        trail.append(f"{describe(failure)} [{verdict.kind}: {verdict.reason}]")
        if verdict.fatal:
            return Proposal(None, tuple(trail), tuple(verdicts))
        lost = set(view.lost_with(failure))
        vain = in_vain(lost, view)
        plan = _escalate(failure, lost, vain, verdict, view, ladder, floor, refuse, trail)
        if isinstance(plan, LadderLevel):
            return Proposal(None, tuple(trail), tuple(verdicts), ended_by=plan.name)
        if plan is None and not lost and len(found) > 1:
            continue  # its ranks are elsewhere
        if plan is None:
            return Proposal(None, tuple(trail), tuple(verdicts))
        if not floors:  # the next level's turn, after a plan that could not be carried out, is no repetition
            plan = msgspec.structs.replace(plan, delay_s=max(plan.delay_s, delay_of(vain, view.now)))
        attempts = max(attempts, len(vain) + 1)
        plans.append(plan)
        tried[index] = Tried(plan.level, bool(plan.avoid or plan.resize or plan.resources))
    if not plans:
        return Proposal(None, tuple(trail), tuple(verdicts))
    return Proposal(_merged(plans, view, ladder), tuple(trail), tuple(verdicts), attempts, tuple(tried))


def _causes(found: Sequence[Failure], view: JobView) -> list[int]:
    """Return the failures that took down ranks which no other one did. The others are echoes in one group."""
    causes: list[int] = []
    down: set[RankRef] = set()
    for index in sorted(range(len(found)), key=lambda index: weight(found[index])):
        if found[index].ref in down:
            continue  # its group is down, too
        lost = set(view.lost_with(found[index]))
        if not lost <= down or not causes:
            causes.append(index)
        down |= lost
    return causes


def _escalate(
    failure: Failure,
    lost: Collection[RankRef],
    vain: Collection[Attempt],
    verdict: Verdict,
    view: JobView,
    ladder: Ladder,
    floor: int,
    refuse: Refuse,
    trail: list[str],
) -> RecoveryPlan | LadderLevel | None:
    """Return the plan of the first level that has one, or the level that ends the job.

    Each level's reason goes to `trail`.
    """
    lowest: Scope = "node" if verdict.kind == "hardware" else "process"
    if not ladder:
        trail.append("  the job has no failover level")
    for index, level in enumerate(ladder):
        if _SCOPES.index(level.scope) < _SCOPES.index(lowest):
            found: Asked = "passed over, the fault is not in a process"
        elif index < floor:
            found = "its plan failed before"
        else:
            found = _spent(level, lost, vain, view) or _asked(level, failure, verdict, view, refuse)
        if isinstance(found, GiveUp):
            trail.append(f"  {level.name} ends the job: {found.reason}")
            return level
        if isinstance(found, RecoveryPlan):
            trail.append(f"  {level.name}: {found.reason or 'restart'}")
            return _completed(found, level, lost, view)
        trail.append(f"  {level.name}: {found}")
    return None


def _spent(level: LadderLevel, lost: Collection[RankRef], vain: Collection[Attempt], view: JobView) -> str:
    """Return a text if the level has used its budget for the `lost` ranks; "" if it has not.

    Time renews the budget only for what has helped. Otherwise the ladder would repeat a useless level forever, slowly.
    """
    spent = [
        attempt
        for attempt in view.attempts
        if attempt.level == level.name
        and (attempt.at > view.now - level.window_s or any(attempt is other for other in vain))
        and any(key in lost for key in attempt.restart)
    ]
    if len(spent) < level.max_attempts:
        return ""
    since = max(level.window_s, view.now - spent[0].at)
    return f"tried {len(spent)} times in {since:.0f} s, which is its budget"


def _asked(level: LadderLevel, failure: Failure, verdict: Verdict, view: JobView, refuse: Refuse) -> Asked:
    """Return the level's plan if it can be carried out, or a text with the reason to ask the next level."""
    try:
        plan = level.recover(failure, msgspec.structs.replace(view, verdict=verdict))
    except RolemeshError as error:
        return str(error)
    if isinstance(plan, GiveUp):
        return plan
    if plan is None or isinstance(plan, Pass):
        return plan.reason if plan is not None else "has nothing to propose"
    if not plan.restart and plan.source == "memory":
        return "proposes to restart nothing"
    if failure.cause == "log_lost" and plan.source == "memory":
        return "passed over, those who have used what is lost must go back, too"
    return (refuse(plan.resize) if plan.resize else "") or _exceeds(plan.resources, view) or plan


def _completed(plan: RecoveryPlan, level: LadderLevel, lost: Collection[RankRef], view: JobView) -> RecoveryPlan:
    """Return the plan with the level's name, and with all ranks that start again."""
    given = {role: view.resources[role] | amounts for role, amounts in plan.resources.items()}
    all_of = [r.ref for r in view.ranks if r.role in given]
    return msgspec.structs.replace(
        plan,
        level=level.name,
        restart=tuple(dict.fromkeys((*plan.restart, *lost, *all_of))),
        source="disk" if plan.resize else plan.source,
        resources=given,
    )


def _exceeds(wanted: Mapping[str, Mapping[str, float]], view: JobView) -> str:
    """Return why ranks of these roles cannot have these resources on any cluster; "" if they may."""
    for role, amounts in wanted.items():
        if role not in view.resources:
            return f"the job has no role {role!r}; it has {', '.join(view.resources)}"
        for name, amount in amounts.items():
            if not 0 <= amount <= (most := view.most.get(role, {}).get(name, view.resources[role].get(name, 0.0))):
                return f"role {role} may have {name} {most:g} (resources.most in the job file), not {amount:g}"
    return ""


def _merged(plans: Sequence[RecoveryPlan], view: JobView, ladder: Ladder) -> RecoveryPlan:
    """Merge the plans and complete their groups. "disk" includes every rank, and the smallest requested size counts."""
    order = [level.name for level in ladder]
    known = {r.ref for r in view.ranks}
    disk = any(plan.source == "disk" for plan in plans)
    named = {key for plan in plans for key in plan.restart if key in known}
    whole = {role for role, _ in named}.intersection(view.collective)
    wanted = known if disk else named | {ref for ref in known if ref.role in whole}
    return RecoveryPlan(
        level=max((plan.level for plan in plans), key=order.index),
        restart=tuple(r.ref for r in view.ranks if r.ref in wanted),
        source="disk" if disk else "memory",
        avoid=tuple(dict.fromkeys(node for plan in plans for node in (*plan.avoid, *plan.ban))),
        wait_s=max(plan.wait_s for plan in plans),
        delay_s=max(plan.delay_s for plan in plans),
        reason="; ".join(dict.fromkeys(plan.reason for plan in plans if plan.reason)),
        resize={role: min(p.resize.get(role, n) for p in plans) for plan in plans for role, n in plan.resize.items()},
        resources=_most(plan.resources for plan in plans),
        ban={node: max(p.ban.get(node, 0.0) for p in plans) for plan in plans for node in plan.ban},
    )


def _most(given: Iterable[Mapping[str, dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Return the largest amount that any plan gives, for each resource of each role."""
    found: dict[str, dict[str, float]] = {}
    for role, amounts in (each for resources in given for each in resources.items()):
        before = found.get(role, {})
        found[role] = {name: max(amount, before.get(name, amount)) for name, amount in amounts.items()}
    return found
