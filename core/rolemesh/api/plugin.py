"""The base class of plugins of most kinds."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel


class NoOptions(BaseModel, extra="forbid"):
    """A plugin without options."""


class Plugin:
    """Base of plugins: an object has its options, checked against `Options`."""

    Options: ClassVar[type[BaseModel]] = NoOptions
    """A pydantic model with the keys that a job file may have under ``options``."""
    api_version: ClassVar[int] = 1
    """The version of the kind's interface for which the class is written."""

    def __init__(self, options: Any) -> None:
        self.options = options
