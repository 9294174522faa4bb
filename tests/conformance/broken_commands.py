"""Commands that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar

import typer
from pydantic import BaseModel, Field

from rolemesh.api.command import Command, RunOption
from rolemesh.plugins.discovery import PluginRecord

__all__ = ["BROKEN", "RENAMED", "Quiet", "Sound"]


def tidy(
    folder: Annotated[str, typer.Argument(help="The folder to tidy up.")],
    really: Annotated[bool, typer.Option(help="Remove what is found.")] = False,
) -> None:
    """Remove what jobs have left."""


def undocumented(folder: Annotated[str, typer.Argument(help="The folder.")] = "") -> None:
    pass


def unexplained(folder: str, really: bool = False) -> None:
    """Remove what jobs have left."""


class Sound(Command):
    """`rolemesh tidy`."""

    help: ClassVar[str] = "Remove what jobs have left."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        return tidy


class Nameless(Sound):
    """Inherits what the list of verbs cannot read."""


class Undocumented(Sound):
    """Has a function without a docstring."""

    help: ClassVar[str] = "Remove what jobs have left."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        return undocumented


class Unexplained(Sound):
    """Has arguments without help."""

    help: ClassVar[str] = "Remove what jobs have left."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        return unexplained


class Heavy(Sound):
    """Imports what plots before anybody wants a plot."""

    help: ClassVar[str] = "Remove what jobs have left."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        import matplotlib  # noqa: F401

        return tidy


class Forgiving(Sound):
    """Takes every option."""

    help: ClassVar[str] = "Remove what jobs have left."

    @classmethod
    def function(cls) -> Callable[..., Any]:
        def lenient(context: typer.Context) -> None:
            """Remove what jobs have left."""

        lenient.context_settings = {"ignore_unknown_options": True, "allow_extra_args": True}  # type: ignore[attr-defined]
        return lenient


class Options(BaseModel, extra="forbid"):
    """An option of `rolemesh run`."""

    quiet: bool = Field(default=False, description="Say nothing.")


class Quiet(RunOption):
    """Says nothing."""

    Options: ClassVar[type[BaseModel]] = Options

    def run(self, run: Any) -> int:
        return 0


class Required(BaseModel, extra="forbid"):
    """An option that everybody must give."""

    volume: int = Field(description="How loud.")


class Demanding(Quiet):
    """A command with a required argument."""

    Options: ClassVar[type[BaseModel]] = Required


class Pushy(Quiet):
    """Does every run."""

    def wanted(self) -> bool:
        return True


class Idle(RunOption):
    """Has an option and does nothing."""

    Options: ClassVar[type[BaseModel]] = Options


class Taken(BaseModel, extra="forbid"):
    """An option that `rolemesh run` has already."""

    detach: bool = Field(default=False, description="Go on alone.")


class Copying(Quiet):
    """Has an option of the verb's own."""

    Options: ClassVar[type[BaseModel]] = Taken

    def admission(self, job: Path) -> Any:
        return None


def as_verb(self: Any) -> PluginRecord:
    return PluginRecord("commands", "quiet", "rolemesh", "1.0", f"{__name__}:Quiet")


RENAMED = {"plugin": Quiet, "found": as_verb}
"""Members of a conformance class for options of ``rolemesh run`` that are installed as a verb."""

BROKEN: dict[type[Command], set[str]] = {
    type("run", (Sound,), {"__module__": __name__}): {"test_its_name_is_free"},
    Nameless: {"test_the_list_of_verbs_says_what_it_does"},
    Undocumented: {"test_its_help_is_printed"},
    Unexplained: {"test_its_arguments_and_options_are_described"},
    Heavy: {"test_its_help_is_quick"},
    Forgiving: {"test_a_misspelled_option_of_the_verb_is_refused"},
    Demanding: {"test_its_options_have_defaults"},
    Pushy: {"test_it_is_used_only_on_request"},
    Idle: {"test_it_does_what_its_options_are_for"},
    Copying: {"test_its_options_belong_to_no_other_plugin"},
}
