"""Declarations of kinds that each do one thing wrong, and the standard tests that find it."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import msgspec
from pydantic import BaseModel

from rolemesh.api.plugin import Plugin
from rolemesh.kinds import Kind
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_testing import PluginConformance

__all__ = ["BROKEN", "SOUND"]


class Judge(Plugin):
    """Base of judges."""

    @abstractmethod
    def judge(self, text: str) -> float:
        """How good a text is."""


class Bare:
    """Is no plugin."""

    api_version = 1

    def judge(self, text: str) -> float:
        """How good a text is."""
        return 0.0


class Undescribed(Plugin):
    """Does not say what its method is for."""

    def judge(self, text: str) -> float:
        return 0.0


class Lenient(Judge):
    """Takes any option."""

    class Options(BaseModel):
        """Options without any field. They accept unknown keys."""


class JudgeConformance(PluginConformance):
    """The tests of a judge."""

    kind = "judges"

    def test_it_judges(self, cls: type[Any]) -> None:
        """Every text."""


class OtherConformance(JudgeConformance):
    """The tests of another kind."""

    kind = "referees"


SOUND = Kind("judges", "judge", f"{__name__}:Judge", ("rank",), conformance=f"{__name__}:JudgeConformance")


def but(**other: Any) -> Kind:
    """`SOUND` with something else."""
    return msgspec.structs.replace(SOUND, **other)


def installed_as(name: str) -> dict[str, Any]:
    """Members of a conformance class for `SOUND` under another name."""
    record = PluginRecord("kinds", name, "", "", f"{__name__}:SOUND")
    return {"plugin": SOUND, "found": lambda self: record}


BROKEN: dict[str, list[dict[str, Any]]] = {
    "test_its_entry_point_names_a_kind": [{"plugin": SOUND, "load": lambda self, record: Judge}],
    "test_it_is_called_as_its_entry_point": [installed_as("referees")],
    "test_its_name_can_be_a_group_and_a_key": [{"plugin": but(name="Judges of texts")}],
    "test_no_other_distribution_declares_it": [{"plugin": but(name="workloads")}, {"plugin": but(name="conformance")}],
    "test_messages_can_name_one_plugin_of_the_kind": [{"plugin": but(singular="")}],
    "test_it_says_where_its_plugins_run": [{"plugin": but(runs_in=())}, {"plugin": but(runs_in=("trainer",))}],
    "test_its_hooks_are_rolemeshs": [{"plugin": but(hooks=("judge",))}, {"plugin": but(required=("place",))}],
    "test_it_has_no_key_of_the_job_file": [{"plugin": but(job_key="judges")}],
    "test_its_base_class_is_a_plugin": [{"plugin": but(base=f"{__name__}:Bare")}],
    "test_its_base_class_lies_where_the_kind_says": [{"plugin": but(base="rolemesh:Plugin")}],
    "test_importing_its_base_class_is_light": [{"plugin": but(base="tests.conformance.careless:threading")}],
    "test_its_base_class_is_described": [{"plugin": but(base=f"{__name__}:Undescribed")}],
    "test_its_plugins_can_have_options": [{"plugin": but(base=f"{__name__}:Lenient")}],
    "test_it_has_a_kit": [
        {"plugin": but(conformance=f"{__name__}:OtherConformance")},
        {"plugin": but(conformance=f"{__name__}:Judge")},
    ],
}
"""Test → members of the conformance classes in which it fails."""
