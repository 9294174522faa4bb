"""The environment variables of a role's processes: those of the job file, of the user, and defaults."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rolemesh.plugins.select import Selected

__all__ = ["role_variables"]

NO_DEFAULT = {("PYTHONHASHSEED", "random")}
"""Settings of the user that would make a restarted rank compute other values."""


def role_variables(
    selected: Selected, given: Mapping[str, str], base: Mapping[str, str] = {}
) -> tuple[Sequence[str], dict[str, str]]:
    """Return the modules to preload and the variables of a role's processes.

    The variables `given` in the job file come first, then those that the workload's options ask for, then those of this
    process's environment, and last the defaults: `base` and the workload's `env`. A variable of this environment that
    has no default is left out, since processes inherit it.
    """
    preload, asked = selected.cls.process(selected.options)
    defaults = {name: value for name, value in asked.items() if selected.cls.env.get(name) == value}
    found = os.environ.items()
    told = {name: value for name, value in found if name in {**base, **defaults} and (name, value) not in NO_DEFAULT}
    return preload, {**defaults, **told, **{n: v for n, v in asked.items() if n not in defaults}, **given}
