"""Scalers that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

import time
from typing import Any

from pydantic import BaseModel

from rolemesh_durable.scalers import Load, Scaler, ScalerOptions, Wanted

__all__ = ["BROKEN", "Sound"]

BEGAN = time.time()


class Sound(Scaler):
    """Gives the busiest role another rank."""

    Options = ScalerOptions

    def decide(self, load: Load) -> Wanted | None:
        may = [role for role in load.roles if role.least < role.most and role.busy > 0.9]
        if not may:
            return None
        role = max(may, key=lambda role: (role.busy, role.role))
        return Wanted({role.role: role.ranks + 1}, f"{role.role} is busy")


class Free(BaseModel, extra="forbid"):
    """Options without the period of the scaler."""


class WithoutPeriod(Sound):
    """A scaler without a period."""

    Options = Free  # type: ignore[assignment]


class Divides(Sound):
    """Divides by how busy a role is."""

    def decide(self, load: Load) -> Wanted | None:
        [1 / role.busy for role in load.roles]
        return super().decide(load)


class Answers(Sound):
    """Answers the sizes alone."""

    def decide(self, load: Load) -> Any:
        wanted = super().decide(load)
        return wanted.sizes if wanted else None


class Inventive(Sound):
    """Wants ranks for a role that there is not."""

    def decide(self, load: Load) -> Wanted | None:
        return Wanted({"spare": 2}, "to be safe")


class Proportional(Sound):
    """Wants parts of ranks."""

    def decide(self, load: Load) -> Wanted | None:
        wanted: dict[str, Any] = {
            role.role: role.ranks * role.busy + 1 for role in load.roles if role.least < role.most
        }
        return Wanted(wanted, "as they are busy") if wanted else None


class Stubborn(Sound):
    """Wants more of roles that have no range."""

    def decide(self, load: Load) -> Wanted | None:
        return Wanted({role.role: role.ranks + 1 for role in load.roles}, "more is better")


class Silent(Sound):
    """Says nothing about why."""

    def decide(self, load: Load) -> Wanted | None:
        wanted = super().decide(load)
        return Wanted(wanted.sizes, " ") if wanted else None


class Remembering(Sound):
    """Answers every other time, which `agree` is for."""

    asked = 0

    def decide(self, load: Load) -> Wanted | None:
        self.asked += 1
        return super().decide(load) if self.asked % 2 else None


class Punctual(Sound):
    """Answers by the clock on the wall."""

    def decide(self, load: Load) -> Wanted | None:
        return super().decide(load) if time.time() < BEGAN + 1e5 else None


class Hashing(Sound):
    """Goes through a set."""

    def decide(self, load: Load) -> Wanted | None:
        may = {role.role: role.ranks for role in load.roles if role.least < role.most}
        return Wanted({role: may[role] + 1 for role in {*may}}, "one more for each") if may else None


class Scribbling(Sound):
    """Crosses out what it has looked at."""

    def decide(self, load: Load) -> Wanted | None:
        object.__setattr__(load, "roles", tuple(sorted(load.roles, key=lambda role: -role.busy))[:1])
        return super().decide(load)


class Thorough(Sound):
    """Looks at every pair of roles for a while."""

    def decide(self, load: Load) -> Wanted | None:
        time.sleep(len(load.roles) ** 2 / 1800 if len(load.roles) > 10 else 0)
        return super().decide(load)


ALIKE = "test_the_same_load_has_the_same_answer"
SIZES = "test_it_wants_sizes_that_a_role_can_have"


class Nightly(Sound):
    """Gives ranks back at night, by the clock of the master's node."""

    def decide(self, load: Load) -> Wanted | None:
        return super().decide(load) if time.localtime().tm_hour % 2 else None


BROKEN: dict[type[Scaler], set[str]] = {
    WithoutPeriod: {"test_its_options_are_a_scalers"},
    Divides: {"test_it_answers_every_load"},
    Answers: {"test_it_answers_every_load"},
    Inventive: {SIZES},
    Proportional: {SIZES},
    Stubborn: {SIZES},
    Silent: {"test_its_answers_have_a_reason"},
    Remembering: {ALIKE},
    Punctual: {ALIKE},
    Nightly: {ALIKE},
    Hashing: {"test_another_process_has_the_same_answer"},
    Scribbling: {"test_it_does_not_write_to_the_load"},
    Thorough: {"test_it_answers_in_time_for_sixty_roles"},
}
