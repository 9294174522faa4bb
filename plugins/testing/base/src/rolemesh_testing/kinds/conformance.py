"""Conformance of the declaration of a kind: rolemesh can find, check, test and select its plugins."""

from __future__ import annotations

import inspect
from importlib import import_module
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from rolemesh import hookspecs
from rolemesh.api.plugin import Plugin
from rolemesh.kinds import KERNEL, Kind, ProcessName, kinds
from rolemesh.plugins.discovery import PluginRecord
from rolemesh_testing.conformance import HEAVY, InstalledConformance, PluginConformance, needed
from rolemesh_testing.importing import imported
from rolemesh_testing.kinds.declared import KINDS, declared

__all__ = ["KindConformance"]


class KindConformance(InstalledConformance):
    """Subclass it with `plugin`: the name of a declared kind, such as ``sources``."""

    kind = KINDS

    # ------------------------------------------------------------------------------------------------------ fixtures

    @pytest.fixture
    def declared(self, loaded: Any, request: pytest.FixtureRequest) -> Kind:
        """The declaration."""
        return needed(request, "its entry point names no Kind", lambda: _kind(loaded))

    @pytest.fixture
    def base(self, declared: Kind, request: pytest.FixtureRequest) -> type[Any]:
        """The class that plugins of the kind derive from."""
        return needed(request, "its base class cannot be imported", declared.base_class)

    def found(self) -> PluginRecord:
        """The record of the declaration `plugin`, or one of the `rolemesh.kinds.Kind` that `plugin` is."""
        if isinstance(self.plugin, Kind):
            return PluginRecord(self.kind, self.plugin.name, "", "", self.plugin.base)
        assert isinstance(self.plugin, str), f"plugin is {self.plugin!r}: give the name of a kind, or a Kind"
        records = declared(self.plugin)
        assert len(records) == 1, (
            f"{' and '.join(each.distribution for each in records)} declare a kind {self.plugin!r}"
        )
        return records[0]

    def load(self, record: PluginRecord) -> Any:
        """Import the object that the entry point names. Raises the import's exception."""
        if not record.distribution:
            return self.plugin
        imported(record.target, self.timeout_s)
        return record.entry_point.load()

    # --------------------------------------------------------------------------------------------------- declaration

    def test_its_entry_point_names_a_kind(self, declared: Kind) -> None:
        """The entry point names a record of the class `rolemesh.kinds.Kind` at a module's top level."""
        assert isinstance(declared, Kind)

    def test_it_is_called_as_its_entry_point(self, declared: Kind, record: PluginRecord) -> None:
        """The entry-point group of its plugins is ``rolemesh.<name>``. The kernel ignores any other name."""
        assert declared.name == record.name, (
            f"the entry point is {record.name!r}, and the Kind's name {declared.name!r}"
        )

    def test_its_name_can_be_a_group_and_a_key(self, declared: Kind) -> None:
        """The name is valid in entry points and as a key of job files (``plugins.<name>``)."""
        good = declared.name.replace("_", "").isalnum() and declared.name.isascii() and declared.name.islower()
        assert good, f"{declared.name!r} is no name of an entry-point group; use lower-case letters, digits and _"

    def test_no_other_distribution_declares_it(self, declared: Kind, record: PluginRecord) -> None:
        """If two kinds have one name, the kernel ignores the later one and logs a line."""
        taken = declared.name in KERNEL or declared.name in ("conformance", KINDS)
        assert not taken, f"rolemesh has an entry-point group {declared.group} already"
        if record.distribution:
            there = kinds().get(declared.name)
            assert there == declared, f"another distribution declares {declared.name!r} as {there}"

    def test_messages_can_name_one_plugin_of_the_kind(self, declared: Kind) -> None:
        """Messages use `Kind.singular`: the scaler 'backlog'."""
        assert declared.singular.strip(), "singular is empty; say what one of its plugins is called"
        assert declared.singular.strip() == declared.singular, f"singular is {declared.singular!r}"

    def test_it_says_where_its_plugins_run(self, declared: Kind) -> None:
        """`Kind.runs_in` lists processes of rolemesh. They compare the versions of the plugins."""
        unknown = set(declared.runs_in) - set(get_args(ProcessName))
        assert declared.runs_in, f"runs_in is empty; name some of {', '.join(get_args(ProcessName))}"
        assert not unknown, f"runs_in names {', '.join(sorted(unknown))}; there are {', '.join(get_args(ProcessName))}"

    def test_its_hooks_are_rolemeshs(self, declared: Kind) -> None:
        """The hooks are those of `rolemesh.hookspecs`. Other kinds are called through methods of their base class."""
        unknown = [hook for hook in declared.hooks if not hasattr(getattr(hookspecs, hook, None), "rolemesh_spec")]
        assert not unknown, f"there is no hook {', '.join(unknown)}; declare a method in the base class"
        missing = set(declared.required) - set(declared.hooks)
        assert not missing, f"{', '.join(sorted(missing))} is required and not among hooks"

    def test_it_has_no_key_of_the_job_file(self, declared: Kind) -> None:
        """Only the kernel's kinds have a `Kind.job_key`. Job files list plugins of other kinds under
        ``plugins.<name>``.
        """
        assert not declared.job_key, f"job_key is {declared.job_key!r}; leave it out"

    # ------------------------------------------------------------------------------------------------------ base class

    def test_its_base_class_is_a_plugin(self, base: type[Any]) -> None:
        """It derives from `rolemesh.api.plugin.Plugin`. The kernel makes plugins with options, and the class has a
        version.
        """
        assert isinstance(base, type), f"base names {base!r}, which is no class"
        assert issubclass(base, Plugin), f"write class {base.__name__}(Plugin), from rolemesh.api.plugin import Plugin"
        assert type(base.api_version) is int, f"api_version is {base.api_version!r}"
        assert base.api_version >= 1, f"api_version is {base.api_version!r}"

    def test_its_base_class_lies_where_the_kind_says(self, base: type[Any], declared: Kind) -> None:
        """Messages name the module from which an author imports it."""
        module, _, name = declared.base.partition(":")
        assert f"{base.__module__}:{base.__qualname__}" == f"{module}:{name}", (
            f"base is {declared.base!r}, and the class is {base.__module__}:{base.__qualname__}"
        )

    def test_importing_its_base_class_is_light(self, base: type[Any], declared: Kind) -> None:
        """Every plugin of the kind imports it."""
        heavy = set(HEAVY) & imported(declared.base, self.timeout_s).modules
        assert not heavy, f"import {declared.base.partition(':')[0]} imports {', '.join(sorted(heavy))}"

    def test_its_base_class_is_described(self, base: type[Any]) -> None:
        """The docstrings of the class and of each method that a plugin overrides are the author's documentation."""
        methods = {
            name: value
            for name, value in vars(base).items()
            if not name.startswith("_") and inspect.isfunction(getattr(value, "__func__", value))
        }
        nameless = [name for name, value in methods.items() if not inspect.getdoc(getattr(base, name))]
        assert vars(base).get("__doc__"), f"{base.__name__} has no docstring"
        assert not nameless, f"no docstring: {', '.join(nameless)}"
        assert methods or inspect.isabstract(base), f"{base.__name__} declares no method, so its plugins can do nothing"

    def test_its_plugins_can_have_options(self, base: type[Any]) -> None:
        """`Options` is a pydantic model that refuses unknown options. A plugin derives from it or defines its own."""
        assert issubclass(base.Options, BaseModel), "Options is no pydantic model"
        assert base.Options.model_config.get("extra") == "forbid", (
            f'{base.Options.__name__} accepts anything; write class {base.Options.__name__}(BaseModel, extra="forbid")'
        )

    # ------------------------------------------------------------------------------------------------------------- kit

    def test_it_has_a_kit(self, declared: Kind) -> None:
        """`Kind.conformance` names the class that tests the kind's plugins. Without it they get the tests for all
        kinds.
        """
        if not declared.conformance:
            pytest.skip("it names no conformance class, so its plugins get the tests of all kinds only")
        module, _, name = declared.conformance.partition(":")
        kit = getattr(import_module(module), name, None)
        assert isinstance(kit, type), f"there is no class {declared.conformance}"
        assert issubclass(kit, PluginConformance), f"write class {name}(PluginConformance), from rolemesh_testing"
        assert kit.kind == declared.name, f"the kind of {name} is {kit.kind!r}; write kind = {declared.name!r}"
        own = [each for each in dir(kit) if each.startswith("test_") and not hasattr(PluginConformance, each)]
        assert own, f"{name} has no test of its own"


def _kind(found: Any) -> Kind:
    assert isinstance(found, Kind), f"its entry point names {found!r}, which is no rolemesh.kinds.Kind"
    return found
