"""The environment variables of roles that share one process."""

from __future__ import annotations

import os
from collections.abc import Mapping

__all__ = ["RoleVariables"]


class RoleVariables:
    """Sets the variables of one role at a time. An asynchronous service may see another role's after an ``await``."""

    def __init__(self, roles: Mapping[str, Mapping[str, str]]) -> None:
        """`roles`: the variables of each role."""
        names = {name for variables in roles.values() for name in variables}
        self._before = {name: os.environ.get(name) for name in names}
        self._roles = {role: {**self._before, **variables} for role, variables in roles.items()}
        self._role: str | None = None

    def become(self, role: str) -> None:
        """Set the variables of `role`, and those of other roles to what they were."""
        if role != self._role:
            self._role = role
            _set(self._roles[role])

    def restore(self) -> None:
        """Set all variables to what they were."""
        self._role = None
        _set(self._before)


def _set(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        elif os.environ.get(name) != value:
            os.environ[name] = value
