"""Some steps of a role, undisturbed or with a kill between two calls, and the comparison of two such journeys."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from random import Random
from typing import Any

import msgspec

from rolemesh.api.workload import OperatorSpec
from rolemesh_runtime.digest import digest
from rolemesh_testing.workloads.ranks import Ranks
from rolemesh_testing.workloads.role import Called, Role
from rolemesh_testing.workloads.wire import Taken, unpacked

__all__ = ["Journey", "Kill", "boundaries", "differences", "drawn", "loads", "travel"]

Step = Callable[[Role, int], None]


class Kill(msgspec.Struct, frozen=True):
    """SIGKILL of `rank` before call number `call` (from 0; the number of all calls means after the last one)."""

    call: int
    rank: int


class Journey(msgspec.Struct):
    """The calls, every rank's state at the end, and the digests of the states before steps with a snapshot."""

    calls: list[Called]
    states: dict[int, Taken]
    digests: dict[int, list[str]] = {}


class _Traveller:
    """Plays the part of a job's kernel: keeps snapshots and inputs, and restarts killed ranks."""

    def __init__(
        self, ranks: Ranks, operators: Mapping[str, OperatorSpec], stateful: bool, repeats: bool, kills: Sequence[Kill]
    ) -> None:
        self._ranks, self._operators, self._stateful, self._kills = ranks, operators, stateful, kills
        self._repeats = repeats
        self._states: dict[int, Taken] = {}
        self.digests: dict[int, list[str]] = {}
        self._since = 0
        self.role: Role | None = None

    def boundary(self, step: int) -> None:
        """Take the snapshot between two steps, from which a rank restarts."""
        assert self.role is not None
        if self._stateful and step > 0:
            self._states = self._ranks.snapshot()
            self.digests[step] = [taken.digest for _, taken in sorted(self._states.items())]
            self._since = len(self.role.calls)

    def before_call(self, number: int) -> None:
        """Kill the rank if it is time, and restart it."""
        kill = next((each for each in self._kills if each.call == number), None)
        if kill is None:
            return
        victims = self._ranks.kill(kill.rank)
        states = {v: taken.state for v in victims if (taken := self._states.get(v)) and taken.state is not None}
        self._ranks.restore(states)
        for called in self._lost():
            for victim, reply in called.again(self._ranks, victims).items():
                assert reply.fingerprint == called.fingerprints[victim], (
                    f"{called}: rank {victim} was killed, started again and returned something else than before"
                )

    def _lost(self) -> Iterator[Called]:
        """Return the calls to repeat: those since the snapshot. Without state, the last loads come first.

        The caller already has the answers of services, so those calls are not repeated.
        """
        assert self.role is not None
        calls = [called for called in self.role.calls[: self._since] if not called.service]
        since = [called for called in self.role.calls[self._since :] if not called.service]
        if not self._stateful:
            step = self.role.current_step
            yield from loads([called for called in since if called.step < step], self._operators)
            yield from (called for called in since if called.step == step)
        else:
            yield from loads(calls, self._operators) if self._repeats else ()
            yield from since


def loads(calls: Sequence[Called], operators: Mapping[str, OperatorSpec]) -> list[Called]:
    """Return the last call of each operator without a result, in their order."""
    made = [called for called in calls if not called.service]
    silent = {called.operator: called for called in made if operators[called.operator].returns is None}
    return [called for called in calls if silent.get(called.operator) is called]


def drawn(calls: Sequence[Called], number: int, world_size: int, random: Random) -> list[Kill]:
    """Return `number` kills at drawn places, spread over all calls; fewer if there are fewer places."""
    places = boundaries(calls)[1:]
    number = min(number, len(places))
    parts = [places[len(places) * at // number : len(places) * (at + 1) // number] for at in range(number)]
    return [Kill(random.choice(part), random.randrange(world_size)) for part in parts]


def boundaries(calls: Sequence[Called]) -> list[int]:
    """Return the numbers of the calls before which a kill is possible, and the number of all calls. A session excludes
    kills.
    """
    named = [called.session for called in calls]
    return [n for n in range(len(calls) + 1) if not ({*named[:n]} & {*named[n:]}) - {""}]


def travel(
    ranks: Ranks,
    operators: Mapping[str, OperatorSpec],
    step: Step,
    steps: Iterable[int],
    *,
    stateful: bool,
    repeats: bool = False,
    kills: Sequence[Kill] = (),
    every: int = 1,
    chunk_rows: int = 0,
    between: Callable[[], None] | None = None,
    services: Mapping[str, Any] | None = None,
) -> Journey:
    """Call `step` for all of `steps`, with a snapshot every `every` steps, and return the states at the end.

    The function calls `between` between two steps. Raises `RankRaised` or `RankDied` if a rank failed, and
    `AssertionError` if a restarted rank has another identity.
    """
    traveller = _Traveller(ranks, operators, stateful, repeats, kills)
    before = traveller.before_call
    role = traveller.role = Role(ranks, operators, chunk_rows=chunk_rows, before=before, services=services)
    for number in steps:
        role.current_step = number
        if number % every == 0:
            traveller.boundary(number)
        step(role, number)
        if between is not None:
            between()
    traveller.before_call(len(role.calls))
    return Journey(role.calls, ranks.snapshot() if stateful else {}, traveller.digests)


def differences(one: Journey, other: Journey, calls_from: int = 0) -> list[str]:
    """Return the differences of two journeys, of `one` only from call `calls_from` on; [] if there are none."""
    found = []
    mine = one.calls[calls_from:]
    if len(mine) != len(other.calls):
        return [f"{len(mine)} calls in one, {len(other.calls)} in the other"]
    for here, there in zip(mine, other.calls, strict=True):
        found += [
            f"{here}: rank {rank} returned something else"
            for rank, fingerprint in here.fingerprints.items()
            if there.fingerprints.get(rank) != fingerprint
        ]
    found += [
        f"the state of rank {rank} differs at the end{_entries(taken, other.states[rank])}"
        for rank, taken in one.states.items()
        if rank in other.states and other.states[rank].digest != taken.digest
    ]
    return found


def _entries(one: Taken, other: Taken) -> str:
    if one.state is None or other.state is None:
        return ": one has none"
    here, there = unpacked(one.state), unpacked(other.state)
    if here.keys() != there.keys():
        return f": the entries {sorted(here.keys() ^ there.keys())} are in one only"
    names = [name for name in here if digest({"value": here[name]}) != digest({"value": there[name]})]
    return f" in {', '.join(names)}"
