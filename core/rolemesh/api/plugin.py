"""The base class of plugins of most kinds."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel


class NoOptions(BaseModel, extra="forbid"):
    """A plugin without options."""


class Plugin:
    """Base class of plugins. An instance has its options, checked against `Options`."""

    Options: ClassVar[type[BaseModel]] = NoOptions
    """A pydantic model with the keys that a job file may have under ``options``."""
    api_version: ClassVar[int] = 1
    """Version of the kind's interface that the class implements."""

    def __init__(self, options: Any) -> None:
        self.options = options
