"""What plugins of most kinds have in common."""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import BaseModel


class NoOptions(BaseModel, extra="forbid"):
    """A plugin without options."""


class Plugin:
    """Made with its options, which have been checked against `Options`."""

    Options: ClassVar[type[BaseModel]] = NoOptions
    """A pydantic model; its fields are what a job file may say under ``options``."""
    api_version: ClassVar[int] = 1
    """The version of its kind's interface that the class was written for."""

    def __init__(self, options: Any) -> None:
        self.options = options
