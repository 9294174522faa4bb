"""Conformance of a scaler: for every load it returns possible sizes or None, and the same answer each time."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from pydantic import BaseModel

from rolemesh.plugins.discovery import PluginRecord
from rolemesh_durable.scalers import Load, Scaler, ScalerOptions, Wanted
from rolemesh_testing.clock import OFFSETS, shifted
from rolemesh_testing.conformance import PluginConformance, needed
from rolemesh_testing.pools import Pool, pooled
from rolemesh_testing.scalers.loads import large, load
from rolemesh_testing.subprocess_probe import Subject, ask_elsewhere

__all__ = ["ScalerConformance"]

LATE_S = 30.0
"""Seconds after which the master warns of a scaler that does not answer."""


class ScalerConformance(PluginConformance):
    """Subclass it with `plugin` and `options`. The scaler gets drawn loads."""

    kind = "scalers"
    examples: ClassVar[int] = 200
    """Number of drawn loads."""
    roles: ClassVar[Sequence[str]] = ("data", "rollout", "reward", "trainer")
    """Names of the roles in drawn jobs, the first ones first. Set it if the scaler's options name roles."""
    simplify: ClassVar[bool] = True
    """True to search for the simplest load when a test fails, which takes seconds."""

    @pytest.fixture
    def scaler(self, cls: type[Scaler], checked_options: BaseModel, request: pytest.FixtureRequest) -> Scaler:
        """The scaler."""
        return needed(request, "it cannot be created", lambda: cls(checked_options))

    def pool(self) -> Pool[Load]:
        """The drawn loads, the same for all tests of the class."""
        roles = tuple(self.roles)
        return pooled(Load, lambda random: load(random, roles), self.examples, roles)

    # --------------------------------------------------------------------------------------------------- declaration

    def test_its_options_are_a_scalers(self, cls: type[Scaler]) -> None:
        """`period_s`, `agree` and `cool_down_s` say when the master asks the scaler, and which answers count."""
        name = cls.Options.__name__
        assert issubclass(cls.Options, ScalerOptions), (
            f"write class {name}(ScalerOptions), from rolemesh_durable.scalers"
        )

    # ------------------------------------------------------------------------------------------------------- answers

    def test_it_answers_every_load(self, scaler: Scaler) -> None:
        """The answer is `Wanted` or None. Roles may lack a range, free resources or edges, and may be idle or busy."""

        def check(at: Load) -> None:
            _answer(scaler, at)

        self._for_all(check)

    def test_it_wants_sizes_that_a_role_can_have(self, scaler: Scaler) -> None:
        """The answer has whole numbers from 1 on, for roles that have a range. The master ignores all others."""

        def check(at: Load) -> None:
            wanted = _answer(scaler, at)
            ranges = {role.role: (role.least, role.most) for role in at.roles}
            for role, size in (wanted.sizes if wanted is not None else {}).items():
                assert role in ranges, f"it wants {size} ranks for {role!r}, which is no role of the job"
                least, most = ranges[role]
                assert least < most, f"it wants {size} ranks for {role}, which has {least} and no range"
                assert type(size) is int, f"it wants {size!r} ranks for {role}, which is no whole number"
                assert size >= 1, f"it wants {size} ranks for {role}"

        self._for_all(check)

    def test_its_answers_have_a_reason(self, scaler: Scaler) -> None:
        """The journal keeps the reason, for a user who asks later why the job was resized."""

        def check(at: Load) -> None:
            wanted = _answer(scaler, at)
            assert wanted is None or wanted.reason.strip(), (
                f"it wants {wanted.sizes if wanted else {}} without a reason"
            )

        self._for_all(check)

    def test_the_same_load_has_the_same_answer(self, cls: type[Scaler], checked_options: BaseModel) -> None:
        """A restarted master asks again, and `agree` counts equal answers.

        The answer may use no randomness, no memory, and no clock except `Load.now`.
        """
        used, fresh = cls(checked_options), cls(checked_options)
        loads = list(self.pool())
        first = [_answer(used, at) for at in loads]
        for at, wanted in zip(reversed(loads), reversed(first), strict=True):
            same = _answer(fresh, at) == wanted == _answer(used, at)
            assert same, "the answer depends on what it was asked before, or on chance"
        for seconds in OFFSETS:
            with shifted(seconds, cls.__module__):
                for at, wanted in zip(loads[:20], first, strict=False):
                    assert _answer(fresh, at) == wanted, f"{seconds} s later the answer is another one; use Load.now"

    def test_another_process_has_the_same_answer(self, record: PluginRecord, scaler: Scaler) -> None:
        """The other process has another hash seed and no memory, like a master after a restart."""
        few = list(self.pool())[:50]
        payload = msgspec.json.encode(few)
        for _ in range(2):
            used = msgspec.json.encode([_answer(scaler, at) for at in few])
        subject = Subject(record, dict(self.options), "")
        # The seeds 1 and 2 order some small sets alike.
        answers = {ask_elsewhere(_decide_there, subject, payload, hash_seed=seed) for seed in (1, 2, 3)}
        assert len(answers) == 1, "the answer depends on the order of hashes: sort your sets"
        assert answers == {used}, "a process that was asked before answers differently"

    def test_it_does_not_write_to_the_load(self, scaler: Scaler) -> None:
        """All scalers of the job get the same object."""
        for at in self.pool():
            before = msgspec.msgpack.encode(at)
            _answer(scaler, at)
            assert msgspec.msgpack.encode(at) == before, "decide() writes to its argument; copy it first"

    def test_it_answers_in_time_for_sixty_roles(self, scaler: Scaler) -> None:
        """The master warns after 30 s, and sends no other question meanwhile."""
        roles, began = large(), time.monotonic()
        _answer(scaler, roles, names=False)
        took = time.monotonic() - began
        assert took < LATE_S, f"a job of {len(roles.roles)} roles took {took:.0f} s"

    def _for_all(self, check: Callable[[Load], None]) -> None:
        self.pool().check(check, simplify=self.simplify)


def _decide_there(subject: Subject, loads: bytes) -> bytes:
    cls, options = subject.loaded()
    scaler = cls(options)
    return msgspec.json.encode([_answer(scaler, at) for at in msgspec.json.decode(loads, type=list[Load])])


def _answer(scaler: Scaler, at: Load, names: bool = True) -> Wanted | None:
    """Return the answer.

    Raises `AssertionError` if the scaler raises. An error about the names of roles counts only with `names`.
    """
    try:
        wanted: Any = scaler.decide(at)
    except Exception as error:
        if not names:
            return None
        raise AssertionError(
            f"decide() raises {type(error).__name__}: {error}; return None where all is well"
        ) from error
    assert wanted is None or isinstance(wanted, Wanted), f"decide() returned {wanted!r}, neither a Wanted nor None"
    return wanted
